"""How many messages a consumer holds: those in its hands, and ahead as many as they do in a short time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lakequeue.model.messages import Message

WINDOW = 250_000
"""Microseconds of work that is claimed ahead at least; a round on a disk takes a few milliseconds."""
ROUNDS = 3
"""Rounds that the work claimed ahead lasts for: on an object store, beside other processes, one takes half a
second and more, and what is handled meanwhile waits as long for the next one."""
BEHIND = 4
"""Work that nobody began in so many times that long is given back to other processes."""
KNOWN_ROUNDS = 8
"""Rounds of which the longest counts."""
GROWTH = 8
"""How many times as much it holds after a round, at most."""
MOST = 1_000
"""Maximum number of messages that a consumer holds by its own choice."""
MOST_BYTES = 32 << 20
"""Maximum number of characters of their bodies."""


class Ahead:
    """Chooses how many messages a consumer holds; not thread-safe, its owner locks.

    Args:
        hands: maximum number of handlers at a time.
        prefetch: messages to claim ahead; None: by how long handlers and rounds took lately.
        longest: microseconds after which what nobody began is given back at the latest.
    """

    def __init__(self, hands: int, prefetch: int | None, longest: int) -> None:
        self._prefetch = prefetch
        self._longest = longest
        self._rounds: deque[int] = deque(maxlen=KNOWN_ROUNDS)
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

    def round(self, micros: int) -> None:
        """Notes how long a round took, waits and lost races included."""
        self._rounds.append(micros)

    @property
    def longest_round(self) -> int:
        """Microseconds that the longest of the last rounds took; 0 before the first."""
        return max(self._rounds, default=0)

    @property
    def window(self) -> int:
        """Microseconds of work to claim ahead."""
        return min(max(WINDOW, ROUNDS * self.longest_round), self._longest // 2)

    @property
    def behind(self) -> int:
        """Microseconds after which work that nobody began is given back."""
        return min(BEHIND * self.window, self._longest)

    def fell_behind(self) -> None:
        """Forgets how fast handlers were."""
        self._took.clear()
        self._last = self._hands

    def capacity(self, hands: int) -> int:
        """Maximum number of messages to hold now, for the handlers that these messages may have."""
        if self._prefetch is not None:
            return hands + self._prefetch
        if not self._took:
            return hands
        total = max(1, sum(self._took))
        wanted = hands * self.window * len(self._took) // total
        most = min(wanted, GROWTH * self._last, MOST, int(MOST_BYTES / self._size))
        self._last = max(hands, most)
        return self._last
