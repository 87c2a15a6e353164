"""Files that show running consumers. Each run has one file, which is replaced every minute, and removed when the
run ends.
"""

from __future__ import annotations

from lakequeue.model.clock import MICROS, to_micros
from lakequeue.model.consumer_processes import LARGEST, ConsumerFile, parse
from lakequeue.storage import layout
from lakequeue.storage.folder import Folder, Freed
from lakequeue.storage.stores import Store

SHOWN_SECONDS = 180
"""Seconds for which a file shows a running consumer. A consumer with an older file was killed, or cannot write."""
KEPT_SECONDS = 3600
"""Seconds after which the compactor removes a file."""


def write(store: Store, root: str, number: str, content: ConsumerFile) -> None:
    """Writes or replaces the file of a consumer's run. Does nothing if the directory of a local root was
    removed.
    """
    folder = store.folder(root)
    if folder.local is None or folder.folders("queues"):
        _folder(store, root).offer(_name(number), content.json().encode())


def remove(store: Store, root: str, number: str) -> None:
    _folder(store, root).remove([_name(number)])


def load(store: Store, root: str, now: int) -> list[ConsumerFile]:
    """Returns the last report of each running consumer, with the oldest process first. ``now`` is in
    microseconds.
    """
    folder = _folder(store, root)
    since = now - SHOWN_SECONDS * MICROS
    names = [entry.name for entry in folder.files() if entry.size <= LARGEST]
    found = [each for each in folder.for_each(lambda name: _read(folder, name), names) if each is not None]
    living = [each for each in found if to_micros(each.process.seen_at) >= since]
    return sorted(living, key=lambda each: (each.process.started_at, each.name))


def remove_old(store: Store, root: str, now: int) -> Freed:
    """Removes the files of consumers that were killed, and files that hold no report."""
    folder, since = _folder(store, root), now - KEPT_SECONDS * MICROS

    def is_old(name: str) -> bool:
        found = _read(folder, name)
        return found is None or to_micros(found.process.seen_at) < since

    names = [entry.name for entry in folder.files()]
    old = folder.for_each(is_old, names)
    return folder.remove(name for name, gone in zip(names, old, strict=True) if gone)


def _folder(store: Store, root: str) -> Folder:
    return store.folder(f"{root}/{layout.CONSUMERS}")


def _name(number: str) -> str:
    return f"{number}.json"


def _read(folder: Folder, name: str) -> ConsumerFile | None:
    try:
        return parse(folder.read(name))
    except FileNotFoundError:  # its consumer has ended
        return None
