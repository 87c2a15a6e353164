"""Consumers: messages received, given to a handler and settled by what it answers."""
