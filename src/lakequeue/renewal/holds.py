"""The receipts of a holder, as a state machine (HNS-21). It says when to extend each receipt.

``Holds.on`` takes events and returns actions, without threads and clocks. Times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import attrs

from lakequeue.renewal.policies import Hold, Renewal

_SECOND = 1_000_000
_WATCH = _SECOND
"""Microseconds between two searches for messages that other processes deleted (HBN-26)."""


class Verdict(Enum):
    """The outcome of an attempt to extend a receipt."""

    EXTENDED = "extended"
    LOST = "lost"
    """The message was deleted, or another consumer may have it."""
    FAILED = "failed"
    """The extension may have had no effect, and may be tried again."""


# --- events


@attrs.define
class Due:
    """An event: ``WaitUntil`` is over or all actions are done, so that receipts may be due."""


@attrs.define
class Extended:
    """An attempt to extend receipts has ended. ``verdicts`` are in the receipts' order."""

    attempt: Extend
    verdicts: Sequence[Verdict]


@attrs.define
class Gone:
    """Other processes deleted the messages of these receipts."""

    keys: Collection[str]


Event: TypeAlias = Due | Extended | Gone

# --- actions


@attrs.define
class Extend:
    """Extend receipts.

    Attributes:
        wanted: the new timeout of each receipt.
        at: instant at which the timeouts were computed.
        tight: True for a second attempt, with timeouts a second less than in the first attempt.
    """

    wanted: Mapping[str, int]
    at: int
    tight: bool = False


@attrs.define
class FindGone:
    """Find out which of these messages other processes have deleted."""

    keys: Sequence[str]


@attrs.define
class WaitUntil:
    """Wait for an instant, or until woken. Without an instant, wait until woken."""

    until: int | None


@attrs.define
class WakeRenewal:
    """End the wait of ``WaitUntil``: a new receipt is due earlier."""


@attrs.define
class ReceiptsLost:
    """Receipts are lost, and no longer extended."""

    keys: Sequence[str]


Action: TypeAlias = Extend | FindGone | WaitUntil | WakeRenewal | ReceiptsLost


class Holds:
    """Receipts that a policy extends, each from ``keep`` until ``drop``. Not thread-safe.

    Args:
        policy: decides when to extend a receipt, and by how much.
        watches: True to search every second for messages that other processes deleted.
        batch: maximum number of receipts to extend at once; None for any number (HBN-11).
    """

    def __init__(self, policy: Renewal, watches: bool = False, batch: int | None = None) -> None:
        self._policy = policy
        self._watches = watches
        self._batch = batch
        self._held: dict[str, Hold] = {}
        self._over = set[str]()
        self._sent = set[str]()  # in attempts that have not ended
        self._since = self._watched = 0
        self._until: int | None = None

    def keep(self, holds: Mapping[str, Hold], now: int) -> list[Action]:
        if not self._held:
            self._since = self._watched = now
        self._held |= holds
        at = self._next(holds)
        if at is None or (self._until is not None and self._until <= at):
            return []  # a consumer keeps hundreds at a time, due after the first one
        self._until = at
        return [WakeRenewal()]

    def drop(self, key: str) -> Hold | None:
        """Stops renewing a receipt. Returns the receipt's last state, or None if the receipt was not kept."""
        self._over.discard(key)
        return self._held.pop(key, None)

    def get(self, key: str) -> Hold | None:
        """Returns the state of a receipt, or None if the receipt is not kept."""
        return self._held.get(key)

    def is_extending(self, key: str) -> bool:
        """Returns True during an attempt to extend a receipt. The receipt may be dropped already."""
        return key in self._sent

    def stop(self) -> None:
        """Forgets attempts in progress, because their holder has stopped and reports no outcomes any more."""
        self._sent.clear()

    def on(self, event: Event, now: int) -> list[Action]:
        """Handles an event. Returns the actions to perform, in order."""
        if isinstance(event, Due):
            return self._due(now)
        return self._extended(event) if isinstance(event, Extended) else self._lose(event.keys)

    def _due(self, now: int) -> list[Action]:
        """Extends the due receipts. Skips receipts that have reached twelve hours."""
        wanted: list[tuple[str, int]] = []
        for key in [key for key, at in self._checks(self._held) if at <= now]:
            timeout = self._policy.extension(self._held[key], now)
            if timeout > 0:
                wanted.append((key, timeout))
            else:
                self._held[key] = attrs.evolve(self._held[key], exhausted=True)
        self._sent.update(key for key, _ in wanted)
        size = self._batch or len(wanted) or 1
        starts = range(0, len(wanted), size)
        actions: list[Action] = [Extend(dict(wanted[start : start + size]), now) for start in starts]
        if self._watches and now >= self._watched + _WATCH:
            self._watched = now
            actions += [FindGone(keys)] if (keys := [key for key in self._held if key not in self._over]) else []
        self._until = now if actions else self._next(self._held)
        return actions or [WaitUntil(self._until)]

    def _extended(self, event: Extended) -> list[Action]:
        """Records the outcomes of an attempt, except of receipts that were dropped meanwhile (HBN-20). If an
        extension to the limit of twelve hours is refused, tries again with a second less, because the commit may
        have come late.
        """
        attempt, tight, lost = event.attempt, dict[str, int](), list[str]()
        for (key, timeout), verdict in zip(attempt.wanted.items(), event.verdicts, strict=True):
            if (hold := self._held.get(key)) is None:
                continue
            extended = hold.extended(attempt.at, timeout)
            if verdict is not Verdict.LOST:
                self._held[key] = extended if verdict is Verdict.EXTENDED else hold.refused(attempt.at)
            elif extended.exhausted and timeout > _SECOND and not attempt.tight:
                tight[key] = timeout - _SECOND
            else:
                lost.append(key)
        self._sent -= attempt.wanted.keys() - tight.keys()
        return [*([Extend(tight, attempt.at, tight=True)] if tight else []), *self._lose(lost)]

    def _lose(self, keys: Collection[str]) -> list[Action]:
        lost = [key for key in keys if key in self._held and key not in self._over]
        self._over.update(lost)
        return [ReceiptsLost(lost)] if lost else []

    def _next(self, holds: Mapping[str, Hold]) -> int | None:
        """Returns when the next action for some receipts is due; None without such an action."""
        instants = [at for _, at in self._checks(holds)]
        if self._watches and not holds.keys() <= self._over:
            instants.append(self._watched + _WATCH)
        return min(instants, default=None)

    def _checks(self, holds: Mapping[str, Hold]) -> Iterator[tuple[str, int]]:
        for key, hold in holds.items():
            at = None if key in self._over else self._policy.next_check(hold, self._since)
            if at is not None:
                yield key, at
