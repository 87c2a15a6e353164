"""Sums over the queues of a consumer."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.define
class Totals:
    """Sums over the queues of a consumer, which share its hands.

    Attributes:
        hands: maximum number of calls of the handler at a time.
        pools: the ``Pool`` of each queue.
        busy: number of busy hands.
        kept: number of hands that stay free for last receives, see ``FreeHands``.
        empty: queues found empty since the last receive of a message. A receive replaces the set.
    """

    hands: int
    pools: list[Any] = attrs.field(factory=list)
    busy: int = 0
    kept: int = 0
    empty: set[Any] = attrs.field(factory=set)

    @property
    def held(self) -> int:
        """Number of active messages."""
        return sum(map(len, self.pools))

    @property
    def several(self) -> bool:
        return len(self.pools) > 1
