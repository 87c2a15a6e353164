"""Safeguards that the simulation must miss when they are gone: those of other tests, and defects of the past."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs

from concurrency import test_fifo_mutations, test_moving_mutations, test_mutations
from lakequeue.storage import folder
from lakequeue.storage.delta_log import checkpoint_name
from lakequeue.storage.engines import commit, log_trimming, point
from lakequeue.storage.engines.point import PointTable
from lakequeue.storage.folder import Folder
from lakequeue.storage.messages import read
from mutations import Mutation, Patch, replace
from simulation.runs import Aim


@attrs.frozen
class Safeguard:
    mutation: Mutation
    aim: Aim
    """Runs that come by the moment."""

    def apply(self, patch: Patch) -> None:
        self.mutation.apply(patch)


# --- defects of the past, put back


def trust_a_fence_without_its_log(patch: Patch) -> None:
    """Commits on a snapshot whose entry was trimmed: the fence outlives its log."""
    patch.setattr(commit, "_in_log", lambda *_: True)


def take_a_late_put_for_refused(patch: Patch) -> None:
    patch.setattr(commit, "unsettled_version", lambda *_: None)


def never_sync_a_checkpoint(patch: Patch) -> None:
    sync = Folder.sync

    def synced(self: Folder, names: Any) -> None:
        sync(self, [name for name in names if "checkpoint" not in name])

    patch.setattr(Folder, "sync", synced)
    patch.setattr(log_trimming, "_holds", lambda *_: True)


def sync_no_entry(patch: Patch) -> None:
    """Acknowledges before the entry's directory is on disk."""
    patch.setattr(Folder, "_sync", lambda *_: None)


def sync_no_file(patch: Patch) -> None:
    patch.setattr(Folder, "_sync_file", lambda *_: None)


def answer_what_others_did_not_sync(patch: Patch) -> None:
    """Builds on entries of others that are not on disk yet: a head beyond the log."""
    sync = Folder.sync
    patch.setattr(Folder, "sync", lambda self, names: sync(self, [name for name in names if name != point.LOG]))


def trim_without_a_checkpoint(patch: Patch) -> None:
    patch.setattr(log_trimming, "_holds", lambda *_: True)
    patch.setattr(PointTable, "checkpoint", lambda self: self.folder.write(checkpoint_name(self.version), b""))


def trim_newest_first(patch: Patch) -> None:
    remove = Folder.remove
    patch.setattr(Folder, "remove", lambda self, names: remove(self, reversed(list(names))))


def write_entries_in_place(patch: Patch) -> None:
    """A reader may see a part of an entry."""

    def create(self: Folder, name: str, data: bytes, *, new_folder: bool = True) -> bool:
        if self.exists(name):
            return False
        self.write(name, data, new_folder=new_folder)
        return True

    patch.setattr(Folder, "create", create)


def lose_the_type_of_what_is_gone(patch: Patch) -> None:
    """A ledger as it was, over a log whose files others have dropped since: KeyError, not a newer look."""
    patch.setattr(read, "FileNotFoundError", KeyError, raising=False)


def write_no_draft_again(patch: Patch) -> None:
    """A compactor removes the draft of a process that stands still, which then fails."""

    def place(self: Folder, place: Any, data: bytes, target: str) -> None:
        draft = self.path(f"{folder.uuid.uuid4().hex}.draft")
        with folder.open(draft, "wb") as file:  # type: ignore[attr-defined]
            file.write(data)
            self._sync_file(file)
        try:
            place(draft, target)
        finally:
            with suppress(FileNotFoundError):
                folder.os.unlink(draft)
        self._sync(folder.os.path.dirname(target))

    patch.setattr(Folder, "_place", place)


PAST = [
    Mutation("a fence outlives its log", trust_a_fence_without_its_log, {}),
    Mutation("a late PUT is taken for refused", take_a_late_put_for_refused, {}),
    Mutation("a checkpoint is never synced", never_sync_a_checkpoint, {}),
    Mutation("an acknowledged entry is not synced", sync_no_entry, {}),
    Mutation("data files are not synced", sync_no_file, {}),
    Mutation("entries of others are not synced", answer_what_others_did_not_sync, {}),
    Mutation("a log is trimmed without a checkpoint", trim_without_a_checkpoint, {}),
    Mutation("logs are trimmed newest first", trim_newest_first, {}),
    Mutation("entries are written in place", write_entries_in_place, {}),
    Mutation(
        "the newest answer is not asked for",
        replace("lakequeue.storage.engines.commit.LONG_COMMIT", 10**9),
        {},
    ),
    Mutation("know what is gone as an error", lose_the_type_of_what_is_gone, {}),
    Mutation("a draft is written once", write_no_draft_again, {}),
]

