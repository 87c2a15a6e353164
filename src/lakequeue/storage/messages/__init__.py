"""The ``messages`` table of a shard. Appends, reads and merges messages."""
