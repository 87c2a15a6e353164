"""One transaction: a decision on a snapshot, its commit, and a new decision whenever another process was first.

Callers only decide. A decision is an ``Answer``, a ``Change``, or ``Stale``; the result is ``Committed`` or
``Answered``. See docs/internals/fence.md.
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
from lakequeue.storage.engines.interface import StaleSnapshot
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.turns import NO_TURNS, Turns

ATTEMPTS = 60
"""Decisions before the caller gets RequestThrottled (ERR-9)."""
REPEATS = 30
"""Attempts at a commit that loses to commits outside its fence."""
_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


@attrs.frozen
class Answer(Generic[_T_co]):
    """A decision that changes nothing."""

    value: _T_co


@attrs.frozen
class FoundChange(Generic[_T_co]):
    """A change that the loaded snapshot has: another process committed it."""

    value: _T_co


@attrs.frozen
class Stale:
    """The loaded snapshot is too old for a decision."""


Decision = Answer[_T] | Change[_T] | FoundChange[_T] | Stale


@attrs.frozen
class Committed(Generic[_T_co]):
    """A change took effect: by a commit of this process, or of another one."""

    value: _T_co
    lost: int
    """Races that others won before."""
    avoided: bool
    """Whether its turn avoided another one."""


@attrs.frozen
class Answered(Generic[_T_co]):
    """The answer holds for a snapshot that was read within the call."""

    value: _T_co


def transact(
    table: Table, decide: Callable[[int], Decision[_T]], *, busy: str, fresh: bool = True, turns: Turns = NO_TURNS
) -> Committed[_T] | Answered[_T]:
    """Decides on the loaded snapshot of a table, and commits a change.

    In this order:

    1. ``decide`` gets the number of races that were lost. If it needs a newer snapshot, or files of the loaded
       one were removed since, the newest snapshot is loaded, and it decides again.
    2. An answer holds only if the snapshot was read within the call. Otherwise the newest one is loaded; unless it
       is the same, ``decide`` is called again.
    3. A change that is ``late`` waits for its turn. If others committed meanwhile, ``decide`` is called again.
    4. A change is committed under its fence, see ``Commit``: only if the base is still an entry of the log; if the
       answer of storage is lost, the log is searched for the commit's token, and the commit may be tried again; it
       is searched, too, if the commit took so long that the process may have been suspended. Then the turn ends.
    5. If another commit came first, the race is lost: the newest snapshot is loaded, and after a pause ``decide``
       is called again.

    Args:
        table: the handle, locked by the caller.
        decide: makes the decision; it changes nothing in storage.
        busy: text of the error after too many lost races.
        fresh: whether the loaded snapshot was read within the call.
        turns: those of the processes that commit to the table; without them nobody waits.

    Raises:
        RequestThrottled: too many races were lost, ``lost_races``; nothing was changed (ERR-9).
        QueueClientError: storage failed; with ``outcome_unknown`` if the log does not show whether the commit
            landed.
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
                table.settle()
                turns.end()
                return Committed(value, lost, turns.moved)
            case Answer(value) if fresh:
                table.settle()
                return Answered(value)
            case Answer(value):
                known = table.version, table.history
                table.refresh()
                fresh = True
                if (table.version, table.history) == known:
                    return Answered(value)
            case Stale():
                table.refresh()
                fresh = True
            case _:
                assert_never(decision)
    raise RequestThrottled(busy, lost_races=lost)


def commit(table: Table, change: Change[object]) -> bool:
    """Commits a change; returns False if the race is lost: then the newest snapshot is loaded.

    Commits outside its fence, such as merges of segments, only make it try again.
    """
    trying = Commit(table, change)
    for number in range(REPEATS):
        ended = trying.attempt()
        if ended is not Ended.REPEAT:
            return ended is Ended.LANDED
        back_off(number)
    trying.give_up()
    return False


def back_off(attempt: int) -> None:
    """Sleeps a jittered moment that grows with the attempts, on machine time, at most 0.02 s."""
    time.sleep(random.uniform(0, min(0.02, 0.002 * 2 ** min(attempt, 4))))


def assert_never(value: NoReturn) -> NoReturn:
    """Has mypy report a kind of decision that no case takes; Python 3.10 lacks the function of ``typing``."""
    raise AssertionError(f"{value!r} was not expected")
