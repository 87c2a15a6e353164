"""Keeps receipts alive. Policies compute when to extend receipts, and a scheduler sends the heartbeats."""
