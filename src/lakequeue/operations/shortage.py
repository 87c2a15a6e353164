"""Reports that a root's disk is short of space, which queues are the largest, and what helps."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs

from lakequeue.errors import DamagedTable, LakeQueueError
from lakequeue.operations.advice import Advice, Remedy
from lakequeue.operations.depth import depth
from lakequeue.operations.pool import concurrently
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.inspection.environment import FREE_BYTES, FREE_FILES
from lakequeue.storage.reserve import Space, is_used_up, space_of
from lakequeue.storage.roots import local_path

LOW_BYTES, LOW_FILES = 10 * 2**30, 100_000
"""Numbers of free bytes and free files below which a disk counts as short of space; see ``Space``."""
FULL_BYTES = 2**20
"""A disk with fewer free bytes counts as full, because a commit with large bodies may need this many."""
COMMIT_BYTES = 8 * 2**10
"""Free bytes that every commit needs at least, because it writes two files in blocks of 4 KiB."""
OTHERS_SHARE = 0.5
"""If the queues have less than this share of the used bytes, the shortage is blamed on other files."""
PURGED_SHARE = 0.01
"""A purge is advised only if a queue has at least this share of the disk."""
GONE_SHARE = 0.25
"""A compaction is the first advice if queues without messages have at least this share of the used bytes."""
_SHOWN = 3
_COUNTED = 20
"""Maximum number of queues, the largest first, whose messages are counted."""
_COMPACT, _PURGE, _DU = "lakequeue compact --now 0", "lakequeue purge ", "du -x"
_OUTSIDE = (
    "first enlarge the disk, delete other files, or copy the root to a larger disk: "
    "nothing is reserved for purges and compactions, so they may fail"
)


@attrs.frozen
class Shortage:
    """A shortage of space or files on a root's disk.

    Attributes:
        text: a sentence that describes the shortage.
        hint: what helps, in words.
        steps: the commands that free space.
        largest: sizes in bytes of the largest queues, by name. Empty if the shortage is not urgent, or if other
            files fill the disk and it would not help to purge a queue.
        full: True if all calls fail, or all calls except the smallest.
        causes: what the disk lacks, bytes or files, one line for each. Empty if the shortage is not urgent.
    """

    text: str
    hint: str = ""
    steps: Sequence[Remedy] = ()
    largest: Mapping[str, int] = attrs.field(factory=dict)
    full: bool = False
    causes: Sequence[str] = ()

    @property
    def urgent(self) -> bool:
        """True if calls fail, or will fail soon."""
        return bool(self.steps)

    def without_names(self) -> Shortage:
        """Returns a copy without names of queues and paths, for callers that may not see all queues."""
        steps = [
            attrs.evolve(step, command=f"{_PURGE}QUEUE") if step.command.startswith(_PURGE) else step
            for step in self.steps
            if not step.command.startswith(_DU)
        ]
        return attrs.evolve(self, steps=steps, largest={})

    @property
    def advice(self) -> Advice:
        """The shortage as advice. The hint also names the largest queues."""
        sizes = ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in self.largest.items())
        hint = "; ".join(filter(None, (self.hint, sizes and f"the largest queues: {sizes}")))
        return Advice(self.text, hint, self.steps, self.urgent, "disk", details=self.causes)


def shortage(root: Root) -> Shortage | None:
    """Returns the shortage of the root's disk, or None. Names the largest queues if the shortage is urgent."""
    space = space_of(root.path)
    if space is None:
        return None
    if not (space.lacks_bytes(FREE_BYTES) or space.lacks_files(FREE_FILES)):
        low = space.lacks_bytes(LOW_BYTES) or space.lacks_files(LOW_FILES)
        return Shortage(_text(space), "make room, or run lakequeue compact --now 1h") if low else None
    try:
        rows = [row for row in root.rows() if row.deleted_at is None]
    except DamagedTable:  # a check reports it; no name of a queue is known
        lists = Remedy(_listing(space, _mount_point(root.path)), "shows what fills it")
        return Shortage(_text(space), "", [lists], {}, _is_full(space), [*_causes(space)])
    sizes = sorted(concurrently(lambda row: (_bytes(root, row), row.name), rows), reverse=True)
    by_name = {name: size for size, name in sizes}
    rows_by_name = {row.name: row for row in rows}
    empty = [*_empty(root, [rows_by_name[name] for name in [*by_name][:_COUNTED]])]
    return of_sizes(space, by_name, _mount_point(root.path), is_used_up(root.path), empty)


