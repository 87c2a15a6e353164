"""The SQS endpoint: its two protocols, the service model, and the actions."""
