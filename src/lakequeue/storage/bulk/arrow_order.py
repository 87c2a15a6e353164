"""Rows of a FIFO queue in the order of its groups: spilled by group first, then sorted one part after the other.

DuckDB's sort on disk is no way out: it fails where the rows are a few times what it may hold.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.storage.bulk.arrow_rows import NUMBER, ORDER, type_name
from lakequeue.storage.bulk.message_rules import Fifo, no_order
from lakequeue.storage.bulk.staged_files import ROW_GROUP

PARTS = 16
"""Groups are divided into as many parts at least, of which one is held at a time."""


def check_order(schema: pa.Schema, order_by: str | None) -> None:
    """InvalidParameterValue if the column that orders groups has no order."""
    if order_by is None:
        return
    type_ = schema.field(order_by).type
    if type_name(type_) in ("string", "binary"):  # also as dictionaries and views
        return
    values = type_.value_type if pa.types.is_dictionary(type_) else type_
    try:
        pc.sort_indices(pa.table({"values": pa.array([], values)}), sort_keys=[("values", "ascending")])
    except pa.ArrowException:
        raise no_order(order_by, type_name(type_)) from None


def sorted_by_group(rows: Iterable[pa.RecordBatch], fifo: Fifo) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """The rows by shard and group, those of a group by ``_order`` and number: the shard and rows of each file.

    All rows are taken before the first file. Until then they lie in a temporary directory; then one part of them
    after the other is held, which is a sixteenth of the rows, or the largest group. Take one file before the next.
    """
    parts = fifo.shards * -(-PARTS // fifo.shards)
    with tempfile.TemporaryDirectory(prefix="lakequeue-groups-") as directory:
        paths: dict[int, str] = {}
        with ExitStack() as files:
            writers: dict[int, pa.RecordBatchFileWriter] = {}
            for each in rows:
                for part, piece in _divided(each, parts):
                    if part not in writers:
                        paths[part] = f"{directory}/{part}.arrow"
                        writers[part] = files.enter_context(pa.ipc.new_file(paths[part], piece.schema))
                    writers[part].write_batch(piece)
        for part in sorted(paths, key=lambda part: (part % fifo.shards, part)):
            with pa.memory_map(paths[part]) as source:
                yield part % fifo.shards, _sorted(pa.ipc.open_file(source).read_all())


def _divided(rows: pa.RecordBatch, parts: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows by the part that their groups hash to; its number gives the shard, too."""
    groups = rows["group_id"].dictionary_encode()
    hashes = np.array([zlib.crc32(group.encode()) % parts for group in groups.dictionary.to_pylist()])
    place: npt.NDArray[np.int64] = hashes[groups.indices.to_numpy()]
    for part in np.unique(place).tolist():
        yield part, rows.take(pa.array(np.flatnonzero(place == part)))


def _sorted(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    keys = ["group_id", *([ORDER] if ORDER in rows.column_names else []), NUMBER]
    order = pc.sort_indices(rows, sort_keys=[(key, "ascending") for key in keys])
    if ORDER in rows.column_names:
        rows = rows.drop_columns([ORDER])
    step = max(1, len(rows) * ROW_GROUP // max(1, rows.nbytes))
    for start in range(0, len(rows), step):
        [piece] = rows.take(order.slice(start, step)).combine_chunks().to_batches()
        yield piece
