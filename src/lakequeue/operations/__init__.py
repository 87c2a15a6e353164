"""What each verb does to the shards of a queue: one module for each verb."""
