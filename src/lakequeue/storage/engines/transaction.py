"""One transaction. Decides, commits, and decides again after lost races.

Callers only decide. A decision is an ``Answer``, ``Change``, ``FoundChange``, or ``Stale``. The result is
``Committed`` or ``Answered``. See docs/internals/fence.md.
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
"""Number of decisions before the caller gets RequestThrottled (ERR-9)."""
REPEATS = 30
"""Maximum attempts at one commit while its fence holds. The race counts as lost afterwards."""
_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


@attrs.frozen
class Answer(Generic[_T_co]):
    """A decision that changes nothing."""

    value: _T_co


@attrs.frozen
class FoundChange(Generic[_T_co]):
    """A decision without a commit. The loaded snapshot has the change already."""

    value: _T_co


@attrs.frozen
class Stale:
    """A decision that the loaded snapshot is too old; the newest is loaded."""


Decision = Answer[_T] | Change[_T] | FoundChange[_T] | Stale


@attrs.frozen
class Committed(Generic[_T_co]):
    """A change took effect by a commit of any process."""

    value: _T_co
    lost: int
    """Number of races that were lost before the commit."""
    avoided: bool
    """True if waiting for the turn avoided a lost race."""


@attrs.frozen
class Answered(Generic[_T_co]):
    """An answer on a snapshot that the call read."""

    value: _T_co


def transact(
    table: Table, decide: Callable[[int], Decision[_T]], *, busy: str, fresh: bool = True, turns: Turns = NO_TURNS
) -> Committed[_T] | Answered[_T]:
    """Decides on the loaded snapshot, and commits a change.

    ``decide`` gets the number of lost races. After a lost race, ``decide`` runs again. Stale snapshots and removed
    files also repeat ``decide``. Each repetition uses the newest snapshot. An answer needs a snapshot read within
    the call. See docs/internals/fence.md.

    Args:
        table: the handle, locked by the caller.
        decide: makes the decision. Changes nothing in storage.
        busy: text of the error after too many lost races.
        fresh: True if the call has read the loaded snapshot.
        turns: turns of the committing processes. Nobody waits by default.

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
    """Commits a change. Returns False if the race is lost.

    A lost race loads the newest snapshot. Repeats the commit while its fence holds.
    """
    trying = Commit(table, change)
    for number in range(REPEATS):
        ended = trying.attempt()
        if ended is not Ended.TRY_AGAIN:
            return ended is Ended.LANDED
        back_off(number)
    trying.give_up()
    return False


def back_off(attempt: int) -> None:
    """Sleeps for a random time of at most 0.02 s. Later attempts sleep longer."""
    time.sleep(random.uniform(0, min(0.02, 0.002 * 2 ** min(attempt, 4))))


def assert_never(value: NoReturn) -> NoReturn:
    """Makes mypy report an unhandled kind of decision."""
    raise AssertionError(f"{value!r} was not expected")
