"""A bulk send on its way from rows to a manifest: where its files are written, and which shards get them.

Whoever writes the files, in one process or in many, begins and ends here.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from lakequeue.model.names import shard_of_group
from lakequeue.storage.bulk import manifests, staged_files
from lakequeue.storage.bulk.bad_rows import BadRows
from lakequeue.storage.bulk.dedup import without_repeats
from lakequeue.storage.bulk.manifests import Manifest, SendKey, WaitingFile
from lakequeue.storage.bulk.message_rules import PRIORITY, RowRules
from lakequeue.storage.engines.interface import DataFile
from lakequeue.storage.folder import Folder

LEAST = 100
"""Rows of a shard below which no file is cut: a commit to one more shard costs more than it gains."""
NEAR = 0.1
"""Part of a shard's rows by which its range may be longer or shorter, so that fewer files are cut."""


def spread(messages: Folder, files: Sequence[DataFile], shards: Sequence[int]) -> list[WaitingFile]:
    """The files, in their order, each with its shard; files that lie across the end of a range are cut.

    Each cut costs another writing of the rows beside it: one file at most for each shard but the last.

    Args:
        messages: the folder in which the files are.
        files: all rows of the send.
        shards: in the order in which they get rows.
    """
    rows = sum(file.rows for file in files)
    number = min(len(shards), max(len(files), rows // LEAST, 1))
    if rows < number * LEAST:  # as they are, the same number of files for each
        return [WaitingFile(shards[place * number // len(files)], file) for place, file in enumerate(files)]
    ends = _ends([file.rows for file in files], number)
    placed: list[WaitingFile] = []
    start = 0
    for file in files:
        cuts = [start, *(end for end in ends if start < end < start + file.rows), start + file.rows]
        for first, last in zip(cuts, cuts[1:], strict=False):
            part = file
            if len(cuts) > 2:
                kept = np.zeros(file.rows, bool)
                kept[first - start : last - start] = True
                part = staged_files.rewrite(messages, file, kept)
            shard = sum(end <= first for end in ends)
            placed.append(WaitingFile(shards[shard], part))
        if len(cuts) > 2:
            messages.remove([file.path])
        start += file.rows
    return placed


def spread_by_group(messages: Folder, files: Sequence[DataFile], shards: Sequence[int]) -> list[WaitingFile]:
    """The files, in their order, each cut into the rows of each shard, which the message group determines (FAI-5).

    Args:
        messages: the folder in which the files are.
        files: all rows of the send.
        shards: all shards of the queue.
    """
    if len(shards) == 1:
        return [WaitingFile(shards[0], file) for file in files]
    placed: list[WaitingFile] = []
    for file in files:
        names = messages.rows(file.path, file.size, ["group_id"])["group_id"].combine_chunks()
        coded = names.fill_null("").dictionary_encode()
        home = np.array([shard_of_group(name, len(shards)) for name in coded.dictionary.to_pylist()])
        homes = home[coded.indices.to_numpy()]
        placed += [
            WaitingFile(int(shard), staged_files.rewrite(messages, file, homes == shard))
            for shard in np.unique(homes)
        ]
        messages.remove([file.path])
    return placed


def _ends(sizes: Sequence[int], number: int) -> list[int]:
    """Where the ranges of all shards but the last end: between two files where that is near enough."""
    edges, share = np.cumsum(sizes), sum(sizes) / number
    ends = []
    for end in range(1, number):
        nearest = int(edges[np.abs(edges - end * share).argmin()])
        ends.append(nearest if abs(nearest - end * share) <= NEAR * share else round(end * share))
    return ends


@attrs.frozen
class Staging:
    """One attempt at writing the files of a bulk send; a value that other processes can use.

    Attributes:
        key: the key of the send; message ids are derived from it and the row's place.
        shards: all; get the rows of a standard queue in this order. All files are written below the first.
        rules: what the rows must obey.
        folder: directory of this attempt, below the ``messages`` of each shard.
        bad_rows: what becomes of rows that break a rule; None: the send is refused.
    """

    key: SendKey
    shards: Sequence[int]
    rules: RowRules
    folder: str
    bad_rows: BadRows | None = None

    @classmethod
    def new(cls, key: SendKey, shards: Sequence[int], rules: RowRules, bad_rows: BadRows | None = None) -> Staging:
        """An attempt of its own."""
        return cls(key, list(shards), rules, staged_files.folder_of(key.files, uuid.uuid4().hex[:8]), bad_rows)

    def of_key(self, key: SendKey, attempt: str) -> Staging:
        """An attempt at another send, of an id which the writers of several processes have in common."""
        return attrs.evolve(self, key=key, folder=staged_files.folder_of(key.files, attempt))

    def messages(self, tables: Folder) -> Folder:
        """The directory of the queue's shard below which ``folder`` is written."""
        return tables / f"{self.shards[0]}/messages"

    def finish(self, tables: Folder, write: Callable[[], Sequence[DataFile]]) -> Manifest:
        """Writes the manifest of what ``write`` returns: files in order, all rows checked.

        Of FIFO queues, each file holds whole groups of one shard, of others rows of one priority, which its
        ``partition`` says. If anything fails, no file is left.

        Returns:
            The manifest; that of another attempt at the same send if that was quicker.
        """
        first, fifo = self.shards[0], self.rules.fifo
        messages = self.messages(tables)
        try:
            files = list(write())
            if fifo is not None:
                files = without_repeats(messages, files, fifo.dedup_by_group)
                waiting = [WaitingFile(staged_files.shard_of(messages, file, fifo.shards), file) for file in files]
            elif self.rules.by_group:
                waiting = spread_by_group(messages, files, self.shards)
            else:
                waiting = self._spread(messages, files)
            for each in waiting:
                staged_files.move_file(tables, each.file, first, each.shard)
        except BaseException:
            self.discard(tables)
            raise
        key = self.key
        alone = len({each.shard for each in waiting}) == 1
        manifest = Manifest(key.files, None if key.anonymous and alone else key.app_id, key.version, waiting)
        there = manifests.write_manifest(tables, manifest)
        if there != manifest:
            self.discard(tables)
        return there

    def _spread(self, messages: Folder, files: Sequence[DataFile]) -> list[WaitingFile]:
        """The files of each priority, each with one of its shards (JOB-5)."""
        classes = self.rules.priorities or 1
        waiting: list[WaitingFile] = []
        for priority in range(classes):
            shards = [shard for shard in self.shards if shard % classes == priority]
            of_it = [each for each in files if each.partition.get(PRIORITY, "0") == str(priority)]
            waiting += spread(messages, [attrs.evolve(each, partition={}) for each in of_it], shards)
        return waiting

    def discard(self, tables: Folder) -> None:
        """Removes the files of this attempt."""
        for shard in self.shards:
            with contextlib.suppress(Exception):  # VACUUM removes what is left
                (tables / f"{shard}/messages/{self.folder}").remove_all()
