"""State of one process: the root, open queues, and shards with a group commit."""
