"""The ``messages`` table of a shard: appends, reads and merges messages."""
