"""The relations of a root as Arrow datasets for DuckDB and polars; see ``SCHEMAS``. Needs no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakequeue.model.arguments import check_instant
from lakequeue.model.attributes import HIDDEN
from lakequeue.model.clock import to_micros
from lakequeue.operations import group_depth
from lakequeue.operations.depth import Depth, ShardDepth, noted
from lakequeue.operations.judged_log import JudgedShard, surviving
from lakequeue.operations.message_states import JUDGED, REWINDABLE, SCHEMA, names_are
from lakequeue.operations.pool import concurrently
from lakequeue.runtime.root import Root
from lakequeue.storage import layout, past_versions, stats_rows
from lakequeue.storage.catalog import QueueRow, rows_of
from lakequeue.storage.cleaning import pin_files
from lakequeue.storage.engines.point import Table
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.read import LogReader

COUNTS = pa.schema(
    [
        *((name, pa.int64()) for name in ("visible", "in_flight", "delayed", "held", "rewindable")),
        ("oldest_age", pa.float64()),
    ]
)
"""Columns of counts. ``oldest_age`` is the seconds since the oldest stored message was sent, or NULL."""
UNDECIDED = pa.field("undecided", pa.int64())
_PLACE = [SCHEMA.field("queue"), SCHEMA.field("region")]
_LEDGER = {field.name: field for field in [*layout.RECEIPTS, *layout.RUN, *layout.HEAD]}
for _name in ("run", "head", "attributes", "attributes_version"):
    del _LEDGER[_name]
SCHEMAS: Mapping[str, pa.Schema] = {
    "queues": pa.schema(
        [
            *_PLACE,
            *(layout.QUEUES.field(name) for name in ("created_at", "modified_at", "attributes", "tags", "shards")),
            *COUNTS,
            UNDECIDED,
        ]
    ),
    "messages": SCHEMA,
    # the row of `first_offset` -1 and `state` head is a shard's head
    "receipts": pa.schema([*_PLACE, SCHEMA.field("shard"), *_LEDGER.values()]),
    # deleted messages that can be rewound now
    "history": pa.schema(field for field in SCHEMA if field.name not in ("state", "visible_at")),
    "groups": group_depth.GROUPS,
    # counts of every queue, deleted ones too, at each minute in which the compactor passed, further back than the
    # logs of the other tables reach; `sent` is all that were ever sent
    "stats": pa.schema([*_PLACE, layout.STATS.field("minute"), *COUNTS, layout.STATS.field("sent")]),
}
"""The columns of each relation."""

Batches = Iterator[pa.RecordBatch]


class Scan:
    """One read of a relation. Does not use Arrow's scanner, because its threads would hold Python objects."""

    def __init__(self, schema: pa.Schema, batches: Batches) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)

    def to_batches(self) -> Batches:
        return self._batches

    def to_table(self) -> pa.Table:
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        taken: list[pa.RecordBatch] = []
        left = num_rows
        while left > 0 and (batch := next(self._batches, None)) is not None:
            taken.append(batch.slice(0, left))
            left -= len(taken[-1])
        return pa.Table.from_batches(taken, self.projected_schema)

    def count_rows(self) -> int:
        return sum(map(len, self._batches))


