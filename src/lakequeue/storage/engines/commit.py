"""Commits a change if the versions on which it relies are unchanged. A token in the log proves the commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Generic, TypeVar

import attrs

from lakequeue.errors import SAFE_TO_REPEAT, DamagedTable, QueueClientError
from lakequeue.storage.delta_log import has_entry
from lakequeue.storage.engines.commit_failures import LostRace, StaleSnapshot
from lakequeue.storage.engines.commit_tokens import new_token
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.engines.log_upkeep import set_aside, trim
from lakequeue.storage.engines.point import Table
from lakequeue.storage.roots import local_path
from lakequeue.storage.snapshot import ReplacedLog
from lakequeue.storage.store_failures import first_line, unanswered_version

OLDEST_BASE = 1.0
"""Maximum age of a log's last check, in seconds. A commit to an object store checks the log again if the last
check is older. See docs/internals/fence.md.
"""
LONG_COMMIT = 600.0
"""A commit that took this many seconds searches the log for its token, as its process may have been suspended."""
TRIM_EVERY = 100
"""Number of commits after which a local log is trimmed again."""
_UNANSWERED = 2
"""Maximum number of repeats of a commit for which storage gave no answer. Any attempt may still succeed."""
_T_co = TypeVar("_T_co", covariant=True)
Ids = Mapping[str, int]
"""Application ids with their versions."""


@attrs.frozen
class Change(Generic[_T_co]):
    """A decision that a commit will carry out."""

    fence: Ids
    """Versions of application ids on which the decision relies. 0 stands for an id that was never committed."""
    ids: Ids
    """Versions of application ids that the commit sets."""
    write: Callable[[Ids, str], None]
    """Function that writes the commit, given the versions of application ids to set and the commit's token."""
    value: _T_co
    found: Callable[[], bool] = lambda: False
    """Called after a lost race. Returns True if the newest snapshot has the same change by another process."""
    counts: Ids = MappingProxyType({})
    """Number of changed messages for each kind of change, such as ``send``."""
    late: bool = False
    """True if the change is decided before the wait for a turn. Meanwhile other processes may make this change."""
    patient: bool = True
    """False to stop waiting for the turn as soon as another process commits. Matters only if ``late`` is True."""


class Ended(Enum):
    """Outcome of an attempt to commit. After ``TRY_AGAIN`` and ``LOST``, the newest snapshot is loaded."""

    LANDED = auto()
    """The change is in the log, by this commit or by the same change of another process."""
    TRY_AGAIN = auto()
    """The commit failed, but the decision is still right. Try the same commit again."""
    LOST = auto()
    """Another commit came first, so that the decision is out of date. Decide again."""


