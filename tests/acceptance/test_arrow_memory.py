"""Memory of sends and leases through Arrow is bounded by the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from benchmarks import arrow

from lakequeue import LakeQueue

ROWS, SIZE = 65_536, 1_024
"""64 MiB."""
BOUND = 32 * 2**20


def test_a_send_and_a_lease_hold_a_few_row_groups(lq: LakeQueue) -> None:
    schema, held = pa.schema([("body", pa.string())]), []

    def rows() -> Iterator[pa.RecordBatch]:
        for start in range(0, ROWS, 1_000):
            held.append(pa.total_allocated_bytes())
            count = min(1_000, ROWS - start)
            yield pa.record_batch([[f"{start + number:{SIZE}}" for number in range(count)]], schema=schema)

    queue = lq.create_queue("orders")
    before = pa.total_allocated_bytes()
    assert queue.send_arrow(pa.RecordBatchReader.from_batches(schema, rows())) == ROWS
    assert max(held) - before < BOUND
    lease = queue.lease()
    assert lease is not None
    assert lease.arrow(["body"]).nbytes > 2 * BOUND  # all of it: the measure can fail
    found = 0
    for batch in lease.batches():
        found += len(batch)
        assert pa.total_allocated_bytes() - before < BOUND
    assert found == ROWS


def test_so_are_the_groups_of_a_fifo_queue(lq: LakeQueue) -> None:
    schema, held = pa.schema([("body", pa.string()), ("group_id", pa.string())]), []

    def rows() -> Iterator[pa.RecordBatch]:
        for start in range(0, ROWS, 1_000):
            held.append(pa.total_allocated_bytes())
            numbers = range(start, min(start + 1_000, ROWS))
            groups = [f"g{number % 997}" for number in numbers]
            yield pa.record_batch([[f"{number:{SIZE}}" for number in numbers], groups], schema=schema)

    queue = lq.create_queue("orders.fifo", fifo=True, content_based_deduplication=True)
    before = pa.total_allocated_bytes()
    assert queue.send_arrow(pa.RecordBatchReader.from_batches(schema, rows())) == ROWS
    assert max(held) - before < BOUND


@pytest.mark.slow
def test_the_memory_of_a_process_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    peaks = []
    for rows in (20_000, 400_000):
        arrow.write_input(data := str(tmp_path / f"{rows}.arrows"), rows)
        peaks.append(arrow.measured("ours", data, str(tmp_path / "root"), rows)[1])
    assert peaks[1] - peaks[0] < 48, f"{peaks} MiB for 20 and 390 MiB of bodies"
