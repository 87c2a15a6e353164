"""The turns of a pool that may begin, in their order, and the turns that wait behind others of their group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lakequeue.consumer.jobs import Turn


class Line:
    """The turns of a pool, in order. Each turn has a message whose handler has yet to begin. This message may have
    ended since a hand last asked for work.

    Args:
        is_again: returns True for a turn of a repeated receive. Such turns begin before turns of a first receive.

    Attributes:
        ready: the turns that may begin. Turns on their last receive come first: hands are kept for them (HBN-23).
        groups: the turns of each group. Only the first turn of a group may begin (HBN-19).
    """

    def __init__(self, is_again: Callable[[Turn], bool]) -> None:
        self._is_again = is_again
        self.ready: deque[Turn] = deque()
        self.groups: dict[str, deque[Turn]] = {}

    def add(self, turn: Turn) -> None:
        if turn.group is not None:
            turns = self.groups.setdefault(turn.group, deque())
            turns.append(turn)
            if len(turns) > 1:
                return
        self._make_ready(turn)

    def go_on(self, turn: Turn) -> None:
        """Lets the next message of a turn begin. Call this method when a message of the turn has ended."""
        if turn.waits:
            self.ready.append(turn)
        else:
            self.leave(turn)

    def leave(self, turn: Turn) -> None:
        """Removes a turn that is no longer ``ready`` from its group. The group's next turn becomes ready."""
        if turn.group is None:
            return
        turns = self.groups[turn.group]
        turns.popleft()
        while turns and not turns[0].waits:
            turns.popleft()
        if turns:
            self._make_ready(turns[0])
        else:
            del self.groups[turn.group]

    def drop_returned(self) -> None:
        """Removes turns whose messages were all handed back. The next turn of the same group may then begin."""
        over = [turn for turn in self.ready if not turn.waits]
        self.ready = deque(turn for turn in self.ready if turn.waits)
        for turn in over:
            self.leave(turn)

    def _make_ready(self, turn: Turn) -> None:
        place = len(self.ready)
        if turn.is_last:
            place = 0
        elif self._is_again(turn):
            place = next((at for at, each in enumerate(self.ready) if not each.is_last), place)
        self.ready.insert(place, turn)
