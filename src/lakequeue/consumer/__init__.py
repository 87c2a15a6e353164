"""A consumer receives messages, calls a handler for each, and settles each message by the handler's outcome."""
