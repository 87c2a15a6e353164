"""Creates the tables of shards: of a new queue, or those that a queue gets later."""

from __future__ import annotations

from lakequeue.operations.pool import each
from lakequeue.runtime.root import Root
from lakequeue.shard.runs import Head
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.ledger import create_ledger


def make_tables(root: Root, row: QueueRow, first: int = 0) -> None:
    """Creates the tables of shards from one on, several at a time; those that an earlier attempt left may stay."""
    head = Head(committed_at=row.created_at, attributes=dict(row.attributes))

    def make(shard: int) -> None:
        path = layout.messages_path(root.path, row.key, shard)
        root.engine.create(path, layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES)
        create_ledger(root.engine, layout.receipts_path(root.path, row.key, shard), head)

    list(each(make, range(first, row.shards)))
