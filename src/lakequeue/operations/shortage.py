"""Finds out if a root's disk is short of space, and names the largest queues and a remedy."""

from __future__ import annotations

import attrs

from lakequeue.operations.pool import concurrently
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.inspection.environment import FREE_BYTES, FREE_FILES
from lakequeue.storage.reserve import Space, space_of

LOW_BYTES, LOW_FILES = 10 * 2**30, 100_000
"""Numbers of free bytes and files of a disk below which space is short, see ``Space``."""
FULL_BYTES = 2**20
"""Free bytes below which the disk counts as full. A commit may need as much."""
_SHOWN = 3


@attrs.frozen
class Shortage:
    """A resource that a root's disk is short of.

    Attributes:
        text: a sentence.
        cure: the commands that free space.
        largest: names and sizes of the largest queues; empty if the shortage is not urgent.
        commands: the commands in ``cure``.
        full: True if calls fail because nothing fits any more.
    """

    text: str
    cure: str
    largest: str = ""
    queues: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    full: bool = False

    def without_names(self) -> Shortage:
        """Returns this shortage without names of queues, for callers who may not see every queue."""
        if not self.queues:
            return self
        cure, commands = _cure("QUEUE")
        return Shortage(self.text, cure, commands=commands, full=self.full)

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.text, self.cure, self.largest)))


def shortage(root: Root) -> Shortage | None:
    """Returns the shortage of the root's disk, or None. Below ``FREE_BYTES`` it also names the largest queues."""
    space = space_of(root.path)
    if space is None:
        return None
    if not (space.lacks_bytes(FREE_BYTES) or space.lacks_files(FREE_FILES)):
        cure = "make room, or run lakequeue compact --now 1h"
        low = space.lacks_bytes(LOW_BYTES) or space.lacks_files(LOW_FILES)
        return Shortage(_text(space), cure) if low else None
    rows = [row for row in root.rows() if row.deleted_at is None]
    largest = sorted(concurrently(lambda row: (_bytes(root, row), row.name), rows), reverse=True)[:_SHOWN]
    shown = ", ".join(f"{name} {size / 2**20:,.1f} MiB" for size, name in largest)
    names = tuple(name for _, name in largest)
    cure, commands = _cure(names[0] if names else "QUEUE")
    return Shortage(
        _text(space), cure, shown and f"the largest queues: {shown}", names, commands, full=_is_full(space)
    )


def _cure(name: str) -> tuple[str, tuple[str, ...]]:
    """Returns what frees space, first what loses nothing, and the commands in this text."""
    purge, compact = f"lakequeue purge {name}", "lakequeue compact --now 0"
    cure = f"{compact} frees the space of what is gone; if that is too little, {purge} drops its messages"
    return f"{cure} if nobody needs them, then {compact} frees their space", (compact, purge, compact)


def _is_full(space: Space) -> bool:
    return space.free_bytes < FULL_BYTES or space.free_files == 0


def _text(space: Space) -> str:
    if _is_full(space):
        return "the root's disk is full: sends, receives and deletes fail"
    free = f"{space.free_bytes / space.size_bytes:.0%} of the root's disk, {space.free_bytes / 2**20:,.0f} MiB,"
    files = "" if space.free_files is None else f", with room for {space.free_files:,} files"
    return f"only {free} is free{files}"


def _bytes(root: Root, row: QueueRow) -> int:
    folder = root.engine.store.folder(layout.tables_path(root.path, row.key))
    return sum(file.size for file in folder.files())
