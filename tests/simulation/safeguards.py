"""Safeguards that the simulation must miss when they are gone: those of other tests, and defects of the past."""

from __future__ import annotations

from typing import Any

import attrs

from concurrency import test_fifo_mutations, test_moving_mutations, test_mutations
from lakequeue.storage.delta_log import checkpoint_name
from lakequeue.storage.engines import commit, log_trimming, point
from lakequeue.storage.engines.point import PointTable
from lakequeue.storage.folder import Folder
from mutations import Mutation, Patch, replace


@attrs.frozen
class Safeguard:
    mutation: Mutation
    kind: str | None
    """Of the queue that it is for; None: any."""

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
]

SAFEGUARDS = {
    mutation.name: Safeguard(mutation, kind)
    for mutations, kind in (
        (test_mutations.MUTATIONS, None),
        (test_fifo_mutations.MUTATIONS, "fifo"),
        (test_moving_mutations.MUTATIONS, "letters"),
        (PAST, None),
    )
    for mutation in mutations
}