class Relation(ds.Dataset):
    """A relation as an Arrow dataset. A read opens only files that it needs for ``columns`` and ``filter``."""

    def __init__(self, schema: pa.Schema, tables: _RootTables, name: str) -> None:
        # Arrow's dataset has no constructor; only its type is used
        self._schema, self._root = schema, tables.root
        self._read: Callable[[frozenset[str], ds.Expression | None], Batches] = getattr(tables, name)
        self.failure: Exception | None = None
        """Error that ended the last read. Readers that use Arrow's C interface get only the text of the error."""

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: Any) -> Scan:
        """Begins a read of ``columns`` of the rows that meet ``filter``."""
        shown = list(self._schema.names if columns is None else columns)
        schema = pa.schema([self._schema.field(name) for name in shown])
        # an expression does not list its fields: a name that only occurs in its text is read in vain
        needed = frozenset(name for name in self._schema.names if name in shown or name in str(filter))
        return Scan(schema, self._chosen(schema, needed, filter))

    def _chosen(self, schema: pa.Schema, needed: frozenset[str], filter: ds.Expression | None) -> Batches:
        self.failure = None
        try:
            with self._root.storage_errors():
                for batch in self._read(needed, filter):
                    if filter is not None:
                        batch = batch.filter(filter)
                    if len(batch):
                        yield batch.select(schema.names)
        except Exception as error:
            self.failure = error
            raise

    def to_batches(self, **arguments: Any) -> Batches:
        return self.scanner(**arguments).to_batches()

    def _unsupported(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("a relation is read by scanner(), to_table(), to_batches() and head()")

    # of a dataset without files, these would end the process
    get_fragments = filter = join = join_asof = sort_by = take = replace_schema = _unsupported
    partition_expression = property(_unsupported)
    __reduce__ = _unsupported


def relations(root: Root, now: datetime | None, as_of: datetime | None) -> dict[str, Relation]:
    return _relations(_RootTables.of(root, now, as_of))


def of_queues(
    root: Root, queues: Sequence[QueueRow], now: datetime | None, as_of: datetime | None = None
) -> dict[str, Relation]:
    """Returns relations that show only these queues. The relation ``stats`` still covers the whole root."""
    tables = _RootTables(root, now or as_of, as_of, queues)
    return _relations(tables) | {name: Relation(JUDGED, tables, name) for name in ("messages", "history")}


def _relations(source: _RootTables) -> dict[str, Relation]:
    return {name: Relation(schema, source, name) for name, schema in SCHEMAS.items()}


def judged(root: Root) -> Relation:
    return Relation(JUDGED, _RootTables(root, None), "messages")


def shards_of(root: Root, condition: ds.Expression) -> list[tuple[QueueRow, int]]:
    """Returns the shards in which messages may meet a condition. Each shard comes with its queue's row."""
    return _RootTables(root, None).shards(condition, JUDGED)


def shown_queues(root: Root, now: datetime | None, as_of: datetime | None) -> list[QueueRow]:
    """Returns the existing queues of all regions. With ``as_of``, also queues that existed at this instant."""
    then = None if as_of is None else check_instant("as_of", as_of)
    if now is not None:
        check_instant("now", now)
    with root.storage_errors():
        return [
            row
            for row in root.rows()
            if row.deleted_at is None or (then is not None and row.created_at <= then < row.deleted_at)
        ]


def queues_at(root: Root, as_of: datetime, now: datetime | None = None) -> list[QueueRow]:
    """Returns the queues that existed at ``as_of``. Raises InvalidParameterValue if ``as_of`` is not an aware
    instant, and QueueClientError if the catalog's log begins later.
    """
    known = {row.key for row in shown_queues(root, now, as_of) if row.created_at <= to_micros(as_of)}
    if not known:
        return []
    with root.storage_errors():
        catalog = rows_of(opened(root, layout.queues_path(root.path), as_of), root.path)
    return [row for row in catalog if row.key in known and row.deleted_at is None]


def opened(root: Root, path: str, as_of: datetime | None) -> Table:
    """Opens a table, or its version at ``as_of``. Raises QueueClientError if the log has no version that old."""
    if as_of is None:
        return root.engine.open(path)
    store = root.engine.store
    version = past_versions.version_at(store, path, to_micros(as_of))
    # by another machine's clock it may be made after its queue
    return past_versions.opened(store, path, 0 if version is None else version)


@attrs.frozen
class _RootTables:
    """Reads the tables of a root: their newest versions, or their versions at an instant."""

    root: Root
    now: datetime | None
    """Instant at which states are computed. None for the time of each read."""
    as_of: datetime | None = None
    past: Sequence[QueueRow] | None = None
    """Queues to read, such as the queues at ``as_of``. None for all queues that exist now."""

    @classmethod
    def of(cls, root: Root, now: datetime | None, as_of: datetime | None) -> _RootTables:
        if as_of is not None:
            return cls(root, now or as_of, as_of, queues_at(root, as_of, now))
        shown_queues(root, now, None)  # reports a wrong instant or root
        return cls(root, now)

    def messages(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        for shard in self._shards(condition):
            yield from shard.batches(self.root.engine.store, names, condition)

    def history(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        wanted = (pc.field("state") == "deleted") & pc.field(REWINDABLE)
        for batch in self.messages(names | {REWINDABLE}, wanted if condition is None else wanted & condition):
            yield batch.filter(batch[REWINDABLE])

    def receipts(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        schema = SCHEMAS["receipts"]

        def rows(at: tuple[QueueRow, int]) -> pa.RecordBatch:
            row, shard = at
            columns = self._ledger(row, shard).rows()[1].flatten()
            place = {"queue": row.name, "region": row.region, "shard": shard}

            def column(field: pa.Field) -> pa.Array:
                if field.name in place:
                    return pa.repeat(pa.scalar(place[field.name], field.type), len(columns))
                of = next(each for each in ("", "run.", "head.") if each + field.name in columns.column_names)
                return columns[of + field.name].combine_chunks()

            return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)

        yield from concurrently(rows, self.shards(condition, schema))

    def queues(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        counted = not names.isdisjoint([*COUNTS.names, UNDECIDED.name])
        rows = self._rows(condition, SCHEMAS["queues"])
        known = noted(self.root, rows, self._instant()) if counted and self.as_of is None else {}
        opened = [row for row in rows if counted and row.key not in known]
        depths = concurrently(self._depth, [(row, shard) for row in opened for shard in range(row.shards)])
        for row in opened:
            known[row.key] = Depth.of([next(depths) for _ in range(row.shards)], 0)
        shown = [_queue(row, known.get(row.key, Depth.of([], 0))) for row in rows]
        yield pa.RecordBatch.from_pylist(shown, SCHEMAS["queues"])

    def groups(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        schema, store = SCHEMAS["groups"], self.root.engine.store
        for row in self._rows(condition, schema):
            shards = self._shards(names_are(row.name, row.region))
            sums = group_depth.summed(shards, store, row.attributes.get("FifoQueue") == "true")
            named = [pa.repeat(row.name, len(sums)), pa.repeat(row.region, len(sums)), *sums.columns]
            yield from pa.Table.from_arrays(named, schema=schema).to_batches()

    def stats(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        schema = SCHEMAS["stats"]
        for part in stats_rows.parts(self.root.engine, self.root.path):
            yield from part.select(schema.names).cast(schema).to_batches()

    def _depth(self, place: tuple[QueueRow, int]) -> ShardDepth:
        messages = layout.messages_path(self.root.path, place[0].key, place[1])
        machine = self._ledger(*place).machine(lambda: LogReader(self._open(messages)).log)
        depth = ShardDepth.of(machine, self._instant())
        if self.now is None and machine.expired:
            self.root.check_expiry(machine.now, machine.head.committed_at, messages, lambda: True)
        return depth

    def _ledger(self, row: QueueRow, shard: int) -> Ledger:
        return Ledger(self._open(layout.receipts_path(self.root.path, row.key, shard)))

    def _shards(self, condition: ds.Expression | None) -> Iterator[JudgedShard]:
        now = self._instant()

        def judged(place: tuple[QueueRow, int]) -> JudgedShard:
            messages = layout.messages_path(self.root.path, place[0].key, place[1])
            pin_files(self.root.engine.store.folder(messages))  # they are read later, or in another process
            doubt = self.root.check_expiry if self.now is None else None
            return JudgedShard.load(place[0], self.root.path, place[1], self._open, now, doubt)

        yield from concurrently(judged, self.shards(condition, JUDGED))

    def shards(self, condition: ds.Expression | None, schema: pa.Schema) -> list[tuple[QueueRow, int]]:
        """Returns the shards that may meet the condition, judged by their queue, region and shard number."""
        places = [(row, shard) for row in self._rows(condition, schema) for shard in range(row.shards)]
        known = [
            [names_are(row.name, row.region) & (pc.field("shard") == pa.scalar(shard, pa.int32()))]
            for row, shard in places
        ]
        return [places[index] for index in surviving(known, condition, schema)]

    def _rows(self, condition: ds.Expression | None, schema: pa.Schema) -> list[QueueRow]:
        rows = self.past
        if rows is None:
            rows = [row for row in self.root.rows() if row.deleted_at is None]
        known = [[names_are(row.name, row.region)] for row in rows]
        return [rows[index] for index in surviving(known, condition, schema)]

    def _open(self, path: str) -> Table:
        return opened(self.root, path, self.as_of)

    def _instant(self) -> int:
        return self.root.now() if self.now is None else to_micros(self.now)


def _queue(row: QueueRow, depth: Depth) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ("region", "created_at", "modified_at", "tags", "shards")}
    attributes = {name: value for name, value in row.attributes.items() if name not in HIDDEN}
    return attrs.asdict(depth.counts) | shown | {"queue": row.name, "attributes": attributes}
