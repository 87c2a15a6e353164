"""One module per verb: what it does to the shards of a queue."""