class Commit:
    """A commit and its attempts. The caller must lock the table's handle from the decision until the outcome."""

    def __init__(self, table: Table, change: Change[object]) -> None:
        self._table = table
        self._change = change
        self._lineage = table.lineage
        self._token = new_token(change.counts, table.lost_races)
        self._stale = 0
        """Number of attempts that failed because files were missing. After two, the table counts as damaged."""
        self._unanswered = 0
        self._unanswered_version = 0
        """Newest version that an attempt without answer may still create, if storage carries it out late."""
        self._before_unanswered = 0
        """Version before the first attempt without answer. The token is searched in later versions."""

    def attempt(self) -> Ended:
        """Tries to commit once, and returns the outcome.

        Raises:
            QueueClientError: storage failed, or other processes held the table's lock too long. With
                ``outcome_unknown``, the commit may have landed or may still land.
        """
        table = self._table
        if table.state.strays:
            set_aside(table)
        wall, machine = time.time(), time.monotonic()
        try:
            # no log entries may be removed from the check of the base to the answer, see `locks`
            with table.pinned() as pin, committing(table.path, exclusive=table.commits_alone, folder=pin):
                ended = self._try(wall, machine) if self._may_commit() else self._came_late()
        except ReplacedLog as error:
            if error.in_place:
                set_aside(table)
            raise
        if ended is Ended.LANDED and table.version % TRIM_EVERY == 0:
            trim(table)
        table.lost_races = 0 if ended is Ended.LANDED else table.lost_races + (ended is Ended.LOST)
        return ended

    def give_up(self) -> None:
        """Raises QueueClientError if storage may still carry out an attempt, so that no repeat is safe."""
        if self._table.version < self._unanswered_version:
            raise _unknown(self._table, TimeoutError("no answer came"), "it may still land")

    def _holds(self) -> bool:
        """True if the loaded snapshot has the versions of the fence, and the log was not replaced."""
        fence = self._change.fence.items()
        same = self._table.lineage is self._lineage  # a restored log may have the same numbers again
        return same and all(self._table.transaction(app_id) == version for app_id, version in fence)

    def _may_commit(self) -> bool:
        """True if the fence holds and the log still has the snapshot's version. Else loads the newest snapshot."""
        table = self._table
        try:
            # A handle that moved on since the decision would accept a stale commit: two messages, one offset.
            if is_base_in_log(table) and self._holds():
                return True
            table.refresh()  # after a lost race, the caller decides again on the newest snapshot
            if local_path(table.path) is not None and not has_entry(table.folder, table.version):
                raise QueueClientError(
                    f"{table.path} has no log entry of its version {table.version}; nothing was changed"
                )
        except Exception as error:
            if not self._unanswered:
                raise
            raise _unknown(table, error, "an earlier try may have landed, or still land") from error
        return False

    def _came_late(self) -> Ended:
        """Returns LANDED if an earlier attempt without answer has landed, and LOST if not."""
        late = TimeoutError("no answer came")
        if self._unanswered_version and _landed(self._table, self._token, self._before_unanswered, late):
            return Ended.LANDED
        self.give_up()
        return Ended.LOST

    def _try(self, wall: float, machine: float) -> Ended:
        """Writes the commit, and returns the outcome.

        The attempt began at ``wall`` on the wall clock, and at ``machine`` on the monotonic clock, in seconds.
        """
        table = self._table
        base = table.version
        try:
            self._change.write(self._change.ids, self._token)
        except Exception as error:
            if isinstance(error, ReplacedLog) and error.outcome_unknown:
                raise
            tried = table.version + 1  # `add` may have moved on before it failed
            # A commit may land and still raise: post-commit work failed, or the answer was lost.
            by_another = isinstance(error, LostRace) and self._change.found()
            if by_another or _landed(table, self._token, base, error):
                return Ended.LANDED
            self._check_repeats(error, tried)
        else:
            # a monotonic clock stops while the machine is suspended; a wall clock may be set back
            took = max(time.time() - wall, time.monotonic() - machine)
            if took < LONG_COMMIT or _landed(table, self._token, base, TimeoutError(f"it took {took:.0f} s")):
                return Ended.LANDED
        return Ended.TRY_AGAIN if self._holds() else Ended.LOST

    def _check_repeats(self, error: Exception, tried: int) -> None:
        """Raises an error unless the commit may be tried again after ``error``."""
        table = self._table
        self._stale += isinstance(error, StaleSnapshot)
        claimed = unanswered_version(error, tried)
        if claimed is not None:
            self._before_unanswered = self._before_unanswered if self._unanswered else claimed - 1
            self._unanswered += 1
        self._unanswered_version = max(self._unanswered_version, claimed or 0)
        repeats = isinstance(error, LostRace) if claimed is None else self._unanswered <= _UNANSWERED
        if table.version < self._unanswered_version:
            if not (repeats and self._holds()):
                raise _unknown(table, error, "it may still land") from error
        elif (self._stale > 1 or not repeats) and self._holds():
            if isinstance(error, DamagedTable):
                raise error
            raise QueueClientError(f"the commit to {table.path} failed: {first_line(error)}") from error


def is_base_in_log(table: Table) -> bool:
    """True if the log still has the loaded snapshot's entry, so that a commit may follow it (DUR-80).

    On object stores, the log is checked every ``OLDEST_BASE`` seconds. If this check finds a newer version,
    returns False. Raises ReplacedLog if another log has replaced the log.
    """
    if local_path(table.path) is not None:
        return table.is_intact()
    version = table.version
    if abs(time.time() - table.state.confirmed_at) >= OLDEST_BASE:
        table.confirm()
    return table.version == version


def _landed(table: Table, token: str, base: int, error: Exception) -> bool:
    """True if a version after ``base`` has the token. Raises QueueClientError if that cannot be found out."""
    try:
        table.refresh()
        landed = table.landed(token, base)
        # Sure if all versions after the base were read without the token, or if the base's entry exists. Otherwise
        # the commit may be at a trimmed version, and exist in memory only.
        if (not landed and table.has_read_since(base)) or has_entry(table.folder, base):
            return landed
        reason = "its log was trimmed meanwhile"
    except Exception as second:
        if isinstance(second, DamagedTable) and isinstance(error, LostRace) and local_path(table.path) is not None:
            raise  # the disk refused the entry
        reason = first_line(second)
    raise _unknown(table, error, reason) from error


def _unknown(table: Table, error: Exception, reason: str) -> QueueClientError:
    reasons = "; ".join(dict.fromkeys([first_line(error), reason]))
    text = f"the outcome of a commit to {table.path} is unknown ({reasons}); {SAFE_TO_REPEAT}"
    return QueueClientError(text, outcome_unknown=True)
