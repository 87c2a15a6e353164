"""Rows of Arrow that are sent in bulk. Needs no extra."""

from __future__ import annotations

import binascii
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

_BATCH = 4_096


def write_input(path: str, rows: int) -> None:
    """Writes a stream of rows of 1 KiB."""
    data = reader(rows, 1_024)
    with pa.ipc.new_stream(path, data.schema) as stream:
        for batch in data:
            stream.write_batch(batch)


def reader(rows: int, size: int) -> pa.RecordBatchReader:
    """Returns rows whose column ``body`` has texts of ``size`` bytes, which hardly compress."""
    numbers = np.random.default_rng(1)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, _BATCH):
            count = min(_BATCH, rows - start)
            text = pa.py_buffer(binascii.hexlify(numbers.bytes(size // 2 * count)))
            ends = pa.py_buffer(np.arange(0, len(text) + 1, size, dtype=np.int32))
            yield pa.record_batch([pa.StringArray.from_buffers(count, ends, text)], ["body"])

    return pa.RecordBatchReader.from_batches(pa.schema([("body", pa.string())]), batches())
