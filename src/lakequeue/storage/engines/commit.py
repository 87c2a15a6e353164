"""One commit under a fence: checked, marked with a token, its outcome known for sure; tries after lost races."""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

import attrs

from lakequeue.errors import REPEAT, DamagedTable, QueueClientError, RequestThrottled
from lakequeue.storage import layout
from lakequeue.storage.delta_log import entry_name, read_entry
from lakequeue.storage.engines.interface import LostRace, StaleSnapshot
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.log_trimming import trim_log
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.roots import local_path
from lakequeue.storage.snapshot import OtherHistory
from lakequeue.storage.store_failures import first_line, unsettled_version

ATTEMPTS = 60
"""Tries of one commit before its callers get RequestThrottled (ERR-9)."""
LOADS = 3
"""Failed reads of the newest rows before the error reaches the caller."""
OLDEST_BASE = 1.0
"""Seconds after which a commit first looks whether its snapshot is still one of the log, if no lock protects that.
What is committed in these seconds after a backup was restored under a running process may be lost."""
LONG_COMMIT = 600.0
"""Seconds by the wall clock after which a commit searches for its token before it is acknowledged: the process may
have been suspended."""
TRIM_EVERY = 100
"""Commits to a local table between two attempts to trim its log."""
TRIM_PATIENCE = 0.2
"""Seconds that such an attempt waits for the table's lock."""
_REPEATS = 30
"""Attempts at a commit that loses to commits outside its fence, such as merges of segments."""
_UNANSWERED = 2
"""Attempts without an answer that are repeated: if another one gets the version, the first can no longer land."""
_LOST = "lost_races"
"""Field of a token: the number of races that were lost before the commit."""

_log = logging.getLogger("lakequeue")
_T = TypeVar("_T")


class Races:
    """The tries of one commit, numbered from 0; it pauses after each that was lost.

    Use ``retried`` where a lost race is all that ends a try.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = ATTEMPTS if most is None else most
        self.lost = 0
        """Races that others won."""

    def lose(self) -> None:
        """Notes a lost race: the next try is made after a pause. Without it the next try is made at once."""
        self.lost += 1

    def __iter__(self) -> Iterator[int]:
        for number in range(self._most):
            lost = self.lost
            yield number
            if self.lost > lost:
                back_off(number)


def retried(attempt: Callable[[], _T | None], told: str) -> _T:
    """The result of a decision and its commit, which are made again after each lost race: then it is None.

    Raises:
        RequestThrottled: with this text, after too many.
    """
    races = Races()
    for _ in races:
        result = attempt()
        if result is not None:
            return result
        races.lose()
    raise RequestThrottled(told)


def back_off(attempt: int) -> None:
    """Sleeps a jittered moment that grows with the attempts, on machine time, at most 0.02 s."""
    time.sleep(random.uniform(0, min(0.02, 0.002 * 2 ** min(attempt, 4))))


def repeated(table: Table, read: Callable[[], _T]) -> _T:
    """Calls a function that reads a table; again if files were rewritten and removed since they were listed."""
    for _ in range(LOADS):
        try:
            return read()
        except OSError:
            table.refresh()
    return read()


class StaleAttributes(Exception):
    """The queue's attributes changed since messages were validated; validate again."""


def commit(
    table: Table,
    fence: Mapping[str, int],
    attempt: Callable[[str], None],
    done_by_another: Callable[[], bool] = lambda: False,
    told: Mapping[str, int] = MappingProxyType({}),
) -> bool:
    """Runs ``attempt(token)`` if the decision was made on the loaded snapshot.

    Args:
        table: the handle, locked by the caller from the decision until this returns.
        fence: application ids with the versions that the decision was based on (0: never committed).
        attempt: makes the commit; it must carry the fence's ids and the token.
        done_by_another: whether the commit that refused this one did the same; the handle has loaded it.
        told: what the commit does, with numbers of messages, for who reads the history of the table.

    Returns:
        True if it is committed, by whomever; False if the race is lost, and then the newest snapshot is loaded.

    Raises:
        QueueClientError: storage failed, or others held the table's lock for too long; with ``outcome_unknown`` if
            not even the token search could tell whether it landed, or whether it still will.
    """
    token = json.dumps({**told, _LOST: table.lost_races, "commit": uuid.uuid4().hex})
    landed = _Commit(table, fence, attempt, token, done_by_another).run()
    table.lost_races = 0 if landed else table.lost_races + 1
    return landed


