"""Delivery tables: Delta tables of users that queues append to, by ``deltalake``."""
