"""The effect of each verb on the shards of a queue. Each verb has a module of its own."""
