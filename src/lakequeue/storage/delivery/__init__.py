"""Delivery tables: users' Delta tables to which queues append through ``deltalake``."""
