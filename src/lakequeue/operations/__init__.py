"""One module per verb: its effect on the shards of a queue."""
