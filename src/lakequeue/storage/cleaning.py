"""Removing what tables no longer need: unused files, old log entries, empty directories, deleted queues.

Nothing here commits, and only this and `log_trimming` remove files. On local disks that happens while no process
is in a commit to the table, see `locks`; on object stores only what is days old is removed. It may run twice, in
two processes at once, or in part, without harm.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection
from contextlib import ExitStack

from lakequeue.storage import layout
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.engines.log_trimming import trim_log, wants_checkpoint
from lakequeue.storage.folder import Folder, Freed
from lakequeue.storage.roots import local_path

PATIENCE = 5.0
"""Seconds that the compactor waits for the exclusive lock of a table."""
_BATCH = 500
"""Files removed under one lock."""


def vacuum(table: Table, retention: layout.Retention, waiting: Collection[str] = ()) -> Freed:
    """Removes data files that no version within the retention names.

    Files that were never committed are removed at the same age, unless they are in ``waiting``.

    Raises:
        LockHeld: another process holds the lock; what is left is removed the next time.
    """
    folder = table.folder
    hours = retention.file_hours if folder.local is not None else retention.remote_file_hours
    unused, freed = sorted(set(table.unused(hours)) - set(waiting)), Freed()
    for start in range(0, len(unused), _BATCH):
        # a process that wrote one of these files holds the lock until it has committed it
        with committing(table.path, exclusive=True, patience=PATIENCE):
            table.refresh()
            named = {file.name for file in table.files()}
            freed += folder.remove(name for name in unused[start : start + _BATCH] if name not in named)
    return freed


def trim(table: Table, retention: layout.Retention) -> Freed:
    """Removes log entries, see ``trim_log``; makes a checkpoint before if one is due."""
    table.refresh()
    if wants_checkpoint(table.folder, table.version, retention):
        with committing(table.path, exclusive=table.commits_alone, patience=PATIENCE):
            table.checkpoint()
    return trim_log(table.folder, retention, PATIENCE)


def remove_empty_folders(table_path: str, kept_seconds: float) -> None:
    """Removes empty directories that segments left behind on local disks, once unchanged for ``kept_seconds``.

    A writer creates a directory right before it uses it, so younger ones stay.
    """
    local = local_path(table_path)
    if local is None:
        return
    horizon = time.time() - kept_seconds
    # all at once, as removing a directory touches the one above
    touched = {folder: os.stat(folder).st_mtime for folder, _, _ in os.walk(local)}
    for folder in sorted(touched, reverse=True):  # inner ones first
        inside = os.path.relpath(folder, local)
        if inside != "." and not inside.startswith(("_", ".")) and touched[folder] < horizon:
            with contextlib.suppress(OSError):  # not empty, or gone
                os.rmdir(folder)


def remove_tables(folder: Folder, kept_seconds: float = 0) -> Freed:
    """Removes the directory of a queue that the catalog does not name, unless a file is younger than
    ``kept_seconds``.

    Raises:
        LockHeld: another process is in a commit to one of them, which would create parts of it again.
    """
    with ExitStack() as alone:
        if folder.local is not None:
            for shard in filter(str.isdigit, folder.folders()):
                for table in folder.folders(shard):
                    path = f"{folder.uri}/{shard}/{table}"
                    with contextlib.suppress(FileNotFoundError):  # another compactor removes it
                        alone.enter_context(committing(path, exclusive=True, patience=PATIENCE))
        files = list(folder.files())
        if time.time() - max((file.modified for file in files), default=0.0) < kept_seconds:
            return Freed()
        if folder.local is None:
            return folder.remove(file.name for file in files)
        shutil.rmtree(folder.local, ignore_errors=True)
    return Freed(len(files), sum(file.size for file in files))
