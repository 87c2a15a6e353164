"""Integrations with schedulers and task queues; each imports only the public faces."""
