"""A bulk send on its way from rows to a manifest: where its files are written, and which shards get them.

Whoever writes the files, in one process or in many, begins and ends here.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence

import attrs

from lakequeue.storage.bulk import manifests, staged_files
from lakequeue.storage.bulk.dedup import without_repeats
from lakequeue.storage.bulk.manifests import Manifest, SendKey, WaitingFile
from lakequeue.storage.bulk.message_rules import RowRules
from lakequeue.storage.bulk.spread import spread, spread_by_group
from lakequeue.storage.engines.interface import DataFile
from lakequeue.storage.folder import Folder


@attrs.frozen
class Staging:
    """One attempt at writing the files of a bulk send; a value that other processes can use.

    Attributes:
        key: the key of the send; message ids are derived from it and the row's place.
        shards: get the rows of a standard queue in this order. All files are written below the first.
        rules: what the rows must obey.
        folder: directory of this attempt, below the ``messages`` of each shard.
    """

    key: SendKey
    shards: Sequence[int]
    rules: RowRules
    folder: str

    @classmethod
    def new(cls, key: SendKey, shards: Sequence[int], rules: RowRules, attempt: str | None = None) -> Staging:
        """An attempt of its own, or that of an id which the writers of several processes have in common."""
        return cls(key, list(shards), rules, staged_files.folder_of(key.files, attempt or uuid.uuid4().hex[:8]))

    def messages(self, tables: Folder) -> Folder:
        """The directory of the queue's shard below which ``folder`` is written."""
        return tables / f"{self.shards[0]}/messages"

    def finish(self, tables: Folder, write: Callable[[], Sequence[DataFile]]) -> Manifest:
        """Writes the manifest of what ``write`` returns: files in order, all rows checked.

        Of FIFO queues, each file holds whole groups of one shard. If anything fails, no file is left.

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
            else:
                placed = spread_by_group if self.rules.by_group else spread
                waiting = placed(messages, files, self.shards)
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

    def discard(self, tables: Folder) -> None:
        """Removes the files of this attempt."""
        for shard in self.shards:
            with contextlib.suppress(Exception):  # VACUUM removes what is left
                (tables / f"{shard}/messages/{self.folder}").remove_all()
