"""The list of the files that a relay has sent, which is stored in numbered parts in the queue's directory.

Each batch of files has a part with the number of the batch. The process that creates the part decides which files
are in the batch. Parts that were merged have only digests of the files.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.folder import Folder, ListedFile
from lakequeue.storage.parquet_files import write_table

DIGEST = pa.binary(16)
FILES = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("modified_at", layout.INSTANT), ("digest", DIGEST)]
)
"""Columns of a part, the file that records one batch of files. Merged parts have the columns ``_MERGED``."""
_MERGED = pa.schema([("bucket", pa.int32()), ("digest", DIGEST)])
_PART = re.compile(r"batch-(\d{19})\.parquet|sent-(\d{19})-(\d{19})\.parquet")
BATCH = 50_000
"""Maximum number of files in a batch."""
MERGE, LARGEST = 32, 32 * 2**20
"""Parts are merged when there are ``MERGE`` of them. A merged part has at most about ``LARGEST`` bytes."""
_BUCKETS, _CHUNK = 64, 65_536


class SentFiles:
    """The files that a relay has sent. The newest batch has the number ``last``, which is 0 without a batch."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.refresh()

    def refresh(self) -> None:
        """Lists the parts that exist now."""
        batches: dict[int, ListedFile] = {}
        merged: dict[tuple[int, int], ListedFile] = {}
        for entry in self._folder.files():
            match = _PART.fullmatch(entry.name)
            if match and match[1]:
                batches[int(match[1])] = entry
            elif match:
                merged[int(match[2]), int(match[3])] = entry
        end = max((end for _, end in merged), default=0)
        inside = {each for each in merged for other in merged if other != each and _covers(other, each)}
        self._left_over = [
            *(merged.pop(each).name for each in inside),
            *(batches.pop(number).name for number in [*batches] if number <= end),
        ]
        self._batches, self._merged = batches, merged
        self.last = max([end, *batches])

    def decide(self, number: int, files: pa.Table) -> bool:
        """Stores the list of a batch's files. Returns False if another process has already stored the batch."""
        output = pa.BufferOutputStream()
        write_table(files, output)
        return self._folder.create(_batch(number), output.getvalue().to_pybytes()) is not None

    def batch(self, number: int) -> pa.Table:
        """Returns the list of a batch's files. Raises QueueClientError if the stored list no longer exists."""
        try:
            return self._folder.rows(_batch(number), self._folder.entry(_batch(number)).size)
        except FileNotFoundError:
            raise QueueClientError(
                f"batch {number} of a relay of files was not sent, and {self._folder.uri} no longer has it"
            ) from None

    def new(self, found: Iterable[tuple[str, int, int]]) -> Iterator[pa.Table]:
        """Yields the files among ``found`` that were not sent yet, in batches.

        ``found`` has a tuple for each file: path, size in bytes, and time of the last change in microseconds.
        """
        waiting: list[pa.Table] = []
        recent = [self._folder.rows(each.name, each.size, ["digest"])["digest"] for each in self._batches.values()]
        with tempfile.TemporaryDirectory(prefix="lakequeue-files-") as directory:
            for bucket, path in _spilled(found, directory):
                with pa.memory_map(path) as source:
                    rows = pa.ipc.open_file(source).read_all()
                    known = [*recent, *self._merged_digests(bucket)]
                    rows = rows.filter(pc.invert(pc.is_in(rows["digest"], value_set=_joined(known))))
                    # a store may list a file twice
                    firsts = [(name, "first") for name in FILES.names[:-1]]
                    rows = rows.group_by("digest", use_threads=False).aggregate(firsts)
                waiting.append(pa.table([*rows.columns[1:], rows.columns[0]], schema=FILES))
                while sum(map(len, waiting)) >= BATCH:
                    rows = pa.concat_tables(waiting)
                    waiting = [rows.slice(BATCH)]
                    yield _in_order(rows.slice(0, BATCH))
        if sum(map(len, waiting)):
            yield _in_order(pa.concat_tables(waiting))

    def merge(self) -> None:
        """If there are many parts, merges all but the newest batch's part. That batch may not be sent yet."""
        self._folder.remove(self._left_over)
        ranges = sorted(self._merged)
        number = [each for each in sorted(self._batches) if each != self.last]
        if len(number) >= MERGE:
            self._merge((number[0], number[-1]), [self._batches[each] for each in number])
        elif len(ranges) >= MERGE:
            chosen: list[tuple[int, int]] = []
            for each in reversed(ranges):  # the newest are the smallest
                if sum(self._merged[other].size for other in (*chosen, each)) > LARGEST:
                    break
                chosen.append(each)
            if len(chosen) >= MERGE // 2:
                self._merge((chosen[-1][0], chosen[0][1]), [self._merged[each] for each in chosen])

    def _merge(self, range_: tuple[int, int], parts: Sequence[ListedFile]) -> None:
        digests = pa.concat_tables([self._folder.rows(each.name, each.size, ["digest"]) for each in parts])
        column = digests.sort_by("digest")["digest"].combine_chunks()
        rows = pa.table([pa.array(_buckets(column), pa.int32()), column], schema=_MERGED)
        output = pa.BufferOutputStream()
        write_table(rows, output, row_group_size=_CHUNK, use_dictionary=False)
        self._folder.offer(f"sent-{range_[0]:019}-{range_[1]:019}.parquet", output.getvalue().to_pybytes())
        self._folder.remove([each.name for each in parts])

    def _merged_digests(self, bucket: int) -> Iterator[pa.ChunkedArray]:
        for entry in self._merged.values():
            with self._folder.parquet(entry.name, entry.size) as file:
                bounds = [
                    file.metadata.row_group(each).column(0).statistics for each in range(file.num_row_groups)
                ]
                groups = [number for number, each in enumerate(bounds) if each.min <= bucket <= each.max]
                yield file.read_row_groups(groups, ["digest"], use_threads=False)["digest"]


