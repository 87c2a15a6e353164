"""Commits the files of a bulk send to one shard. The commit gives the messages their offsets.

If the commit loses a race, it is repeated with the same files. Files are written without a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lakequeue.errors import QueueDoesNotExist
from lakequeue.storage import layout
from lakequeue.storage.bulk import manifests
from lakequeue.storage.bulk.dedup import Duplicates, opened_at
from lakequeue.storage.bulk.manifests import Manifest
from lakequeue.storage.bulk.send_target import SendTarget
from lakequeue.storage.bulk.staged_files import check_exist
from lakequeue.storage.engines.commit_failures import StaleAttributes
from lakequeue.storage.engines.data_files import DataFile, placed
from lakequeue.storage.engines.transaction import Answer, Answered, Change, Committed, Decision, Ids, transact

PATIENCE = 4
"""Maximum attempts to remove duplicates while small sends go on. If new duplicates arrive during each attempt,
there is a final attempt, during which this process delays its small sends to the shard.
"""


class ShardCommit:
    """Commits a bulk send to one shard."""

    def __init__(self, target: SendTarget, manifest: Manifest, shard: int) -> None:
        self._target = target
        self._manifest = manifest
        self._shard = shard
        self._table = target.open(shard)
        self._staged = manifest.of(shard)
        self._duplicates: Duplicates | None = None
        if target.attributes.fifo:
            by_group, purged = target.attributes.dedup_by_group, partial(target.here.purged, shard)
            self._duplicates = Duplicates(self._table.folder, self._staged, by_group, purged)

    def commit(self, reached_another: bool) -> int:
        """Commits the files. Returns the number of new messages.

        ``reached_another`` is True if another shard already has the send. The files are then committed even if
        they are old, or if the queue's attributes have changed since they were written.
        """
        table = self._table
        for patient in [*[True] * PATIENCE, False]:
            if self._duplicates is not None:
                # before the lock, as reading the log and writing files may take seconds
                table.repeated(self._find_duplicates)
            with self._target.here.holding(self._shard):
                table.refresh()
                decide = partial(self._decide, patient, reached_another)
                sent = transact(table, decide, busy="too many lost races; nothing was sent")
            match sent:
                case Committed(int(rows), lost):
                    self._target.here.committed(self._shard, lost)
                    return rows
                case Answered(int(rows)):
                    return rows
        raise AssertionError("the last decision waits for nothing")

    def _find_duplicates(self) -> None:
        assert self._duplicates is not None
        self._table.refresh()
        self._duplicates.check(self._table, self._target.here.now())
        self._duplicates.files()

    def _decide(self, patient: bool, reached_another: bool, _: int) -> Decision[int | None]:
        """Decides which files to commit. Answers None if the caller must first remove new duplicates."""
        table, manifest, files, here = self._table, self._manifest, self._staged, self._target.here
        instant = here.now()
        if manifest.reached(table):
            return Answer(0)  # another process committed the same files meanwhile
        if self._duplicates is not None:
            if not self._duplicates.check(table, instant) and patient:
                return Answer(None)
            files = self._duplicates.files()
        if manifest.too_old and not reached_another:
            raise manifests.too_old_error(table.folder, manifest.send_id)
        attributes_version = table.transaction(layout.ATTRIBUTES_ID)
        if not reached_another and attributes_version != self._target.attributes_version:
            raise StaleAttributes()
        version = table.transaction(layout.SEND_ID)
        if version >= layout.CLOSED:
            raise QueueDoesNotExist()
        self._target.check_room(self._shard, files)
        opened = opened_at(table, instant)
        added = placed(files, version, opened)
        rows = sum(file.rows for file in added)
        fence = {layout.ATTRIBUTES_ID: attributes_version, layout.SEND_ID: version}
        ids = {layout.SEND_ID: version + rows, layout.CLOCK_ID: opened} if added else {}
        if manifest.app_id is not None:
            fence[manifest.app_id] = table.transaction(manifest.app_id)
            ids[manifest.app_id] = manifest.version
        if added:
            last = table.transaction(layout.CLOCK_ID)
            ids |= here.check_clock(self._shard, instant, last, table)
        if not ids:
            return Answer(0)  # all rows are duplicates, and nobody repeats this send
        return Change(fence, ids, partial(self._add, added), rows, counts={"send": rows})

    def _add(self, files: Sequence[DataFile], ids: Ids, token: str) -> None:
        check_exist(self._table.folder, files)  # under the lock: the process may have been stopped before
        self._table.add(files, ids, token)
