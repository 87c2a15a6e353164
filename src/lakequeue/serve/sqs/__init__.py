"""The SQS endpoint: both protocols, the service model, and the actions."""
