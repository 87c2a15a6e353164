"""One transaction: a decision on a snapshot, its commit, and a new decision whenever another process was first.

Callers only decide. A decision is an ``Answer``, a ``Change``, or ``Stale``; the result is ``Committed`` or
``Answered``. See docs/internals/fence.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Generic, NoReturn, TypeVar

import attrs

from lakequeue.errors import RequestThrottled
from lakequeue.storage.engines import commit
from lakequeue.storage.engines.interface import StaleSnapshot
from lakequeue.storage.engines.point import Table

_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")
Ids = Mapping[str, int]
"""Application ids with versions."""


@attrs.frozen
class Answer(Generic[_T_co]):
    """A decision that changes nothing."""

    value: _T_co


@attrs.frozen
class Change(Generic[_T_co]):
    """A decision that takes effect by a commit."""

    fence: Ids
    """The versions on which it was made; 0: never committed."""
    ids: Ids
    """The versions that the commit sets."""
    write: Callable[[Ids, str], None]
    """Makes the commit, with these ids and a token."""
    value: _T_co
    found: Callable[[], bool] = lambda: False
    """Returns whether the commit that refused this one made the same change; the handle has loaded it."""
    counts: Ids = MappingProxyType({})
    """What the commit does, with numbers of messages, for readers of the table's history."""


@attrs.frozen
class Stale:
    """The loaded snapshot is too old for a decision."""


Decision = Answer[_T] | Change[_T] | Stale


@attrs.frozen
class Committed(Generic[_T_co]):
    """A change took effect."""

    value: _T_co
    lost: int
    """Races that others won before."""


@attrs.frozen
class Answered(Generic[_T_co]):
    """The answer holds for a snapshot that was read within the call."""

    value: _T_co


def transact(
    table: Table, decide: Callable[[int], Decision[_T]], *, busy: str, fresh: bool = True
) -> Committed[_T] | Answered[_T]:
    """Decides on the loaded snapshot of a table, and commits a change.

    In this order:

    1. ``decide`` gets the number of races that were lost. If it needs a newer snapshot, or files of the loaded
       one were removed since, the newest snapshot is loaded, and it decides again.
    2. An answer holds only if the snapshot was read within the call. Otherwise the newest one is loaded; unless it
       is the same, ``decide`` is called again.
    3. A change is committed under its fence, see ``commit``: if the answer of storage is lost, the log is searched
       for the commit's token, and the commit may be tried again.
    4. If another commit came first, the race is lost: the newest snapshot is loaded, and after a pause ``decide``
       is called again.

    Args:
        table: the handle, locked by the caller.
        decide: makes the decision; it changes nothing in storage.
        busy: text of the error after too many lost races.
        fresh: whether the loaded snapshot was read within the call.

    Raises:
        RequestThrottled: too many races were lost; nothing was changed (ERR-9).
        QueueClientError: storage failed; with ``outcome_unknown`` if the log does not show whether the commit
            landed.
    """
    lost = 0
    for number in range(commit.ATTEMPTS):
        try:
            decision = decide(lost)
        except OSError as error:  # files were merged, dropped or erased, and removed
            if fresh and not isinstance(error, StaleSnapshot):
                raise
            decision = Stale()
        match decision:
            case Change() as change:
                write = partial(change.write, change.ids)
                if commit.commit(table, change.fence, write, change.found, change.counts):
                    return Committed(change.value, lost)
                lost += 1
                commit.back_off(number)
            case Answer(value) if fresh:
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
    raise RequestThrottled(busy)


def assert_never(value: NoReturn) -> NoReturn:
    """Has mypy report a kind of decision that no case takes; Python 3.10 lacks the function of ``typing``."""
    raise AssertionError(f"{value!r} was not expected")
