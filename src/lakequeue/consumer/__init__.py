"""Consumers: receive messages, call a handler for each, and settle it by the outcome."""
