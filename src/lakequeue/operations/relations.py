"""The relations of SQL - ``queues``, ``messages`` and the others of `SCHEMAS` - as Arrow, without a JVM.

Each is a dataset of Arrow, the form in which DuckDB and polars hand down their columns and filters. A read takes
what the tables hold when it begins, and yields batches of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakequeue.model.attributes import HIDDEN
from lakequeue.model.clock import to_micros
from lakequeue.operations import group_depth, sql_views
from lakequeue.operations.browse import SCHEMA
from lakequeue.operations.judged_log import JUDGED, REWINDABLE, JudgedShard, names_are, surviving
from lakequeue.operations.pool import each
from lakequeue.runtime.root import Root
from lakequeue.runtime.shard_ledger import ShardDepth
from lakequeue.storage import layout, past_versions, stats
from lakequeue.storage.catalog import QueueRow, rows_of
from lakequeue.storage.cleaning import pin_files
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.read import LogReader

_TYPES: Mapping[str, pa.DataType] = {
    "STRING": pa.string(),
    "TIMESTAMP": layout.INSTANT,
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
}


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, _TYPES[type_]) for name, type_ in columns.items()])


SCHEMAS: Mapping[str, pa.Schema] = {
    "queues": _schema(sql_views.QUEUES),
    "messages": SCHEMA,
    "receipts": _schema(sql_views.RECEIPTS),
    "history": _schema(sql_views.HISTORY),
    "groups": _schema(group_depth.GROUPS),
    "stats": _schema(sql_views.STATS),
}
"""The columns of each relation, those of the views of ``sql_views``."""

Batches = Iterator[pa.RecordBatch]


class Scan:
    """One read of a relation: some columns of the rows that meet a condition; made for a single use.

    It is not Arrow's own scanner, whose threads would hold objects of Python (see ``Folder.parquet``).
    """

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
    """A relation as a dataset of Arrow: ``scanner``, ``to_table``, ``to_batches``, ``head`` and ``count_rows``.

    The arguments ``columns``, a list of names, and ``filter``, an expression of Arrow, decide what is read: other
    queues, and files that cannot have such rows, stay closed. Other arguments are ignored.
    """

    def __init__(self, schema: pa.Schema, read: Callable[[frozenset[str], ds.Expression | None], Batches]) -> None:
        # a dataset of Arrow itself has no constructor; nothing of it is used but its type
        self._schema, self._read = schema, read
        self.failure: Exception | None = None
        """The error that ended the last read: what reads through C reports its text only."""

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: Any) -> Scan:
        """Begins a read."""
        shown = list(self._schema.names if columns is None else columns)
        schema = pa.schema([self._schema.field(name) for name in shown])
        # an expression does not tell its fields: a name that only occurs in its text is read in vain
        needed = frozenset(name for name in self._schema.names if name in shown or name in str(filter))
        return Scan(schema, self._chosen(schema, needed, filter))

    def _chosen(self, schema: pa.Schema, needed: frozenset[str], filter: ds.Expression | None) -> Batches:
        self.failure = None
        try:
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
    """The relations by name; ``LakeQueue.arrow_views`` says what they are."""
    source = _Tables.of(root, now, as_of)
    reads = {
        "queues": source.queues,
        "messages": source.messages,
        "receipts": source.receipts,
        "history": source.history,
        "groups": source.groups,
        "stats": source.stats,
    }
    return {name: Relation(SCHEMAS[name], read) for name, read in reads.items()}


def judged_shards(root: Root, condition: ds.Expression) -> Iterator[JudgedShard]:
    """The shards of the queues that a condition over `JUDGED` leaves, as they are now."""
    with root.storage_errors():
        yield from _Tables.of(root, None, None)._shards(condition)


@attrs.frozen
class _Tables:
    """Reads what a root's tables say, now or as of an instant."""

    root: Root
    now: datetime | None
    versions: Mapping[str, int] | None = None
    """Of the tables as of an instant, by path."""
    past: Sequence[QueueRow] = ()
    """The queues of that instant."""

    @classmethod
    def of(cls, root: Root, now: datetime | None, as_of: datetime | None) -> _Tables:
        known = sql_views.shown_queues(root, now, as_of)
        if as_of is None:
            return cls(root, now)
        store = root.engine.store
        with root.storage_errors():
            versions = sql_views.versions_at(store, known, as_of)
            number = versions.get(layout.queues_path(root.path))
            if number is None:
                return cls(root, now or as_of, versions)
            path = layout.queues_path(root.path)
            rows = rows_of(past_versions.opened(store, path, number), root.path)
            past = [row for row in rows if layout.receipts_path(root.path, row.key, 0) in versions]
        return cls(root, now or as_of, versions, past)

    def messages(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        with self.root.storage_errors():
            for shard in self._shards(condition):
                yield from shard.batches(self.root.engine.store, names, condition)

    def history(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        wanted = (pc.field("state") == "deleted") & pc.field(REWINDABLE)
        if condition is not None:
            wanted = wanted & condition
        with self.root.storage_errors():
            for shard in self._shards(condition):
                for batch in shard.batches(self.root.engine.store, names | {REWINDABLE}, wanted):
                    yield batch.filter(batch[REWINDABLE])

    def receipts(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        def rows(place: tuple[QueueRow, int]) -> pa.RecordBatch:
            row, shard = place
            ledger = Ledger(self._open(layout.receipts_path(self.root.path, row.key, shard)))
            return _receipts(row, shard, ledger.rows()[1])

        with self.root.storage_errors():
            yield from each(rows, self._places(condition, SCHEMAS["receipts"]))

    def queues(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        counted = not names.isdisjoint(sql_views.COUNTS)
        with self.root.storage_errors():
            rows = self._rows(condition, SCHEMAS["queues"])
            places = [(row, shard) for row in rows for shard in range(row.shards)] if counted else []
            depths = each(self._depth, places)
            shown = [_queue(row, [next(depths) for _ in range(row.shards if counted else 0)]) for row in rows]
        yield pa.RecordBatch.from_pylist(shown, SCHEMAS["queues"])

    def groups(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        schema, store = SCHEMAS["groups"], self.root.engine.store
        with self.root.storage_errors():
            for row in self._rows(condition, schema):
                shards = self._shards(names_are(row.name, row.region))
                sums = group_depth.summed(shards, store, row.attributes.get("FifoQueue") == "true")
                named = [pa.repeat(row.name, len(sums)), pa.repeat(row.region, len(sums)), *sums.columns]
                yield from pa.Table.from_arrays(named, schema=schema).to_batches()

    def stats(self, names: frozenset[str], condition: ds.Expression | None) -> Batches:
        schema = SCHEMAS["stats"]
        with self.root.storage_errors():
            for part in stats.parts(self.root.engine, self.root.path):
                yield from part.select(schema.names).cast(schema).to_batches()

    def _depth(self, place: tuple[QueueRow, int]) -> tuple[ShardDepth, int]:
        row, shard = place
        ledger = Ledger(self._open(layout.receipts_path(self.root.path, row.key, shard)))
        messages = layout.messages_path(self.root.path, row.key, shard)
        machine = ledger.machine(lambda: LogReader(self._open(messages)).log)
        instant = max(self._instant(), machine.head.committed_at)
        return ShardDepth.of(machine, instant), instant

    def _shards(self, condition: ds.Expression | None) -> Iterator[JudgedShard]:
        now = self._instant()

        def judged(place: tuple[QueueRow, int]) -> JudgedShard:
            messages = layout.messages_path(self.root.path, place[0].key, place[1])
            pin_files(self.root.engine.store.folder(messages))  # they are read later, or in another process
            return JudgedShard.load(place[0], self.root.path, place[1], self._open, now)

        yield from each(judged, self._places(condition, JUDGED))

    def _places(self, condition: ds.Expression | None, schema: pa.Schema) -> list[tuple[QueueRow, int]]:
        """The shards that a condition over a schema leaves."""
        places = [(row, shard) for row in self._rows(condition, schema) for shard in range(row.shards)]
        known = [
            [names_are(row.name, row.region) & (pc.field("shard") == pa.scalar(shard, pa.int32()))]
            for row, shard in places
        ]
        return [places[index] for index in surviving(known, condition, schema)]

    def _rows(self, condition: ds.Expression | None, schema: pa.Schema) -> list[QueueRow]:
        """The queues that a condition over a schema leaves."""
        rows = self.past
        if self.versions is None:
            rows = [row for row in self.root.rows() if row.deleted_at is None]
        known = [[names_are(row.name, row.region)] for row in rows]
        return [rows[index] for index in surviving(known, condition, schema)]

    def _open(self, path: str) -> Table:
        if self.versions is None:
            return self.root.engine.open(path)
        return past_versions.opened(self.root.engine.store, path, self.versions[path])

    def _instant(self) -> int:
        return self.root.now() if self.now is None else to_micros(self.now)


def _receipts(row: QueueRow, shard: int, rows: pa.Table) -> pa.RecordBatch:
    run, head = (rows[name].combine_chunks() for name in ("run", "head"))

    def column(name: str) -> pa.Array:
        if name in ("queue", "region"):
            return pa.repeat(row.name if name == "queue" else row.region, len(rows))
        if name == "shard":
            return pa.repeat(pa.scalar(shard, pa.int32()), len(rows))
        if name in layout.RECEIPTS.names:
            return rows[name].combine_chunks()
        return pc.struct_field(run if name in layout.RUN.names else head, name)

    schema = SCHEMAS["receipts"]
    return pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)


def _queue(row: QueueRow, depths: Sequence[tuple[ShardDepth, int]]) -> dict[str, Any]:
    counts = [depth.counts for depth, _ in depths]
    ages = [
        (instant - depth.oldest_sent_at) / 1e6 for depth, instant in depths if depth.oldest_sent_at is not None
    ]
    return {
        "queue": row.name,
        "region": row.region,
        "created_at": row.created_at,
        "modified_at": row.modified_at,
        "attributes": {name: value for name, value in row.attributes.items() if name not in HIDDEN},
        "tags": dict(row.tags),
        "shards": row.shards,
        **{
            name: sum(getattr(count, name) for count in counts)
            for name in ("visible", "in_flight", "delayed", "held", "rewindable")
        },
        "oldest_age": max(ages, default=None),
    }