_LEDGER = {"send": 20, "receive": 40, "delete": 40}
_BUSY = {"send": 60, "consume": 30}
_IDS = {"again": 40, "pause": 5}
_ATTEMPTS = {"send": 20, "attempt": 20, "repeat": 30}
_BESIDE = ({"send": 20}, {"send": 60, "pause": 15, "compact": 20})
_AIMS = {
    "join the open segment without its fence": Aim(
        verbs=({"send": 60, "pause": 20}, {"compact": 30, "pause": 15}), kind="standard", shards=1, length=10
    ),
    "read in the log as it was known": Aim(
        kind="standard", style="reading", verbs=({"receive": 40}, {"send": 40, "compact": 30, "pause": 20})
    ),
    "know what is gone as an error": Aim(
        kind="standard", style="calm", shards=1, length=10, verbs=({"receive": 30, "pause": 10}, _BUSY)
    ),
    "know the log as it was": Aim(
        verbs=({"send": 40, "receive": 40, "batch": 10},), kind="standard", shards=1, style="calm"
    ),
    "keep the machine after a failure": Aim(place="store", verbs=(_LEDGER,), style="requests", shards=1),
    "leave deletions unfinished": Aim(kind="dropped", style="kills", verbs=({"drop": 30, "counts": 10},)),
    "send to closed logs": Aim(kind="dropped", verbs=({"send": 60}, {"send": 20, "drop": 20})),
    "look for duplicates before the first try only": Aim(kind="fifo", style="calm", verbs=(_IDS,), shards=1),
    "forget no ids": Aim(kind="fifo", verbs=({"again": 40, "pause": 40},), style="calm"),
    "overlook purges": Aim(kind="fifo", verbs=({"again": 60, "purge": 10},)),
    "drop segments with live ids": Aim(
        kind="fifo", style="kills", shards=1, length=10, verbs=({"again": 20} | _BUSY,)
    ),
    "store no attempts": Aim(kind="fifo", verbs=(_ATTEMPTS,)),
    "store no places of attempts": Aim(kind="fifo", verbs=(_ATTEMPTS,)),
    "append without a look at the number": Aim(
        kind="letters", shards=1, verbs=({"send": 20, "receive": 40, "pause": 20, "redrive": 10, "move": 20},)
    ),
    "a late PUT is taken for refused": Aim(place="store", style="requests", verbs=({"send": 40, "receive": 20},)),
    "a checkpoint is never synced": Aim(
        place="disk", style="cuts", verbs=({"send": 40, "receive": 10, "pause": 5},), length=10, shards=1
    ),
    "entries of others are not synced": Aim(
        place="disk", style="unsynced", verbs=({"send": 40}, {"receive": 40}), kind="standard", shards=1
    ),
    "logs are trimmed newest first": Aim(place="disk", style="trims", verbs=({"send": 60, "pause": 5},)),
    "the newest answer is not asked for": Aim(place="store", style="asleep", kind="standard", verbs=_BESIDE),
    "a draft is written once": Aim(place="disk", style="asleep", verbs=_BESIDE),
    "accept any lease": Aim(kind="standard", verbs=(_LEDGER | {"pause": 10},), shards=1),
    "clean without a lock": Aim(place="disk", style="asleep"),
    "commit without a lock": Aim(place="disk", style="asleep"),
}
"""Runs in which a moment is not rare; of the other mutations, any runs come by it."""

_KINDS = ((test_fifo_mutations, "fifo"), (test_moving_mutations, "letters"), (test_mutations, None))
SAFEGUARDS = {
    mutation.name: Safeguard(mutation, _AIMS.get(mutation.name, Aim(kind=kind)))
    for mutations, kind in (*((module.MUTATIONS, kind) for module, kind in _KINDS), (PAST, None))
    for mutation in mutations
}