def lost_races(folder: Folder, version: int, most: int) -> tuple[int, int]:
    """The number of newest commits of a log that can be read, up to a version, and the races lost before them."""

    def lost(number: int) -> int | None:
        try:
            races = json.loads(read_entry(folder, number).token or "")[_LOST]
        except FileNotFoundError:  # trimmed
            return None
        except (ValueError, TypeError, KeyError):  # that of a creation or repair, or of an earlier release
            return 0
        return races if isinstance(races, int) else 0

    found = folder.for_each(lost, range(max(0, version - most + 1), version + 1))
    known = [races for races in found if races is not None]
    return len(known), sum(known)


@attrs.define
class _Commit:
    """A commit on its way."""

    table: Table
    fence: Mapping[str, int]
    attempt: Callable[[str], None]
    token: str
    done_by_another: Callable[[], bool]
    stale: int = 0
    """Tries on a snapshot whose files were gone: those of an old one may be, those of the newest must not be."""
    unanswered: int = 0
    """Tries that got no answer."""
    unsettled: int = 0
    """The newest version that one of these may still make."""
    base: int = 0
    """The version before the first of these."""

    def run(self) -> bool:
        """Tries until it landed or its fence no longer holds; see ``commit``."""
        table, races = self.table, Races(_REPEATS)
        for _ in races:
            if table.state.strays:
                _set_aside(table)
            try:
                # no log entries may be removed from the check of the base to the answer, see `locks`
                with table.pinned() as pin, committing(table.path, exclusive=table.commits_alone, folder=pin):
                    landed = self._try() if self._may_commit() else self._came_late()
            except OtherHistory as error:
                if error.in_place:
                    _set_aside(table, put_back=True)
                raise
            if landed is None:
                return False
            if landed:
                if table.version % TRIM_EVERY == 0:
                    _trim(table)
                return True
            if not holds(table, self.fence):
                return False  # the search for the token loaded the newest snapshot
            races.lose()
        return False

    def _may_commit(self) -> bool:
        try:
            return _may_commit(self.table, self.fence)
        except Exception as error:
            if not self.unanswered:
                raise
            raise _unknown(self.table, error, "an earlier try may have landed, or still land") from error

    def _came_late(self) -> bool | None:
        """Whether what ended the race was a try of this commit without an answer; None: it was another commit."""
        late = TimeoutError("no answer came")
        if self.unsettled and _landed(self.table, self.token, self.base, late):
            return True
        if self.table.version < self.unsettled:
            raise _unknown(self.table, late, "it may still land")
        return None

    def _try(self) -> bool:
        table = self.table
        base, wall, machine = table.version, time.time(), time.monotonic()
        try:
            self.attempt(self.token)
        except Exception as error:
            if isinstance(error, OtherHistory) and error.outcome_unknown:
                raise
            tried = table.version + 1  # `add` may have moved on before it failed
            # A commit may land and still raise: post-commit work failed, or the answer was lost.
            by_another = isinstance(error, LostRace) and self.done_by_another()
            if by_another or _landed(table, self.token, base, error):
                return True
            self._check_repeats(error, tried)
            return False
        # a monotonic clock stops while the machine is suspended; a wall clock may be set back
        took = max(time.time() - wall, time.monotonic() - machine)
        return took < LONG_COMMIT or _landed(table, self.token, base, TimeoutError(f"it took {took:.0f} s"))

    def _check_repeats(self, error: Exception, tried: int) -> None:
        """Raises if a try that did not land was the last one."""
        table = self.table
        self.stale += isinstance(error, StaleSnapshot)
        claimed = unsettled_version(error, tried)
        if claimed is not None:
            self.base = self.base if self.unanswered else claimed - 1
            self.unanswered += 1
        self.unsettled = max(self.unsettled, claimed or 0)
        repeats = isinstance(error, LostRace) if claimed is None else self.unanswered <= _UNANSWERED
        if table.version < self.unsettled:
            if not repeats or not holds(table, self.fence):
                raise _unknown(table, error, "it may still land") from error
        elif (self.stale > 1 or not repeats) and holds(table, self.fence):
            if isinstance(error, DamagedTable):
                raise error
            raise QueueClientError(f"the commit to {table.path} failed: {first_line(error)}") from error


