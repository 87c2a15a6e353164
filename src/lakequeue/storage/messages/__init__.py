"""The ``messages`` table of a shard: appended to, read by offset, kept in few files."""
