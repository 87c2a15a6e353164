"""Removing what tables no longer need: unused files, old log entries, empty directories, deleted queues.

The compactor calls most of it; busy tables of local disks remove their own unused files as they commit. Nothing
here commits, and only this and ``log_trimming`` remove files. On local disks that happens while no process
is in a commit to the table, see ``locks``; on object stores only what is days old is removed. It may run twice, in
two processes at once, or in part, without harm.
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
from lakequeue.storage.clock_guard import storage_now
from lakequeue.storage.delta_log import LiveFile, listed
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.log_trimming import trim_below, trim_log, wants_checkpoint
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Entry, Folder, Freed
from lakequeue.storage.found_names import shard_folders
from lakequeue.storage.snapshot import Snapshot
from lakequeue.storage.store_failures import first_line

VACUUM_EVERY = 100
"""Commits to a table of a local disk between two attempts to remove its unused files."""
VACUUMING = "lakequeue-vacuum"
"""Name of the thread that does it."""
PATIENCE = 5.0
"""Seconds that the compactor waits for the exclusive lock of a table."""
_BATCH = 100
"""Files removed under one lock, for which commits wait."""
_NEEDED = "_needed"
"""Directory of lists of the files that a table needed at the time of a pass."""
_LISTS = 8
"""About as many are kept."""
_PINS = "_pinned"
"""File whose age is that of the last call of ``pin_files``."""
_BULK = "bulk/"
_WAITING = {_BULK: 3600 * layout.PINNED_HOURS, "sent/": 60}
"""Directories of files that wait for a commit, and how many seconds; see ``staged_files``, ``staged_sends``."""
_log = logging.getLogger("lakequeue")


def pin_files(messages: Folder) -> None:
    """Makes the files stay for ``PINNED_HOURS`` that the table of messages names from now on: somebody will read
    some of them by name, whatever is merged or dropped meanwhile.

    Call it before the snapshot is loaded. Who may only read a root can pin nothing.
    """
    if messages.local is None:
        return  # there all files stay longer
    with contextlib.suppress(OSError):
        no_links.touch(messages.local, _PINS)


def vacuum_if_busy(table: Table, retention: layout.Retention) -> None:
    """Calls ``vacuum`` after one commit in ``VACUUM_EVERY`` to a table of a local disk; never fails.

    It runs in a thread of its own, so that no call waits until hundreds of files are removed. Files of bulk sends
    are left to the compactor, which knows those that wait for their commit.
    """
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
    """Removes data files that no version needed within the retention.

    Delta's log does not say when a file was removed, so passes list what is needed. A file goes if it is older
    than the newest list that is as old as the retention, and neither that list names it nor a later one.

    Args:
        table: any table of the root; on local disks its snapshot is not used, as another thread may.
        retention: how long files stay.
        waiting: uncommitted files of bulk sends that stay; None: all that bulk sends wrote stays.
        patience: seconds to wait for the table's lock.

    Raises:
        LockHeld: another process holds the lock; what is left is removed the next time.
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
            # another pass removed it, a power cut emptied it, or it is none of ours
            folder.remove([each.name])
            return freed
    names = sorted(unused)
    for start in range(0, len(names), _BATCH):
        # a process that wrote one of these files holds the lock until it has committed it
        with committing(table.path, exclusive=True, patience=patience):
            named = {file.name for file in _newest(table, folder)}
            freed += folder.remove(name for name in names[start : start + _BATCH] if name not in named)
    folder.remove(each.name for each in old[:-1])
    return freed


def _written_before(folder: Folder, instant: float, now: float) -> set[str]:
    """Data files of a table; those of sends only if they have waited for too long to be committed."""

    def last(name: str) -> float:
        return min(instant, now - next((waits for begin, waits in _WAITING.items() if name.startswith(begin)), 0))

    return {
        file.name
        for file in folder.files()
        if not file.name.startswith(("_", ".")) and file.modified <= last(file.name)
    }


def _needed_now(table: Table, folder: Folder, patience: float) -> set[str]:
    """The files of every version that the log still reaches on local disks, elsewhere of the newest one."""
    if folder.local is None:
        table.refresh()
        return {file.name for file in table.files()}
    # meanwhile nothing is trimmed
    with committing(table.path, exclusive=False, patience=patience):
        return _named_since(folder, listed(folder).readable_from)


def _named_since(folder: Folder, version: int) -> set[str]:
    """The files of a version and of all later ones."""
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
    # not by the handle, on whose snapshot its owner may be about to decide
    return Snapshot(folder).files()


def _lists(folder: Folder) -> list[Entry]:
    return sorted(folder.files(_NEEDED), key=attrgetter("modified"))


def _wants_list(lists: list[Entry], now: float, keep: float) -> bool:
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
    """Removes log entries, see ``trim_log``; makes a checkpoint before if one is due."""
    table.refresh()
    if wants_checkpoint(table.folder, table.version, retention):
        with committing(table.path, exclusive=table.commits_alone, patience=PATIENCE):
            table.checkpoint()
    return trim_log(table.folder, retention, PATIENCE)


def sweep(table: Table, retention: layout.Retention) -> Freed:
    """Removes unneeded log entries and files of a table of the root."""
    return trim(table, retention) + vacuum(table, retention)


def free(table: Table, seconds: float) -> Freed:
    """Removes at once what no reader needs that began in the last ``seconds``, on a local disk (DUR-65).

    Whoever reads longer, as a lease, a DataFrame or a view may, finds no file, and can begin again. Files of bulk
    sends that wait for their commit stay.

    Raises:
        LockHeld: another process holds the lock; nothing was removed.
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
    """Removes empty directories that segments left behind on local disks, once unchanged for ``kept_seconds``.

    A writer creates a directory right before it uses it, so younger ones stay.
    """
    if table.local is None:
        return
    horizon = storage_now(table) - kept_seconds
    # all at once, as removing a directory touches the one above
    touched = {}
    for folder, _, _ in os.walk(table.local):
        with contextlib.suppress(FileNotFoundError):  # another compactor removes it
            touched[folder] = os.stat(folder).st_mtime
    for folder in sorted(touched, reverse=True):  # inner ones first
        inside = os.path.relpath(folder, table.local)
        if inside != "." and not inside.startswith(("_", ".")) and touched[folder] < horizon:
            with contextlib.suppress(OSError):  # not empty, or gone
                table.remove_empty(inside)


def remove_tables(folder: Folder, until: float = math.inf) -> Freed:
    """Removes the directory of a queue that the catalog does not name, unless a file was written after ``until``.

    Raises:
        LockHeld: another process is in a commit to one of them, which would create parts of it again.
    """
    with ExitStack() as alone:
        if folder.local is not None:
            for shard in map(str, shard_folders(folder.folders())):
                for table in folder.folders(shard):
                    path = f"{folder.uri}/{shard}/{table}"
                    with contextlib.suppress(FileNotFoundError):  # another compactor removes it
                        alone.enter_context(committing(path, exclusive=True, patience=PATIENCE))
        files = list(folder.files())
        if max((file.modified for file in files), default=0.0) > until:
            return Freed()
        if folder.local is None:  # they are listed already
            return folder.remove(file.name for file in files)
        folder.remove_all()
    return Freed(len(files), sum(file.size for file in files))
