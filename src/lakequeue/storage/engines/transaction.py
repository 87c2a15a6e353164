"""Runs a transaction: decides on a snapshot, commits, and decides again if another commit came first.

The caller only makes the decision. See docs/internals/fence.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

import attrs

from lakequeue.errors import RequestThrottled
from lakequeue.storage.engines.commit import Change as Change
from lakequeue.storage.engines.commit import Commit, Ended
from lakequeue.storage.engines.commit import Ids as Ids
from lakequeue.storage.engines.commit_failures import StaleSnapshot
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.turns import NO_TURNS, Turns

ATTEMPTS = 60
"""Maximum number of decisions before the caller gets RequestThrottled (ERR-9)."""
REPEATS = 30
"""Maximum attempts at the same commit. Then the caller must decide again, as after a lost race."""
_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


@attrs.frozen
class Answer(Generic[_T_co]):
    """A decision to change nothing, with the value to return."""

    value: _T_co


@attrs.frozen
class FoundChange(Generic[_T_co]):
    """A decision to commit nothing, because another process has made the same change."""

    value: _T_co


@attrs.frozen
class Stale:
    """Decision that the loaded snapshot is too old. ``transact`` loads the newest snapshot and decides again."""


Decision = Answer[_T] | Change[_T] | FoundChange[_T] | Stale


@attrs.frozen
class Committed(Generic[_T_co]):
    """Result of a transaction whose change is in the log, even if another process has committed it."""

    value: _T_co
    lost: int
    """Number of races that were lost before the commit."""
    avoided: bool
    """True if another process committed while this process waited for its turn. The wait avoided a lost race."""


@attrs.frozen
class Answered(Generic[_T_co]):
    """Result of a transaction that changes nothing. The value was right at some moment during the call."""

    value: _T_co


def transact(
    table: Table, decide: Callable[[int], Decision[_T]], *, busy: str, fresh: bool = True, turns: Turns = NO_TURNS
) -> Committed[_T] | Answered[_T]:
    """Calls ``decide`` with the number of lost races, and commits the change that it returns.

    After a lost race, or if the loaded snapshot is too old, loads the newest snapshot and calls ``decide`` again.
    See docs/internals/fence.md.

    Args:
        table: the handle, locked by the caller.
        decide: makes the decision. Changes nothing in storage.
        busy: text of the error after too many lost races.
        fresh: True if the loaded snapshot was read within the caller's operation.

    Raises:
        RequestThrottled: too many races were lost; nothing was changed (ERR-9). ``lost_races`` is the count.
        QueueClientError: storage failed. With ``outcome_unknown``, the commit may have landed.
    """
    lost = 0
    for number in range(ATTEMPTS):
        try:
            decision = decide(lost)
        except OSError as error:  # files were merged, dropped or erased, and removed
            if fresh and not isinstance(error, StaleSnapshot):
                raise
            decision = Stale()
        match decision:
            case Change() as change:
                if change.late and turns.take(table, patient=change.patient):
                    table.look()
                    fresh = True
                    continue
                with turns.commit():
                    landed = commit(table, change)
                if landed:
                    turns.end()
                    return Committed(change.value, lost, turns.moved)
                lost += 1
                fresh = True
                if not change.late and turns.lose(table, lost):
                    table.refresh()
                back_off(number)
            case FoundChange(value):
                table.sync_entries()
                turns.end()
                return Committed(value, lost, turns.moved)
            case Answer(value) if fresh:
                table.sync_entries()
                return Answered(value)
            case Answer(value):
                known = table.version, table.lineage
                table.refresh()
                fresh = True
                if (table.version, table.lineage) == known:
                    return Answered(value)
            case Stale():
                table.refresh()
                fresh = True
            case _:
                assert_never(decision)
    raise RequestThrottled(busy, lost_races=lost)


def commit(table: Table, change: Change[object]) -> bool:
    """Commits a change. If its fence no longer holds, loads the newest snapshot and returns False."""
    trying = Commit(table, change)
    for number in range(REPEATS):
        ended = trying.attempt()
        if ended is not Ended.TRY_AGAIN:
            return ended is Ended.LANDED
        back_off(number)
    trying.give_up()
    return False


def back_off(attempt: int) -> None:
    """Sleeps for a random time of at most 0.02 seconds. The time grows with the number of attempts."""
    time.sleep(random.uniform(0, min(0.02, 0.002 * 2 ** min(attempt, 4))))


def assert_never(value: NoReturn) -> NoReturn:
    """Makes mypy report a kind of decision that no case handles."""
    raise AssertionError(f"{value!r} was not expected")
