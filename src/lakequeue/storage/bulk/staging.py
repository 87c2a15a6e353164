"""Stages a bulk send: writes files, assigns files to shards, and writes the manifest."""

from __future__ import annotations

import contextlib
import uuid
import zlib
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from lakequeue.model.names import shard_of_group
from lakequeue.storage.bulk import manifests, staged_files
from lakequeue.storage.bulk.bad_rows import BadRows
from lakequeue.storage.bulk.dedup import without_repeats
from lakequeue.storage.bulk.manifests import Manifest, SendKey, WaitingFile
from lakequeue.storage.bulk.message_rules import PRIORITY, RowRules
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.folder import Folder

LEAST = 100
"""Minimum number of rows for each shard. A smaller send uses fewer shards, or leaves its files undivided."""
NEAR = 0.1
"""A shard's number of rows may differ from the average by this share, so that fewer files are cut."""


def spread(messages: Folder, files: Sequence[DataFile], shards: Sequence[int]) -> list[WaitingFile]:
    """Assigns files to shards in order. Cuts files so that the shards get almost equal numbers of rows."""
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
    """Splits each file by message group, into one file for each shard (FAI-5)."""
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
    """Returns the number of the last row of each shard but the last, preferably a row that ends a file."""
    edges, share = np.cumsum(sizes), sum(sizes) / number
    ends = []
    for end in range(1, number):
        nearest = int(edges[np.abs(edges - end * share).argmin()])
        ends.append(nearest if abs(nearest - end * share) <= NEAR * share else round(end * share))
    return ends


def _in_order_of(key: SendKey, shards: Sequence[int]) -> list[int]:
    """Returns the same order in every process, unless the send is anonymous.

    If attributes change while several processes repeat a send, each may write files of its own. The fence of a
    shard lets only one of them commit there, so all must use the same shards. New shards keep the order of others.
    """
    return sorted(shards, key=lambda shard: 0 if key.anonymous else zlib.crc32(f"{shard} {key.files}".encode()))


@attrs.frozen
class Staging:
    """One attempt to write the files of a bulk send. Can be passed to other processes.

    Attributes:
        shards: all shards, in the order in which they get files. New files are written below the first shard.
        folder: directory of this attempt, relative to a shard's ``messages`` table.
        bad_rows: what happens to rows that break a rule. If None, such rows end the send.
    """

    key: SendKey
    shards: Sequence[int]
    rules: RowRules
    folder: str
    bad_rows: BadRows | None = None

    @classmethod
    def new(cls, key: SendKey, shards: Sequence[int], rules: RowRules, bad_rows: BadRows | None = None) -> Staging:
        folder = staged_files.folder_of(key.files, uuid.uuid4().hex[:8])
        return cls(key, _in_order_of(key, shards), rules, folder, bad_rows)

    def of_key(self, key: SendKey, attempt: str) -> Staging:
        """Returns the staging for the send ``key``. All processes of an attempt must pass the same ``attempt``."""
        shards, folder = _in_order_of(key, self.shards), staged_files.folder_of(key.files, attempt)
        return attrs.evolve(self, key=key, shards=shards, folder=folder)

    def messages(self, tables: Folder) -> Folder:
        """Returns the folder of the first shard's ``messages`` table, where new files are written."""
        return tables / f"{self.shards[0]}/messages"

    def finish(self, tables: Folder, write: Callable[[], Sequence[DataFile]]) -> Manifest:
        """Calls ``write``, and returns a manifest of the written files.

        If an earlier attempt has stored a manifest, discards the new files, and returns the stored manifest.
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
        """Assigns each file to one of the shards that are for the file's priority (JOB-5)."""
        classes = self.rules.priorities or 1
        waiting: list[WaitingFile] = []
        for priority in range(classes):
            shards = [shard for shard in self.shards if shard % classes == priority]
            of_it = [each for each in files if each.partition.get(PRIORITY, "0") == str(priority)]
            waiting += spread(messages, [attrs.evolve(each, partition={}) for each in of_it], shards)
        return waiting

    def discard(self, tables: Folder) -> None:
        for shard in self.shards:
            with contextlib.suppress(Exception):  # VACUUM removes the rest
                (tables / f"{shard}/messages/{self.folder}").remove_all()
