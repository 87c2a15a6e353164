"""How many messages a consumer holds: those in its hands, and ahead as many as they do in a short time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lakequeue.model.messages import Message

WINDOW = 250_000
"""Microseconds of work that is claimed ahead: longer than a commit takes on a disk, about as long as one on an
object store. An idle process waits at most so long for work that others hold."""
BEHIND = 1_000_000
"""Microseconds after which work that nobody began is given back to other processes."""
GROWTH = 8
"""How many times as much it holds after a round, at most: on an object store a round takes half a second."""
MOST = 1_000
"""Maximum number of messages that a consumer holds by its own choice."""
MOST_BYTES = 32 << 20
"""Maximum number of characters of their bodies."""


class Ahead:
    """Chooses how many messages a consumer holds; not thread-safe, its owner locks.

    Args:
        hands: maximum number of handlers at a time.
        prefetch: messages to claim ahead; None: by how long handlers took lately.
    """

    def __init__(self, hands: int, prefetch: int | None) -> None:
        self._prefetch = prefetch
        self._size = 1.0
        self.resize(hands)

    def resize(self, hands: int) -> None:
        """Changes the number of handlers, whose pace is to be learned anew."""
        self._hands = hands
        self._took: deque[int] = deque(maxlen=2 * hands)
        self._last = hands
        """How many it was to hold before."""

    def received(self, messages: Sequence[Message]) -> None:
        """Notes how large messages are."""
        self._size = max(1.0, sum(len(message.body) for message in messages) / len(messages))

    def took(self, micros: int) -> None:
        """Notes how long a handler took."""
        self._took.append(micros)

    def fell_behind(self) -> None:
        """Forgets how fast handlers were."""
        self._took.clear()
        self._last = self._hands

    def capacity(self) -> int:
        """Maximum number of messages to hold now."""
        if self._prefetch is not None:
            return self._hands + self._prefetch
        if self._took:
            total = max(1, sum(self._took))
            wanted = self._hands * WINDOW * len(self._took) // total
            most = min(wanted, GROWTH * self._last, MOST, int(MOST_BYTES / self._size))
            self._last = max(self._hands, most)
        return self._last
