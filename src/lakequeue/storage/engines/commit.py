"""One commit under a fence: checked, marked with a token, its outcome known for sure."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping

from lakequeue.errors import DamagedTable, QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.delta_log import entry_name, read_entry
from lakequeue.storage.engines.interface import LostRace, StaleSnapshot, Table
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.log_trimming import trim_log
from lakequeue.storage.engines.retry import Races
from lakequeue.storage.folder import Folder
from lakequeue.storage.roots import local_path
from lakequeue.storage.store_failures import first_line, unsettled_version

OLDEST_BASE = 3600.0
"""Seconds after which a snapshot is too old to commit on, where no lock protects its log."""
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

_LOST = "-lost-"
"""Stands in a token before the number of races that were lost before the commit."""

_log = logging.getLogger("lakequeue")


class StaleAttributes(Exception):
    """The queue's attributes changed since messages were validated; validate again."""


def commit(table: Table, fence: Mapping[str, int], attempt: Callable[[str], None]) -> bool:
    """Runs ``attempt(token)`` if the decision was made on the loaded snapshot.

    Args:
        table: the handle, locked by the caller from the decision until this returns.
        fence: application ids with the versions that the decision was based on (0: never committed).
        attempt: makes the commit; it must carry the fence's ids and the token.

    Returns:
        True if it is committed; False if the race is lost, and then the newest snapshot is loaded.

    Raises:
        QueueClientError: storage failed, or others held the table's lock for too long; with ``outcome_unknown`` if
            not even the token search could tell whether it landed, or whether it still will.
    """
    landed = _commit(table, fence, attempt, f"{uuid.uuid4().hex}{_LOST}{table.lost_races}")
    table.lost_races = 0 if landed else table.lost_races + 1
    return landed


def lost_races(folder: Folder, version: int, most: int) -> tuple[int, int]:
    """The number of newest commits of a log that can be read, up to a version, and the races lost before them."""

    def lost(number: int) -> int | None:
        try:
            token = read_entry(folder, number).token or ""
        except FileNotFoundError:  # trimmed
            return None
        races = token.rpartition(_LOST)[2]
        return int(races) if races.isdigit() else 0

    found = folder.for_each(lost, range(max(0, version - most + 1), version + 1))
    known = [races for races in found if races is not None]
    return len(known), sum(known)


def _commit(table: Table, fence: Mapping[str, int], attempt: Callable[[str], None], token: str) -> bool:
    stale, unanswered, unsettled, races = 0, 0, 0, Races(_REPEATS)
    for _ in races:
        # no log entries may be removed from the check of the base to the answer, see `locks`
        with committing(table.path, exclusive=table.commits_alone):
            if not _may_commit(table, fence):
                if table.version < unsettled:
                    raise _unknown(table, TimeoutError("no answer came"), "it may still land")
                return False
            base, wall, machine = table.version, time.time(), time.monotonic()
            try:
                attempt(token)
            except Exception as error:
                # A commit may land and still raise: post-commit work failed, or the answer was lost.
                landed = _landed(table, token, base, error)
                # files of an old snapshot may be gone, those of the newest one must not be
                stale += isinstance(error, StaleSnapshot)
                claimed = unsettled_version(error, base + 1)
                unanswered += claimed is not None
                unsettled = max(unsettled, claimed or 0)
                repeats = isinstance(error, LostRace) if claimed is None else unanswered <= _UNANSWERED
                if not landed and table.version < unsettled:
                    if not repeats or not holds(table, fence):
                        raise _unknown(table, error, "it may still land") from error
                elif not landed and (stale > 1 or not repeats) and holds(table, fence):
                    raise QueueClientError(f"the commit to {table.path} failed: {first_line(error)}") from error
            else:
                # a monotonic clock stops while the machine is suspended; a wall clock may be set back
                took = max(time.time() - wall, time.monotonic() - machine)
                landed = took < LONG_COMMIT or _landed(table, token, base, TimeoutError(f"it took {took:.0f} s"))
        if landed:
            if table.version % TRIM_EVERY == 0:
                _trim(table)
            return True
        races.lose()
    return False


def holds(table: Table, fence: Mapping[str, int]) -> bool:
    """Whether the loaded snapshot has these versions of the application ids."""
    return all((table.transaction(app_id) or 0) == version for app_id, version in fence.items())


def _may_commit(table: Table, fence: Mapping[str, int]) -> bool:
    """Whether the fence holds on the loaded snapshot, and the version after it was never trimmed."""
    # "Create if absent" succeeds at a dead place once that version was made and trimmed. Entries are removed
    # oldest first, so it was not as long as the entry of the base exists.
    local = local_path(table.path)
    fresh = _in_log(table, table.version) if local is not None else time.time() - table.loaded_at < OLDEST_BASE
    try:
        # A handle that moved on since the decision would accept a stale commit: two messages, one offset.
        if fresh and holds(table, fence):
            return True
    except StaleSnapshot:
        pass
    table.refresh()  # whoever lost decides anew, on what is the newest now
    if local is not None and not _in_log(table, table.version):
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
    return QueueClientError(
        f"the outcome of a commit to {table.path} is unknown ({first_line(error)}; {reason}); "
        "repeating it is safe",
        outcome_unknown=True,
    )


def _in_log(table: Table, version: int) -> bool:
    return table.folder.exists(entry_name(version))


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
