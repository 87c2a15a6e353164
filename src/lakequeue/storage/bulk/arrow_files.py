"""Writes the files of a bulk send from Arrow rows, without a JVM."""

from __future__ import annotations

import binascii
import hashlib
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.thread_pools import ThreadPool
from lakequeue.storage.bulk import staged_files
from lakequeue.storage.bulk.arrow_rows import NUMBER, ORDER, broken_rows, normalized, type_name
from lakequeue.storage.bulk.bad_rows import RefusedRows
from lakequeue.storage.bulk.manifests import Manifest
from lakequeue.storage.bulk.message_rules import PRIORITY, Fifo, RowRules, no_order
from lakequeue.storage.bulk.staged_files import ROW_GROUP, NumberedFile
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.folder import Folder
from lakequeue.storage.parquet_files import writer

PARTS = 16
"""Minimum number of parts into which FIFO rows are divided for sorting. Sorting loads one part at a time."""


def check_order(schema: pa.Schema, order_by: str | None) -> None:
    """Raises InvalidParameterValue if the column ``order_by`` has a type whose values have no order."""
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
    """Sorts the rows of a FIFO queue by group, in parts on disk. Yields the shard and the rows of each part."""
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
    """Divides rows by the hash of their message groups. Yields the number and the rows of each part."""
    groups = rows["group_id"].dictionary_encode()  # whose hash also determines the shard
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


FILE = 256 << 20
"""Approximate bytes of rows in one file of a standard queue. With several shards, files are smaller."""
_ROWS_OF_A_PARTITION = 33
"""Number of low bits of a row number that hold the row's position. The higher bits hold the partition."""


@attrs.frozen
class Written:
    """Result of writing one partition.

    Attributes:
        files: one file for each priority. Empty if there were no rows, or if a wrong row ends the send.
        given: names of the columns that the rows have.
        broken: number of rows that break each rule, by rule name.
        refused: file of the rows that break rules. None if there are none, or if they are dropped.
        refused_rows: number of rows that break a rule and were diverted or dropped.
    """

    files: Sequence[DataFile]
    given: Collection[str]
    broken: dict[str, int]
    refused: DataFile | None = None
    refused_rows: int = 0


def write_partition(
    messages: Folder,
    staging: Staging,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    in_order: bool = False,
) -> Written:
    """Checks the rows of a partition and writes them to files. Holds about one row group in memory.

    Args:
        partition: number of the partition. If a partition is written twice, pass only one result to ``gather``.
        batches: the rows. ``check_columns`` must have accepted the columns.
        in_order: True if a FIFO queue's rows are already sorted, and consist of whole message groups of one shard.
    """
    checked = CheckedRows(messages, staging, partition, batches)
    spilled = staging.rules.fifo is not None and not in_order
    files = (_spill if spilled else write_files)(messages, staging, partition, iter(checked))
    if checked.refused is None and checked.broken:
        messages.remove([file.path for file in files])
        files = []
    refused = () if checked.refused is None else (checked.refused.file(), checked.refused.rows)
    return Written(files, checked.given, dict(checked.broken), *refused)


def gather(tables: Folder, staging: Staging, written: Sequence[Written], in_order: bool = False) -> Manifest:
    """Returns the manifest of a bulk send, which lists the files of all partitions in order. Commits nothing.

    Rows that break rules are dropped or diverted if ``staging.bad_rows`` is set. Rows of a FIFO queue are sorted,
    unless ``in_order`` is True.

    Raises:
        InvalidParameterValue: rows break a rule. No file is left.
        InvalidMessageContents: the only broken rule is about characters. No file is left.
    """
    messages = staging.messages(tables)

    def files() -> list[DataFile]:
        broken: Counter[str] = Counter()
        for part in written:
            broken.update(part.broken)
        given = {name for part in written for name in part.given}
        _settle(tables, staging, given, broken, [part.refused for part in written])
        found = [file for part in written for file in part.files]
        if staging.rules.fifo is None or in_order:
            return found
        spilled = chain.from_iterable(staged_files.read_spilled(messages, file) for file in found)
        sorted_files = write_sorted(messages, staging, spilled)
        messages.remove([file.path for file in found])
        return sorted_files

    return staging.finish(tables, files)


