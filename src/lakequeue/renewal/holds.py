"""The receipts that a holder keeps, and when to extend each: arithmetic without threads and clocks (HNS-21)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Generic, TypeVar

import attrs

from lakequeue.renewal.policies import Hold, Renewal

_SECOND = 1_000_000
_WATCH = _SECOND
"""Time between two searches for messages that other processes deleted, for example by a cancellation (HBN-26)."""

Key = TypeVar("Key", bound=Hashable)


class Verdict(Enum):
    """The outcome of an attempt to extend a receipt."""

    EXTENDED = "extended"
    LOST = "lost"
    """The message was deleted, or another consumer has it or may soon receive it."""
    FAILED = "failed"
    """The extension may not have taken effect, and may be tried again."""


class Holds(Generic[Key]):
    """Receipts that are extended by a policy, each from `keep` until `drop`. Not thread-safe.

    Instants and durations are whole microseconds.

    Args:
        policy: decides when to extend a receipt, and by how much.
        watches: True if the holder searches every second for messages that other processes deleted.
    """

    def __init__(self, policy: Renewal, watches: bool) -> None:
        self._policy = policy
        self._watches = watches
        self._held: dict[Key, Hold] = {}
        self._over: set[Key] = set()
        self._since = self._watched = 0

    def keep(self, holds: Mapping[Key, Hold], now: int) -> None:
        if not self._held:
            self._since = self._watched = now
        self._held |= holds

    def drop(self, key: Key) -> Hold | None:
        """Stops renewing a receipt. Returns its last state, or None if it was not kept."""
        self._over.discard(key)
        return self._held.pop(key, None)

    def get(self, key: Key) -> Hold | None:
        """Returns the state of a receipt; None if it is not kept."""
        return self._held.get(key)

    def clear(self) -> None:
        self._held.clear()

    def next(self, holds: Mapping[Key, Hold] | None = None) -> int | None:
        """Returns when the next action for some receipts, by default for all, is due; None: never."""
        chosen = self._held if holds is None else holds
        instants = [at for _, at in self._checks(chosen)]
        if self._watches and not chosen.keys() <= self._over:
            instants.append(self._watched + _WATCH)
        return min(instants, default=None)

    def due(self, now: int) -> list[Key]:
        """Returns the receipts to extend now."""
        return [key for key, at in self._checks(self._held) if at <= now]

    def wanted(self, keys: Iterable[Key], now: int) -> dict[Key, int]:
        """Returns the timeouts to which to extend receipts. Omits receipts that have reached twelve hours."""
        wanted: dict[Key, int] = {}
        for key in keys:
            if (hold := self._held.get(key)) is None:
                continue
            timeout = self._policy.extension(hold, now)
            if timeout > 0:
                wanted[key] = timeout
            else:
                self._held[key] = attrs.evolve(hold, exhausted=True)
        return wanted

    def tight(self, wanted: Mapping[Key, int], verdicts: Mapping[Key, Verdict], now: int) -> dict[Key, int]:
        """Returns shorter timeouts for receipts that were perhaps refused because of the limit of twelve hours.

        The commit came later than ``now``, so the extension may just have exceeded the limit.
        """
        return {
            key: wanted[key] - _SECOND
            for key, verdict in verdicts.items()
            if verdict is Verdict.LOST
            and wanted[key] > _SECOND
            and (hold := self._held.get(key)) is not None
            and hold.extended(now, wanted[key]).exhausted
        }

    def renewed(self, wanted: Mapping[Key, int], verdicts: Mapping[Key, Verdict], now: int) -> list[Key]:
        """Records the outcomes of extensions computed at ``now``. Returns the receipts that are lost.

        Receipts that were dropped meanwhile do not count (HBN-20).
        """
        lost = []
        for key, verdict in verdicts.items():
            if (hold := self._held.get(key)) is None:
                continue
            if verdict is Verdict.EXTENDED:
                self._held[key] = hold.extended(now, wanted[key])
            elif verdict is Verdict.FAILED:
                self._held[key] = hold.refused(now)
            else:
                lost.append(key)
        return self.lose(lost)

    def to_watch(self, now: int) -> list[Key]:
        """Returns the receipts to check now for messages that were deleted, at most once a second."""
        keys = [key for key in self._held if key not in self._over]
        if not self._watches or now < self._watched + _WATCH:
            return []
        self._watched = now
        return keys

    def lose(self, keys: Collection[Key]) -> list[Key]:
        """Stops extending receipts that are lost. Returns the receipts among them that were still kept."""
        lost = [key for key in keys if key in self._held]
        self._over.update(lost)
        return lost

    def _checks(self, holds: Mapping[Key, Hold]) -> Iterator[tuple[Key, int]]:
        for key, hold in holds.items():
            at = None if key in self._over else self._policy.next_check(hold, self._since)
            if at is not None:
                yield key, at
