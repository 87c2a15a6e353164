"""Counts what this process did with the messages of each queue, for the server's metrics."""

from __future__ import annotations

import threading
from collections import Counter

EVENTS = (
    *("sent", "sent_bytes", "received", "received_bytes", "empty_receives"),
    *("deleted", "extended", "dead_lettered"),
)
"""What is counted: messages, bytes of their bodies, and receives that found none."""


class Tallies:
    """Totals since the process started, by queue. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_queue: dict[str, Counter[str]] = {}

    def add(self, queue: str, **amounts: int) -> None:
        """Adds to the totals of a queue; the names are those of ``EVENTS``."""
        with self._lock:
            self._by_queue.setdefault(queue, Counter()).update(amounts)

    def of(self, queue: str) -> Counter[str]:
        """The totals of a queue; events that did not happen count 0."""
        with self._lock:
            return Counter(self._by_queue.get(queue))

    def all(self) -> dict[str, Counter[str]]:
        """The totals of every queue that something happened to."""
        with self._lock:
            return {queue: Counter(amounts) for queue, amounts in self._by_queue.items()}