def _settle(
    tables: Folder,
    staging: Staging,
    given: Collection[str],
    broken: Mapping[str, int],
    refused: Sequence[DataFile | None],
) -> None:
    """Drops or diverts the rows that break rules. Raises the rules' error if ``bad_rows`` is None."""
    if staging.bad_rows is None:
        staging.rules.refuse(given, broken)
    elif broken:
        by, said = f"{tables.uri} {staging.rules}", staging.rules.describe(given, broken)
        files = [file for file in refused if file is not None]
        staging.bad_rows.divert(staging.messages(tables), files, staging.key, by, said)


def stage(tables: Folder, staging: Staging, batches: Iterable[pa.RecordBatch]) -> tuple[Manifest, int]:
    """Checks rows and writes files, but commits nothing. Returns the manifest and the number of refused rows."""
    messages = staging.messages(tables)
    checked = CheckedRows(messages, staging, 0, batches)
    refused = checked.refused

    def check() -> None:
        if refused is None:
            staging.rules.refuse(checked.given, checked.broken)

    def files() -> list[DataFile]:
        if staging.rules.fifo is not None:
            found = write_sorted(messages, staging, checked, check)
        else:
            found = []
            for rows in _cut(iter(checked), FILE // len(staging.shards)):
                found += write_files(messages, staging, len(found), rows)
        _settle(tables, staging, checked.given, checked.broken, [refused.file()] if refused else [])
        return found

    return staging.finish(tables, files), refused.rows if refused else 0


def _cut(pieces: Iterator[pa.RecordBatch], size: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """Divides pieces into files of about ``size`` bytes. Read all pieces of a file before asking for the next."""

    def of_file(first: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        taken = first.nbytes
        yield first
        while taken < size and (piece := next(pieces, None)) is not None:
            taken += piece.nbytes
            yield piece

    return map(of_file, pieces)


class CheckedRows:
    """Yields the rows of a partition that keep all rules, each with a number. Passes other rows to ``refused``."""

    def __init__(
        self, messages: Folder, staging: Staging, partition: int, batches: Iterable[pa.RecordBatch]
    ) -> None:
        self.refused: RefusedRows | None = None
        if staging.bad_rows is not None:
            path = f"{staging.folder}/{staged_files.new_name(partition, 'refused')}"
            self.refused = RefusedRows(messages, path, staging.bad_rows)
        self.given: set[str] = set()
        self.broken: Counter[str] = Counter()
        self._staging = staging
        self._next = partition << _ROWS_OF_A_PARTITION
        self._rows = self._checked(batches)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._rows

    def _checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rules = self._staging.rules
        for rows in normalized(self._seen(batches), rules):
            broken = broken_rows(rows, self.given, rules)
            self.broken.update({name: pc.sum(which).as_py() for name, which in broken.items()})
            numbers = pa.array(np.arange(self._next, self._next + len(rows)), pa.int64())
            self._next += len(rows)
            rows = rows.append_column(NUMBER, numbers)
            if broken and self.refused is not None:
                rows = self.refused.removed_from(rows, broken, rules.of(self.given))
            if len(rows) and (self.refused is not None or not self.broken):
                yield rows

    def _seen(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.given.update(batch.schema.names)
            yield batch


def write_sorted(
    messages: Folder, staging: Staging, rows: Iterable[pa.RecordBatch], check: Callable[[], None] = lambda: None
) -> list[DataFile]:
    """Writes rows of a FIFO queue, sorted by message group. Before each part, calls ``check``, which may raise."""
    fifo = staging.rules.fifo
    assert fifo is not None
    files: list[DataFile] = []
    for _, ordered in sorted_by_group(rows, fifo):
        check()
        files += write_files(messages, staging, len(files), ordered)
    return files


def write_files(
    messages: Folder, staging: Staging, partition: int, rows: Iterable[pa.RecordBatch]
) -> list[DataFile]:
    """Writes numbered rows in order, into one file for each priority. Returns the files."""
    files: dict[int, NumberedFile] = {}
    write: dict[int, Callable[[pa.RecordBatch], None]] = {}
    with ExitStack() as opened:
        for piece in rows:
            for priority, part in _by_priority(piece, staging.rules):
                if priority not in write:
                    path = f"{staging.folder}/{staged_files.new_name(partition, 'part')}"
                    files[priority] = opened.enter_context(staged_files.numbered_file(messages, path))
                    write[priority] = opened.enter_context(_writing(files[priority], staging))
                write[priority](part)
    return [
        attrs.evolve(file.described(), partition={PRIORITY: str(priority)} if priority else {})
        for priority, file in files.items()
    ]


def _by_priority(rows: pa.RecordBatch, rules: RowRules) -> Iterator[tuple[int, pa.RecordBatch]]:
    if rules.priorities is None:
        yield 0, rows
        return
    priorities = rows[PRIORITY].fill_null(float(rules.default_priority)).to_numpy()
    for priority in np.unique(priorities).tolist():
        yield int(priority), rows.filter(pa.array(priorities == priority))


@contextmanager
def _writing(file: NumberedFile, staging: Staging) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yields a function that writes rows to the file. The function writes in another thread."""
    writing = None
    with ThreadPool(1) as thread:  # compresses a piece while the next one is checked

        def write(piece: pa.RecordBatch) -> None:
            nonlocal writing
            table = _stored(piece, staging)
            if writing is not None:
                writing.result()
            writing = thread.submit(file.write, table, len(piece))

        yield write
        if writing is not None:
            writing.result()


def _stored(rows: pa.RecordBatch, staging: Staging) -> pa.Table:
    """Returns the rows with the columns that a file of the table ``messages`` has."""
    rules, count = staging.rules, len(rows)
    columns = {
        "message_id": _message_ids(staging.key.files, rows[NUMBER].to_numpy()),
        "body": rows["body"],
        "message_attributes": rows["message_attributes"],
        "group_id": rows["group_id"],
        "dedup_id": rows["dedup_id"],
        "send_id": pa.repeat(pa.scalar(staging.key.files), count),
    }
    if rules.fifo is None:
        columns["delay_seconds"] = rows["delay_seconds"].fill_null(float(rules.default_delay))
    elif rules.fifo.content_based_deduplication and rows["dedup_id"].null_count:
        columns["dedup_id"] = _content_ids(rows["dedup_id"], rows["body"])
    # FIFO queues have no delay of a message: it is the queue's, whatever it is then (DLY-10)
    schema = staged_files.COLUMNS
    columns |= {field.name: pa.nulls(count, field.type) for field in schema if field.name not in columns}
    return pa.table(columns, schema=schema)


def _message_ids(send_id: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Returns a message id for each row: the MD5 of send id and row number, in the format of UUIDs."""
    begun = hashlib.md5(f"{send_id}-".encode(), usedforsecurity=False)
    digests = []
    for number in numbers.tolist():
        digest = begun.copy()
        digest.update(b"%d" % number)
        digests.append(digest.digest())
    hexadecimal = np.frombuffer(binascii.hexlify(b"".join(digests)), np.uint8).reshape(len(numbers), 32)
    text = np.full((len(numbers), 36), ord("-"), np.uint8)
    text[:, :8], text[:, 9:13], text[:, 15:18] = hexadecimal[:, :8], hexadecimal[:, 8:12], hexadecimal[:, 13:16]
    text[:, 20:23], text[:, 24:] = hexadecimal[:, 17:20], hexadecimal[:, 20:]
    text[:, 14], text[:, 19] = ord("3"), ord("a")
    offsets = np.arange(0, text.size + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def _content_ids(given: pa.Array, bodies: pa.Array) -> pa.Array:
    """Returns the deduplication ids. A missing id is derived from the body of its message (DDP-4)."""
    ids = [
        hashlib.sha256(body.encode()).hexdigest() if id is None else id
        for id, body in zip(given.to_pylist(), bodies.to_pylist(), strict=True)
    ]
    return pa.array(ids, pa.string())


def _spill(messages: Folder, staging: Staging, partition: int, rows: Iterator[pa.RecordBatch]) -> list[DataFile]:
    """Writes numbered rows to a temporary file, which is sorted later. Returns no file if there are no rows."""
    path = f"{staging.folder}/{staged_files.new_name(partition, 'spilled')}"
    first, count = next(rows, None), 0
    if first is None:
        return []
    with messages.writer(path) as output, writer(output, first.schema, use_dictionary=False) as target:
        for piece in chain([first], rows):
            target.write_batch(piece, row_group_size=len(piece))
            count += len(piece)
    return [DataFile(path, messages.entry(path).size, count, {})]
