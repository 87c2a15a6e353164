"""Removes unused files, old log entries, empty directories and deleted queues. Local files are removed under the
table's exclusive lock, files of object stores only after days. All functions may run twice, or be interrupted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import uuid
from collections.abc import Collection
from contextlib import ExitStack
from operator import attrgetter

from lakequeue.storage import layout, no_links
from lakequeue.storage.checked_names import shard_folders
from lakequeue.storage.clock_guard import storage_now
from lakequeue.storage.delta_log import LiveFile, listed
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.log_trimming import trim_below, trim_log, wants_checkpoint
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder, Freed, ListedFile
from lakequeue.storage.snapshot import Snapshot
from lakequeue.storage.store_failures import first_line

VACUUM_EVERY = 100
"""Number of commits to a local table between two checks for unused files."""
VACUUMING = "lakequeue-vacuum"
"""Name of the thread that removes unused files."""
PATIENCE = 5.0
"""Seconds to wait for a table's exclusive lock. If the lock stays taken, the compactor's next pass tries again."""
_BATCH = 100
"""Maximum number of files to remove before the lock is released, because commits wait for the lock."""
_NEEDED = "_needed"
"""Directory for the lists that ``vacuum`` writes. A list names the files that were needed when it was written."""
_LISTS = 8
"""Approximate number of lists that the directory ``_NEEDED`` keeps."""
_PINS = "_pinned"
"""Name of the file whose time shows when ``pin_files`` was called last."""
_BULK = "bulk/"
_WAITING = {_BULK: 3600 * layout.PINNED_HOURS, "sent/": 60}
"""Seconds for which files that are not committed yet are kept, by directory; see ``staged_files``."""
_log = logging.getLogger("lakequeue")


def pin_files(messages: Folder) -> None:
    """Keeps all files of the messages table for ``PINNED_HOURS`` hours. Call this before loading a snapshot."""
    if messages.local is None:
        return  # On a store all files stay longer anyway.
    with contextlib.suppress(OSError):
        no_links.touch(messages.local, _PINS)


def vacuum_if_busy(table: Table, retention: layout.Retention) -> None:
    """Every ``VACUUM_EVERY`` commits to a local table, calls ``vacuum`` in a thread if due. Never fails."""
    if table.folder.local is not None and table.version % VACUUM_EVERY == 0:
        threading.Thread(target=_vacuum_if_due, args=(table, retention), name=VACUUMING).start()


def _vacuum_if_due(table: Table, retention: layout.Retention) -> None:
    try:
        if _wants_list(_lists(table.folder), storage_now(table.folder), _kept_seconds(table.folder, retention)):
            vacuum(table, retention, None, patience=1)
    except LockHeld:
        pass
    except Exception as error:
        _log.warning("removing files of %s failed: %s", table.path, first_line(error))


def vacuum(
    table: Table, retention: layout.Retention, waiting: Collection[str] | None = (), patience: float = PATIENCE
) -> Freed:
    """Removes data files that no version within the retention time needs. Returns their number and size.

    A pass that is due writes a list of the files that the table needs now. To remove a file, a pass needs a list
    that is newer than the file and older than the retention time. The file is removed if neither this list nor any
    later list names it.

    Args:
        table: any table of the root. For a local table, the log is read instead of the loaded snapshot.
        waiting: uncommitted files of bulk sends, which are kept. None keeps all files of bulk sends.
        patience: seconds to wait for the table's lock.

    Raises:
        LockHeld: another process holds the lock. The next pass removes the remaining files.
    """
    with table.folder.pinned() as folder:
        return _vacuum(table, folder, retention, waiting, patience)


def _vacuum(
    table: Table, folder: Folder, retention: layout.Retention, waiting: Collection[str] | None, patience: float
) -> Freed:
    needed = _needed_now(table, folder, patience).union(waiting or ())
    keep = _kept_seconds(folder, retention)
    lists, now = _lists(folder), storage_now(folder)
    if _wants_list(lists, now, keep):
        folder.create(f"{_NEEDED}/{uuid.uuid4().hex}", json.dumps(sorted(needed)).encode())
        lists, now = _lists(folder), storage_now(folder)
    old = [each for each in lists if each.modified <= now - keep]
    if not old:
        return Freed()
    unused, freed = _written_before(folder, old[-1].modified, now) - needed, Freed()
    if waiting is None:
        unused = {name for name in unused if not name.startswith(_BULK)}
    for each in lists[len(old) - 1 :] if unused else []:
        try:
            unused.difference_update(json.loads(folder.read(each.name)))
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            # Another pass removed it, a power cut emptied it, or another program wrote it.
            folder.remove([each.name])
            return freed
    names = sorted(unused)
    for start in range(0, len(names), _BATCH):
        # A process that is committing one of these files holds the lock.
        with committing(table.path, exclusive=True, patience=patience):
            named = {file.name for file in _newest(table, folder)}
            freed += folder.remove(name for name in names[start : start + _BATCH] if name not in named)
    folder.remove(each.name for each in old[:-1])
    return freed


def _written_before(folder: Folder, instant: float, now: float) -> set[str]:
    def last(name: str) -> float:
        return min(instant, now - next((waits for begin, waits in _WAITING.items() if name.startswith(begin)), 0))

    return {
        file.name
        for file in folder.files()
        if not file.name.startswith(("_", ".")) and file.modified <= last(file.name)
    }


def _needed_now(table: Table, folder: Folder, patience: float) -> set[str]:
    """Returns the files of all versions in a local log. On object stores, returns the newest version's files."""
    if folder.local is None:
        table.refresh()
        return {file.name for file in table.files()}
    # Nothing is trimmed while the lock is held.
    with committing(table.path, exclusive=False, patience=patience):
        return _named_since(folder, listed(folder).readable_from)