def _covers(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _batch(number: int) -> str:
    return f"batch-{number:019}.parquet"


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    return pa.chunked_array([chunk for each in columns for chunk in each.chunks], DIGEST).combine_chunks()


def _in_order(files: pa.Table) -> pa.Table:
    return files.sort_by([("modified_at", "ascending"), ("path", "ascending")])


def _buckets(digests: pa.Array) -> npt.NDArray[np.int32]:
    start = digests.offset * DIGEST.byte_width
    data = np.frombuffer(digests.buffers()[1], np.uint8)[start : start + len(digests) * DIGEST.byte_width]
    return data[:: DIGEST.byte_width].astype(np.int32) * _BUCKETS // 256


def _digest(path: str, size: int, time: int) -> bytes:
    return hashlib.blake2b(f"{size} {time} {path}".encode(), digest_size=DIGEST.byte_width).digest()


def _spilled(found: Iterable[tuple[str, int, int]], directory: str) -> Iterator[tuple[int, str]]:
    paths: dict[int, str] = {}
    rest = iter(found)
    with ExitStack() as opened:
        writers: dict[int, pa.RecordBatchFileWriter] = {}
        while chunk := list(islice(rest, _CHUNK)):
            columns = [*zip(*chunk, strict=True), [_digest(*each) for each in chunk]]
            arrays = [pa.array(values, field.type) for values, field in zip(columns, FILES, strict=True)]
            rows = pa.RecordBatch.from_arrays(arrays, schema=FILES)
            buckets = _buckets(rows["digest"])
            for bucket in np.unique(buckets).tolist():
                if bucket not in writers:
                    paths[bucket] = f"{directory}/{bucket}.arrow"
                    writers[bucket] = opened.enter_context(pa.ipc.new_file(paths[bucket], FILES))
                writers[bucket].write_batch(rows.take(pa.array(np.flatnonzero(buckets == bucket))))
    yield from sorted(paths.items())
