"""Rows of a FIFO queue in the order of its groups, sorted by DuckDB, which moves to disk what it cannot hold."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.storage.bulk.arrow_rows import NUMBER, ORDER, type_name
from lakequeue.storage.bulk.message_rules import Fifo, no_order

MEMORY = "512MB"
"""What the sort holds at most; the rest of the rows lies in a temporary directory."""
_SHARD = "_shard"
_ROWS = 2_048


def check_order(schema: pa.Schema, order_by: str | None) -> None:
    """InvalidParameterValue if the column that orders groups has no order."""
    type_ = None if order_by is None else schema.field(order_by).type
    if type_ is not None and (pa.types.is_nested(type_) or pa.types.is_null(type_)):
        raise no_order(str(order_by), type_name(type_))


def in_order(rows: Iterable[pa.RecordBatch], fifo: Fifo) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """The shards that get some of the rows, and the rows of each, by group; a group's by ``_order`` and number.

    Take all rows of a shard before the next shard.
    """
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return
    failures: list[BaseException] = []

    def placed() -> Iterator[pa.RecordBatch]:
        try:
            yield from (_placed(each, fifo.shards) for each in chain([first], rows))
        except BaseException as error:  # on its way through DuckDB it would lose its class
            failures.append(error)
            raise

    with (
        _first_of(failures),
        tempfile.TemporaryDirectory(prefix="lakequeue-sort-") as directory,
        duckdb.connect(":memory:", config={"memory_limit": MEMORY, "temp_directory": directory}) as connection,
    ):
        connection.register(
            "given", pa.RecordBatchReader.from_batches(_placed(first, fifo.shards).schema, placed())
        )
        order = [_SHARD, "group_id", *([] if fifo.order_by is None else [ORDER]), NUMBER]
        ordered = connection.sql(f"SELECT * FROM given ORDER BY {', '.join(order)}").to_arrow_reader(_ROWS)
        pieces = (piece for batch in ordered for piece in _by_shard(batch))
        for shard, parts in groupby(pieces, key=lambda piece: int(piece[_SHARD][0].as_py())):
            yield shard, (_like(part, first.schema) for part in parts)


@contextmanager
def _first_of(failures: Sequence[BaseException]) -> Iterator[None]:
    """Raises the failure of the rows, if there is one, instead of what DuckDB says of it."""
    try:
        yield
    except duckdb.Error:
        if failures:
            raise failures[0] from None
        raise


def _placed(rows: pa.RecordBatch, shards: int) -> pa.RecordBatch:
    """Rows with the shard that their groups hash to."""
    groups = rows["group_id"].dictionary_encode()
    hashes = [zlib.crc32(group.encode()) % shards for group in groups.dictionary.to_pylist()]
    return rows.append_column(_SHARD, pa.array(hashes, pa.int32()).take(groups.indices))


def _by_shard(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    runs = pc.run_end_encode(batch[_SHARD])
    start = 0
    for end in runs.run_ends.to_pylist():
        yield batch.slice(start, end - start)
        start = end


def _like(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Columns as they were before the sort, without those that only the sort needed."""
    return batch.select([name for name in schema.names if name != ORDER]).cast(
        pa.schema([field for field in schema if field.name != ORDER])
    )