def holds(table: Table, fence: Mapping[str, int]) -> bool:
    """Whether the loaded snapshot has these versions of the application ids."""
    return all(table.transaction(app_id) == version for app_id, version in fence.items())


def is_based(table: Table) -> bool:
    """Whether what was decided on the loaded snapshot may be committed: the log still has its entry (DUR-80).

    "Create if absent" succeeds at a dead place once the next version was made and trimmed. Entries are removed
    oldest first, so it was not as long as the entry of the base exists. It may also be of a log that is no more.

    Raises:
        OtherHistory: the log is another one than the handle has read.
    """
    if local_path(table.path) is not None:
        return table.is_based()
    version = table.version
    if abs(time.time() - table.state.confirmed_at) >= OLDEST_BASE:
        table.confirm()
    return table.version == version


def _may_commit(table: Table, fence: Mapping[str, int]) -> bool:
    """Whether the fence holds on the loaded snapshot, and the version after it was never trimmed."""
    based = is_based(table)
    try:
        # A handle that moved on since the decision would accept a stale commit: two messages, one offset.
        if based and holds(table, fence):
            return True
    except StaleSnapshot:
        pass
    table.refresh()  # whoever lost decides anew, on what is the newest now
    if local_path(table.path) is not None and not _in_log(table, table.version):
        raise QueueClientError(
            f"{table.path} has no log entry of its version {table.version}; nothing was changed"
        )
    return False


def _landed(table: Table, token: str, base: int, error: Exception) -> bool:
    """Whether a commit after ``base`` carries the token; QueueClientError if the log does not show it."""
    try:
        table.refresh()
        landed = table.landed(token, base)
        # A commit at a dead place has its token in memory; that others have every version after the base is sure.
        if landed is False or _in_log(table, base):  # else the log misses what was trimmed
            return bool(landed)
        reason = "its log was trimmed meanwhile"
    except Exception as second:
        if isinstance(second, DamagedTable) and isinstance(error, LostRace) and local_path(table.path) is not None:
            raise  # the disk refused the entry
        reason = first_line(second)
    raise _unknown(table, error, reason) from error


def _unknown(table: Table, error: Exception, reason: str) -> QueueClientError:
    reasons = "; ".join(dict.fromkeys([first_line(error), reason]))
    text = f"the outcome of a commit to {table.path} is unknown ({reasons}); {REPEAT}"
    return QueueClientError(text, outcome_unknown=True)


def _in_log(table: Table, version: int) -> bool:
    return table.folder.exists(entry_name(version))


def _set_aside(table: Table, *, put_back: bool = False) -> None:
    """Removes entries that a restore left over, unless others hold the table's lock (DUR-86); never fails."""
    try:
        with table.pinned(), committing(table.path, exclusive=True, patience=TRIM_PATIENCE):
            table.set_aside(put_back=put_back)
    except LockHeld:
        table.state.strays = []  # whoever meets them next tries again
    except Exception as error:
        _log.warning("entries of %s that a restore left over stay: %s", table.path, first_line(error))


def _trim(table: Table) -> None:
    """Trims the log of a local table unless others hold its lock; never fails."""
    if local_path(table.path) is None:
        return  # there a long log is cheap, and the compactor trims it
    try:
        trim_log(table.folder, layout.MESSAGES_RETENTION, TRIM_PATIENCE)
    except LockHeld:
        pass
    except Exception as error:
        _log.warning("trimming the log of %s failed: %s", table.path, first_line(error))
