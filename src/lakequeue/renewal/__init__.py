"""Keeps receipts alive: policies as arithmetic, and the scheduler of heartbeats."""
