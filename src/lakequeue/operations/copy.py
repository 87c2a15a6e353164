"""Copies queues to another root while they are in use: a backup, a restore, or a move to an object store.

The rows of the catalog come last, in one commit, so a copy that was killed leaves nothing that is used (DUR-40).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from lakequeue.errors import (
    InvalidParameterValue,
    QueueClientError,
    RequestThrottled,
    RootDoesNotExist,
)
from lakequeue.model.redrive_policies import Place
from lakequeue.operations.copy_shards import Progress, ShardCopies, ShardCopy
from lakequeue.operations.queues import missing
from lakequeue.runtime.calls import logged
from lakequeue.runtime.root import Root
from lakequeue.storage import cleaning, layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.retry import Races
from lakequeue.storage.folder import Folder


@attrs.frozen
class CopiedQueue:
    """A queue in a copy.

    Attributes:
        queue: its name.
        region: its region.
        messages: number of messages in any state, without the history.
        files: number of files of its tables, without their logs.
        bytes: bytes of these files.
    """

    queue: str
    region: str
    messages: int
    files: int
    bytes: int

    @classmethod
    def of(cls, row: QueueRow, shards: Sequence[ShardCopy]) -> CopiedQueue:
        """A queue and its shards."""
        tables = [table for shard in shards for table in (shard.ledger, shard.log)]
        return cls(
            row.name,
            row.region,
            sum(shard.messages for shard in shards),
            sum(len(table.files) for table in tables),
            sum(table.size for table in tables),
        )


def copy(source: Root, target: Root, name: str | None, progress: Progress | None) -> list[CopiedQueue]:
    """Copies all living queues of a root, or one of its region; see ``LakeQueue.copy``."""
    paths = sorted([f"{source.path}/", f"{target.path}/"])
    if paths[1].startswith(paths[0]):
        raise InvalidParameterValue.of(target.path, "to", f"Must be another root than {source.path}.")
    with logged("copy", name or ""):
        try:
            rows = _chosen(source, name)
        except RootDoesNotExist as error:  # which advises to make a queue there
            raise RootDoesNotExist(f"{error.message.partition(';')[0]}; there is nothing to copy") from error
        target.prepare()
        with target.storage_errors(), target.catalog.copying() as in_time:
            _check_free(target, rows)
            for row in rows:  # what a killed copy left begins anew
                cleaning.remove_tables(_folder(target, row))
                _folder(target, row).create(layout.COPYING, b"")
            copies = ShardCopies(source, target, rows, progress or (lambda done, total, name: None))
            copied = copies.run(statistics=name is None)
            if not in_time():
                raise QueueClientError(f"the copy to {target.path} took more than 24 h; copy queue by queue")
            _name(target, [row for row, _ in copied])
            for row, _ in copied:
                _folder(target, row).remove([layout.COPYING])
        return [CopiedQueue.of(row, shards) for row, shards in copied]


def _chosen(source: Root, name: str | None) -> list[QueueRow]:
    with source.storage_errors():
        if name is None:
            rows = [row for row in source.rows() if row.deleted_at is None]
        else:
            row = source.living_at(Place(source.region, name))
            if row is None:
                raise missing(source, name)
            rows = [row]
    if not rows:
        raise QueueClientError(f"{source.path} holds no queues; there is nothing to copy")
    return sorted(rows, key=lambda row: (row.region, row.name))


def _check_names(target: Root, rows: Sequence[QueueRow]) -> None:
    known = target.rows()
    taken = {row.key for row in known} | {(row.region, row.name) for row in known if row.deleted_at is None}
    for row in rows:
        if row.key in taken or (row.region, row.name) in taken:
            raise QueueClientError(f"{target.path} has the queue {row.name} already; nothing was changed")


def _check_free(target: Root, rows: Sequence[QueueRow]) -> None:
    """Refuses a target that has one of the queues, or tables of one that no copy left there."""
    _check_names(target, rows)
    for row in rows:
        folder = _folder(target, row)
        if not folder.exists(layout.COPYING) and next(folder.files(), None) is not None:
            raise QueueClientError(f"{folder.uri} holds something else; nothing was changed")


def _folder(root: Root, row: QueueRow) -> Folder:
    return root.engine.store.folder(layout.tables_path(root.path, row.key))


def _name(target: Root, rows: Sequence[QueueRow]) -> None:
    """Adds the rows to the catalog in one commit."""
    races = Races()
    for _ in races:
        with target.lock:
            _check_names(target, rows)
            version = target.catalog.layout_version
            changes = [
                (attrs.evolve(row, layout_version=version), target.catalog.changes(row.region, row.name))
                for row in rows
            ]
            if not rows or target.catalog.put(*changes):
                return
        races.lose()
    raise RequestThrottled("the catalog is being changed too often; nothing was changed")
