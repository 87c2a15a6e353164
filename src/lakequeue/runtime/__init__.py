"""What one process holds: the root, open queues, and each shard behind a group commit."""
