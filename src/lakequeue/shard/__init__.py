"""The state machine of one shard: pure rules over runs of messages, without storage or clock."""
