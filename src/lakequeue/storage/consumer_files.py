"""Files that show running consumers. A file is replaced every minute, and removed when its consumer ends."""

from __future__ import annotations

import attrs

from lakequeue.model.clock import MICROS, to_micros
from lakequeue.model.consumer_processes import LARGEST, ConsumerFile, parse
from lakequeue.storage import layout
from lakequeue.storage.folder import Folder, Freed
from lakequeue.storage.stores import Store

SHOWN_SECONDS = 180
"""Age in seconds from which a file counts as silent: its consumer was probably killed, or cannot write."""
KEPT_SECONDS = 24 * 3600
"""Age in seconds at which the compactor removes a file."""
KEPT_SILENT = 50
"""Maximum number of silent files that the compactor keeps, even if consumers are killed again and again."""


def write(store: Store, root: str, number: str, content: ConsumerFile) -> None:
    """Writes or replaces the file of a consumer's run. Does nothing if a local root's directory was removed."""
    folder = store.folder(root)
    if folder.local is None or folder.folders("queues"):
        _folder(store, root).offer(_name(number), content.json().encode())


def remove(store: Store, root: str, number: str) -> None:
    _folder(store, root).remove([_name(number)])


def load(store: Store, root: str, now: int) -> list[ConsumerFile]:
    """Returns the last report of each consumer that has not removed its report. Oldest processes come first.

    A report is marked as ``silent`` if its consumer was killed or cannot write. ``now`` is in microseconds.
    """
    folder = _folder(store, root)
    since = now - SHOWN_SECONDS * MICROS
    names = [entry.name for entry in folder.files() if entry.size <= LARGEST]
    found = [each for each in folder.for_each(lambda name: _read(folder, name), names) if each is not None]
    found = [attrs.evolve(each, silent=to_micros(each.process.seen_at) < since) for each in found]
    return sorted(found, key=lambda each: (each.process.started_at, each.name))


def remove_old(store: Store, root: str, now: int) -> Freed:
    """Removes the files of consumers that have not reported for ``KEPT_SECONDS``, and files without a report.
    Keeps only the newest ``KEPT_SILENT`` files of other consumers that no longer report.
    """
    folder, begin, since = _folder(store, root), now - KEPT_SECONDS * MICROS, now - SHOWN_SECONDS * MICROS

    def seen(name: str) -> int:
        found = _read(folder, name)
        return 0 if found is None else to_micros(found.process.seen_at)

    names = [entry.name for entry in folder.files()]
    silent = [(at, name) for name, at in zip(names, folder.for_each(seen, names), strict=True) if at < since]
    silent.sort(reverse=True)
    old = [name for number, (at, name) in enumerate(silent) if at < begin or number >= KEPT_SILENT]
    return folder.remove(old)


def _folder(store: Store, root: str) -> Folder:
    return store.folder(f"{root}/{layout.CONSUMERS}")


def _name(number: str) -> str:
    return f"{number}.json"


def _read(folder: Folder, name: str) -> ConsumerFile | None:
    try:
        return parse(folder.read(name))
    except FileNotFoundError:  # its consumer has ended
        return None
