"""State of one process: the root, open queues, and each shard behind a group commit."""