def _empty(root: Root, rows: Sequence[QueueRow]) -> Iterator[str]:
    """Yields the names of queues that hold no messages, so that a compaction frees almost all their bytes."""
    for row in rows:
        queue = OpenQueue(root, row)
        try:
            found = depth(queue)
            if not (found.stored or found.counts.rewindable):
                yield row.name
        except LakeQueueError:  # it may have messages
            pass
        finally:
            queue.release()


def of_sizes(
    space: Space,
    sizes: Mapping[str, int],
    mount_point: str,
    used_up: bool = False,
    empty: Collection[str] = (),
) -> Shortage:
    """Returns an urgent shortage. ``sizes`` are the bytes of each queue by name, the largest queue first.

    ``used_up`` is True if the reserve for a full disk is gone, too, so that purges and compactions may fail.
    ``empty`` has the names of queues without messages, which a purge does not make smaller.
    """
    used, total = space.size_bytes - space.free_bytes, sum(sizes.values())
    of_files, gone = space.lacks_files(FREE_FILES), sum(sizes[name] for name in empty)
    full = [name for name in sizes if name not in empty]
    matter = any(of_files or sizes[name] >= PURGED_SHARE * space.size_bytes for name in full)
    freeable = not of_files and space.free_bytes >= FULL_BYTES and gone >= GONE_SHARE * used
    used_up, others = used_up and not freeable, not of_files and total < OTHERS_SHARE * used and not freeable
    largest = {name: sizes[name] for name in full[:_SHOWN]} if matter or not others else {}
    queues = f"the queues have {total / 2**20:,.1f} of the {used / 2**20:,.1f} MiB used" * (not of_files)
    queues = f"messages that are gone have {gone / 2**20:,.1f} MiB; " * freeable + queues
    hints = (_OUTSIDE * used_up, f"{'other files fill it: ' * others}{queues}")
    du = Remedy(_listing(space, mount_point), "shows what fills it")
    freed = [
        Remedy(_COMPACT, "frees the space of what is gone from the queues"),
        *_purge(full[0] if matter else None),
    ]
    steps = (du, *freed) if others or used_up else (*freed, du)
    hint = "; ".join(filter(None, hints))
    return Shortage(_text(space), hint, steps, largest, _is_full(space), [*_causes(space)])


def _listing(space: Space, mount_point: str) -> str:
    place = shlex.quote(mount_point)
    if space.lacks_files(FREE_FILES):
        return f"{_DU}S --inodes {place} | sort -n | tail"
    return f"{_DU}ah {place} | sort -h | tail"


def _causes(space: Space) -> Iterator[str]:
    if space.lacks_bytes(FREE_BYTES):
        yield f"bytes: {space.free_bytes / 2**20:,.1f} MiB of {space.size_bytes / 2**20:,.0f} MiB are free"
    if space.lacks_files(FREE_FILES):
        yield f"inodes: {space.free_files or 0:,} of {space.size_files:,} are free"


def _purge(name: str | None) -> Sequence[Remedy]:
    if name is None:
        return ()
    return (
        Remedy(f"{_PURGE}{name}", "drops its messages, if nobody needs them"),
        Remedy(_COMPACT, "frees their space"),
    )


def _mount_point(path: str) -> str:
    place = os.path.realpath(local_path(path) or path)
    while not os.path.ismount(place):
        place = os.path.dirname(place)
    return place


def _is_full(space: Space) -> bool:
    return space.free_bytes < FULL_BYTES or space.free_files == 0


def _text(space: Space) -> str:
    if space.free_bytes < COMMIT_BYTES or space.free_files == 0:
        return "the root's disk is full: sends, receives and deletes fail"
    if _is_full(space):
        free = f"only {space.free_bytes // 2**10:,} KiB of the root's disk is free"
        return f"{free}: a send, receive or delete fails if it needs more, and each needs 8 KiB at least"
    files = f"room for {space.free_files:,} more files" if space.lacks_files(LOW_FILES) else ""
    if not space.lacks_bytes(LOW_BYTES):
        return f"the root's disk has only {files}"
    share, free = space.free_bytes / space.size_bytes, f"{space.free_bytes / 2**20:,.0f} MiB"
    free = f"only {share:.0%} of the root's disk ({free}) is free"
    return f"{free}, with {files}" if files else free


def _bytes(root: Root, row: QueueRow) -> int:
    folder = root.engine.store.folder(layout.tables_path(root.path, row.key))
    return sum(file.size for file in folder.files())
