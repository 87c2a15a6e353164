"""Finds out if a root's disk is short of space, and names the largest queues and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from lakequeue.operations.advice import Advice, Remedy
from lakequeue.operations.pool import concurrently
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.inspection.environment import FREE_BYTES, FREE_FILES
from lakequeue.storage.reserve import Space, space_of

LOW_BYTES, LOW_FILES = 10 * 2**30, 100_000
"""Space of a disk is short if fewer bytes or files than these are free; see ``Space``."""
FULL_BYTES = 2**20
"""A disk counts as full if fewer bytes than this are free: a commit may need as many."""
OTHERS_SHARE = 0.1
"""Other files fill the disk if all queues take less than this share of its used bytes."""
PURGED_SHARE = 0.01
"""A purge of the largest queue is advised if it takes this share of the disk."""
_SHOWN = 3


@attrs.frozen
class Shortage:
    """A resource that a root's disk is short of.

    Attributes:
        text: a sentence.
        hint: what helps, in words.
        steps: the commands that free space.
        largest: sizes in bytes of the largest queues by name; empty if the shortage is not urgent.
        full: True if calls fail because nothing fits any more.
    """

    text: str
    hint: str = ""
    steps: Sequence[Remedy] = ()
    largest: Mapping[str, int] = attrs.field(factory=dict)
    full: bool = False

    @property
    def urgent(self) -> bool:
        """True if calls fail, or soon will."""
        return bool(self.steps)

    def without_names(self) -> Shortage:
        """Returns this shortage without names of queues, for callers who may not see all queues."""
        return (
            attrs.evolve(self, steps=_steps("QUEUE" if self.steps[1:] else None), largest={})
            if self.largest
            else self
        )

    @property
    def advice(self) -> Advice:
        """The shortage with its cure, and the largest queues."""
        sizes = ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in self.largest.items())
        hint = "; ".join(filter(None, (self.hint, sizes and f"the largest queues: {sizes}")))
        return Advice(self.text, hint, self.steps, self.urgent)


def shortage(root: Root) -> Shortage | None:
    """Returns the shortage of the root's disk, or None. Below ``FREE_BYTES`` it also names the largest queues."""
    space = space_of(root.path)
    if space is None:
        return None
    if not (space.lacks_bytes(FREE_BYTES) or space.lacks_files(FREE_FILES)):
        low = space.lacks_bytes(LOW_BYTES) or space.lacks_files(LOW_FILES)
        return Shortage(_text(space), "make room, or run lakequeue compact --now 1h") if low else None
    rows = [row for row in root.rows() if row.deleted_at is None]
    sizes = sorted(concurrently(lambda row: (_bytes(root, row), row.name), rows), reverse=True)
    return of_sizes(space, {name: size for size, name in sizes})


def of_sizes(space: Space, sizes: Mapping[str, int]) -> Shortage:
    """Returns an urgent shortage. ``sizes``: bytes of each queue by name, the largest queue first."""
    largest = dict([*sizes.items()][:_SHOWN])
    used, total = space.size_bytes - space.free_bytes, sum(sizes.values())
    hint = ""
    of_files = space.lacks_files(FREE_FILES)
    if not of_files and total < OTHERS_SHARE * used:
        hint = f"other files take most of the space: all queues together have {total / 2**20:,.1f} MiB"
    matters = any(of_files or size >= PURGED_SHARE * space.size_bytes for size in largest.values())
    name = next(iter(largest)) if matters else None
    return Shortage(_text(space), hint, _steps(name), largest, _is_full(space))


def _steps(name: str | None) -> Sequence[Remedy]:
    """Returns the commands that free space, first what loses nothing. ``name``: a queue whose purge would help."""
    compact = "lakequeue compact --now 0"
    first = Remedy(compact, "frees the space of what is gone; often this is enough")
    if name is None:
        return (first,)
    return (
        first,
        Remedy(f"lakequeue purge {name}", "drops its messages, if nobody needs them"),
        Remedy(compact, "frees their space"),
    )


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
