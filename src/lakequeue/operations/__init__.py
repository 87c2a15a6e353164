"""A module for each verb: what it does to the shards of a queue."""
