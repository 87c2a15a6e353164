"""Computes how many messages a consumer holds, in handlers and claimed ahead of their handlers. A round is one
commit, which settles handled messages and claims further messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lakequeue.model.messages import Message

WINDOW = 250_000
"""Minimum work to claim ahead, in microseconds of handler time."""
ROUNDS = 3
"""Messages are claimed ahead for this number of rounds, each as long as the longest recent round."""
# Four processes with four groups a hand, on an object store with 20 ms a request, reached 0.75 of their speed with
# 1.5 rounds, 0.66 with 1. With 2, one of them got 0.4 to 0.7 of the mean.
GROUP_ROUNDS, SCARCE_ROUNDS = 2.0, 1.5
"""Messages of a FIFO queue are claimed ahead to occupy the handlers for this number of rounds of average length.
``SCARCE_ROUNDS`` applies if the last claim got fewer messages than it asked for; otherwise, ``GROUP_ROUNDS``
applies.
"""
BEHIND = 4
"""Multiple of ``Ahead.window`` after which messages that no handler began are given back."""
KNOWN_ROUNDS = 8
"""Number of remembered rounds. The longest of these decides how much work is claimed ahead."""
GROWTH = 8
"""Maximum factor by which ``Ahead.capacity`` grows from one round to the next."""
MOST = 1_000
"""Maximum number of messages that a consumer without ``prefetch`` holds, in handlers and claimed ahead."""
MOST_BYTES = 32 << 20
"""Maximum characters in the bodies that a consumer without ``prefetch`` holds, estimated by their average size."""


class Ahead:
    """Chooses how many messages a consumer holds. Each round settles messages and claims others. Not thread-safe.

    Args:
        hands: maximum number of messages in handlers at a time.
        prefetch: number of messages to claim ahead; None to compute it from the durations of handlers and rounds.
        longest: maximum microseconds after which messages that no handler began are given back.
        fifo: True if a held message blocks its group for other processes.

    Attributes:
        lacking: number of messages that the last claim asked for and did not get.
    """

    def __init__(self, hands: int, prefetch: int | None, longest: int, fifo: bool = False) -> None:
        self._prefetch = prefetch
        self._fifo = fifo
        self._longest = longest
        self.lacking = 0
        self._rounds: deque[int] = deque(maxlen=KNOWN_ROUNDS)
        self._size = 1.0
        self.resize(hands)

    def resize(self, hands: int) -> None:
        """Changes the maximum number of messages in handlers. Forgets the durations of handlers."""
        self._hands = hands
        self._took: deque[int] = deque(maxlen=2 * hands)
        self._last = hands

    def received(self, messages: Sequence[Message]) -> None:
        self._size = max(1.0, sum(len(message.body) for message in messages) / len(messages))

    def took(self, micros: int) -> None:
        self._took.append(micros)

    def round(self, micros: int) -> None:
        """Records the duration of a round, including waits and lost races."""
        self._rounds.append(micros)

    @property
    def longest_round(self) -> int:
        """Microseconds of the longest remembered round; 0 before the first round."""
        return max(self._rounds, default=0)

    @property
    def window(self) -> int:
        """Microseconds of handler time to claim ahead."""
        # what ends during a round is held until the next one: with rounds of 2.5 s, 5 s of work were too little
        return min(max(WINDOW, ROUNDS * self.longest_round), self._longest * 3 // 4)

    @property
    def _work(self) -> int:
        """Work to hold, in microseconds of handler time. Less on a FIFO queue: held messages block their group."""
        if not self._fifo:
            return self.window
        handled = sum(self._took) // len(self._took)
        if self.lacking > 0:
            return handled + int(SCARCE_ROUNDS * self._mean_round)
        return max(WINDOW, handled + int(GROUP_ROUNDS * self._mean_round))

    @property
    def _mean_round(self) -> int:
        return sum(self._rounds) // max(1, len(self._rounds))

    def gather(self, ready: int) -> int:
        """Returns how many microseconds finished messages may wait, so that one commit settles more of them."""
        if not self._fifo:
            return self.longest_round
        # the next round begins while the `ready` messages, which no group blocks, last for it
        lasts = ready * sum(self._took) // (self._hands * max(1, len(self._took)))
        return max(0, min(self.longest_round, lasts - self._mean_round))

    @property
    def behind(self) -> int:
        """Microseconds after which messages that no handler began are given back."""
        return min(BEHIND * self.window, self._longest)

    def fell_behind(self) -> None:
        """Called when messages waited too long and were given back. Forgets the durations of handlers."""
        self._took.clear()
        self._last = self._hands

    def capacity(self, hands: int) -> int:
        """Returns the maximum number of messages to hold now. ``hands`` is the number that can be in handlers."""
        if self._prefetch is not None:
            return hands + self._prefetch
        if not self._took:
            return hands
        total = max(1, sum(self._took))
        wanted = hands * self._work * len(self._took) // total
        most = min(wanted, GROWTH * self._last, MOST, int(MOST_BYTES / self._size))
        self._last = max(hands, most)
        return self._last