def _named_since(folder: Folder, version: int) -> set[str]:
    snapshot = Snapshot(folder, version)
    names = {file.name for file in snapshot.files()}
    with contextlib.suppress(FileNotFoundError):
        while entry := snapshot.next():
            names.update(file.name for file in entry.added)
            snapshot.apply(entry)
    return names


def _newest(table: Table, folder: Folder) -> list[LiveFile]:
    if folder.local is None:
        table.refresh()
        return table.files()
    # Does not use the handle, because its owner may be deciding on its snapshot.
    return Snapshot(folder).files()


def _lists(folder: Folder) -> list[ListedFile]:
    return sorted(folder.files(_NEEDED), key=attrgetter("modified"))


def _wants_list(lists: list[ListedFile], now: float, keep: float) -> bool:
    return not lists or lists[-1].modified <= now - keep / _LISTS


def _kept_seconds(folder: Folder, retention: layout.Retention) -> float:
    if folder.local is None:
        return 3600.0 * retention.remote_file_hours
    pinned = 3600.0 * layout.PINNED_HOURS
    with contextlib.suppress(FileNotFoundError):
        if folder.entry(_PINS).modified > storage_now(folder) - pinned:
            return max(pinned, 60.0 * retention.file_minutes)
    return 60.0 * retention.file_minutes


def trim(table: Table, retention: layout.Retention) -> Freed:
    """Writes a checkpoint if due, and removes old log entries. Returns the number and size of removed files."""
    table.refresh()
    if wants_checkpoint(table.folder, table.version, retention):
        with committing(table.path, exclusive=table.commits_alone, patience=PATIENCE):
            table.checkpoint()
    return trim_log(table.folder, retention, PATIENCE)


def sweep(table: Table, retention: layout.Retention) -> Freed:
    """Removes unneeded log entries and files of a table. Returns the number and size of removed files."""
    return trim(table, retention) + vacuum(table, retention)


def free(table: Table, seconds: float) -> Freed:
    """Removes local files and log entries that were not needed in the last ``seconds`` (DUR-65). A lease,
    DataFrame or view that was opened earlier may then lack files, and must be opened again. Raises LockHeld.
    """
    with table.folder.pinned() as folder, committing(table.path, exclusive=True, patience=PATIENCE):
        table.checkpoint()
        found, now = listed(folder), storage_now(folder)
        begin = found.readable_from
        base = max([begin, *(number for number, file in found.entries.items() if file.modified <= now - seconds)])
        named, needed = _named_since(folder, begin), _named_since(folder, base)
        unused = _written_before(folder, now - seconds, now) | {each for each in named if folder.exists(each)}
        return folder.remove(unused - needed) + trim_below(folder, base)


def remove_empty_folders(table: Folder, kept_seconds: float) -> None:
    """Removes the empty directories of a local table that have not changed in the last ``kept_seconds``."""
    if table.local is None:
        return
    horizon = storage_now(table) - kept_seconds
    # Reads all times first, because removing a directory changes the time of the one above.
    touched = {}
    for folder, _, _ in os.walk(table.local):
        with contextlib.suppress(FileNotFoundError):  # Another compactor removes it.
            touched[folder] = os.stat(folder).st_mtime
    for folder in sorted(touched, reverse=True):  # Inner directories first.
        inside = os.path.relpath(folder, table.local)
        if inside != "." and not inside.startswith(("_", ".")) and touched[folder] < horizon:
            with contextlib.suppress(OSError):  # The directory is not empty, or gone.
                table.remove_empty(inside)


def remove_tables(folder: Folder, until: float = math.inf) -> Freed:
    """Removes the directory of a queue without a row in the catalog. Raises LockHeld if a table is locked.

    Keeps the directory if a file was changed after ``until``, in seconds since 1970.
    """
    with ExitStack() as alone:
        if folder.local is not None:
            for shard in map(str, shard_folders(folder.folders())):
                for table in folder.folders(shard):
                    path = f"{folder.uri}/{shard}/{table}"
                    with contextlib.suppress(FileNotFoundError):  # Another compactor removes it.
                        alone.enter_context(committing(path, exclusive=True, patience=PATIENCE))
        files = list(folder.files())
        if max((file.modified for file in files), default=0.0) > until:
            return Freed()
        if folder.local is None:  # The files are listed already.
            return folder.remove(file.name for file in files)
        folder.remove_all()
    return Freed(len(files), sum(file.size for file in files))
