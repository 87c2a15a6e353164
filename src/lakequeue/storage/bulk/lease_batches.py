"""The messages of a lease as Arrow record batches, read from the files that hold them without a JVM.

Everything here works in any process: places and columns are values, and a ``Store`` is made from a root and its
options.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.receipt_handles import MAC_LENGTH
from lakequeue.model.sequence_numbers import sequence_number
from lakequeue.storage import layout
from lakequeue.storage.bulk.lease_frame import LeaseColumns, LeasePlace
from lakequeue.storage.messages.read import check_order
from lakequeue.storage.stores import Store

SCHEMA = pa.schema(
    [
        layout.MESSAGES.field("message_id"),
        layout.MESSAGES.field("body"),
        ("receipt_handle", pa.string()),
        ("sent_at", layout.INSTANT),
        layout.MESSAGES.field("message_attributes"),
        layout.MESSAGES.field("group_id"),
        layout.MESSAGES.field("delay_seconds"),
        ("receive_count", pa.int32()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        layout.MESSAGES.field("dedup_id"),
        ("sequence_number", pa.string()),
    ]
)
"""Columns of ``Lease.messages``, with Arrow's types."""

_STORED = ("message_id", "body", "message_attributes", "group_id", "delay_seconds", "dedup_id")
_SENT_AT = ("first_sent_at", "sent_at")


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """``SCHEMA``, or some of its columns in the order given.

    Raises:
        InvalidParameterValue: a name is unknown.
    """
    if columns is None:
        return SCHEMA
    names = [columns] if isinstance(columns, str) else columns
    unknown = sorted(set(names) - set(SCHEMA.names))
    if unknown:
        raise InvalidParameterValue(
            f"Columns {', '.join(unknown)} are not known; a lease has {', '.join(SCHEMA.names)}."
        )
    return pa.schema([SCHEMA.field(name) for name in names])


def files_of(places: Iterable[LeasePlace]) -> list[list[LeasePlace]]:
    """Places by file, in the order of their offsets in each; the files are in the order of their first places."""
    found: dict[str, list[LeasePlace]] = {}
    for place in places:
        found.setdefault(place.path, []).append(place)
    return [sorted(of_file, key=lambda place: place.first_position) for of_file in found.values()]


def read_places(
    store: Store, places: Sequence[LeasePlace], lease: LeaseColumns, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages at places in one file, a batch for each row group; holds two row groups at a time.

    Where bodies are read, messages that were erased after the claim are left out.

    Args:
        store: the root's storage.
        places: adjacent messages each, ordered by position, all in the same file.
        lease: what their handles are made from.
        columns: some of ``SCHEMA``, None for all.
    """
    schema = schema_of(columns)
    directory, _, name = places[0].path.rpartition("/")
    folder = store.folder(directory)
    wanted = [name for name in _STORED if name in schema.names]
    if "sent_at" in schema.names:
        wanted += _SENT_AT

    def read() -> Iterator[_Rows]:
        with folder.parquet(name, places[0].size or folder.size(name)) as file:
            for group, begin, parts in _row_groups(file, places):
                rows = file.read_row_group(group, columns=["position", *wanted], use_threads=False)
                check_order(rows["position"], begin, directory, name)
                if len(parts) == 1:
                    rows = rows.slice(parts[0].start, parts[0].rows)
                else:
                    rows = rows.take(np.concatenate([np.arange(part.start, part.stop) for part in parts]))
                counts = np.repeat([part.place.receive_count for part in parts], [part.rows for part in parts])
                rows = rows.append_column("receive_count", pa.array(counts))
                if "body" in wanted:
                    full = pc.not_equal(rows["body"].cast(pa.string()), "")  # an empty one marks an erased message
                    rows = rows if pc.all(full).as_py() else rows.filter(full)
                yield _Rows(rows.combine_chunks(), places[0], lease)

    for found in _ahead(read()):
        yield pa.record_batch([found.column(field) for field in schema], schema=schema)


def _ahead(items: Iterator[_Rows]) -> Iterator[_Rows]:
    """The items, of which a thread makes the next one meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


class _Part(NamedTuple):
    """Rows of a row group that are at a place."""

    start: int
    stop: int
    place: LeasePlace

    @property
    def rows(self) -> int:
        return self.stop - self.start


def _row_groups(file: pq.ParquetFile, places: Sequence[LeasePlace]) -> Iterator[tuple[int, int, list[_Part]]]:
    """The row groups that hold some of the messages, with their first positions, which are adjacent."""
    positions = file.read_row_group(0, columns=["position"], use_threads=False)["position"]
    begin: int = positions[0].as_py()
    first = 0  # of the places that do not end before the row group
    for group in range(file.num_row_groups):
        end = begin + file.metadata.row_group(group).num_rows
        while first < len(places) and places[first].last_position < begin:
            first += 1
        parts = []
        for place in places[first:]:
            if place.first_position >= end:
                break
            start, stop = max(place.first_position, begin), min(place.last_position + 1, end)
            parts.append(_Part(start - begin, stop - begin, place))
        if parts:
            yield group, begin, parts
        begin = end


class _Rows:
    """Rows of a row group with their receive counts, and the columns that a lease makes from them."""

    def __init__(self, rows: pa.Table, place: LeasePlace, lease: LeaseColumns) -> None:
        self._rows = rows
        self._place = place
        self._lease = lease

    def column(self, field: pa.Field) -> pa.Array:
        if field.name in (*_STORED, "receive_count"):
            return self._stored(field.name, field.type)
        if field.name == "shard":
            return pa.repeat(pa.scalar(self._place.shard, field.type), len(self._rows))
        if field.name == "sent_at":
            opened_at = pa.scalar(self._place.opened_at, pa.int64()).cast(field.type)
            return pc.coalesce(*(self._stored(name, field.type) for name in _SENT_AT), opened_at)
        offsets = self._stored("position", pa.int64()).to_numpy() + self._place.base_offset
        if field.name == "offset":
            return pa.array(offsets, field.type)
        if field.name == "receipt_handle":
            return _receipt_handles(offsets, self._place.shard, self._lease)
        if not self._lease.fifo:
            return pa.nulls(len(self._rows), field.type)
        return pa.array([sequence_number(self._place.shard, offset) for offset in offsets.tolist()], field.type)

    def _stored(self, name: str, type_: pa.DataType) -> pa.Array:
        """A column of the file in one piece; delta-rs and Spark may have written it with another type."""
        column = self._rows[name]
        return (column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()).cast(type_)


def _receipt_handles(offsets: npt.NDArray[np.int64], shard: int, lease: LeaseColumns) -> pa.Array:
    """``HandleSigner.sign`` for many offsets: the digest of what all handles begin with is computed once."""
    before, after = f"{lease.key}-{shard}-", f"-{lease.lease_id}"
    begun, ending = hashlib.sha256((lease.lease_key + before).encode()), after.encode()
    digests = []
    for offset in offsets.tolist():
        digest = begun.copy()
        digest.update(b"%d%b" % (offset, ending))
        digests.append(digest.digest()[: MAC_LENGTH // 2])
    macs = pa.py_buffer(binascii.hexlify(b"".join(digests)))
    ends = pa.py_buffer(np.arange(0, len(macs) + 1, MAC_LENGTH, dtype=np.int32))
    signed = pa.StringArray.from_buffers(len(offsets), ends, macs)
    return pc.binary_join_element_wise(before, pa.array(offsets).cast(pa.string()), f"{after}-", signed, "")
