"""Memory of sends and leases through Arrow is bounded by the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from benchmarks import arrow, arrow_rows

from lakequeue import LakeQueue, Queue

ROWS, SIZE = 65_536, 1_024
"""64 MiB."""
BOUND = 32 * 2**20


def sent(queue: Queue, **more: Callable[[int], str]) -> int:
    """Sends 64 MiB in small batches, and tells how much more than before Arrow held at most meanwhile."""
    columns: dict[str, Callable[[int], str]] = {"body": lambda number: f"{number:{SIZE}}", **more}
    schema, held = pa.schema({name: pa.string() for name in columns}), []

    def rows() -> Iterator[pa.RecordBatch]:
        for start in range(0, ROWS, 1_000):
            held.append(pa.total_allocated_bytes())
            numbers = range(start, min(start + 1_000, ROWS))
            yield pa.record_batch([[*map(of, numbers)] for of in columns.values()], schema=schema)

    before = pa.total_allocated_bytes()
    assert queue.send_arrow(pa.RecordBatchReader.from_batches(schema, rows())) == ROWS
    return max(held) - before


def test_a_send_and_a_lease_hold_a_few_row_groups(lq: LakeQueue) -> None:
    queue, before = lq.create_queue("orders"), pa.total_allocated_bytes()
    assert sent(queue) < BOUND
    lease = queue.lease()
    assert lease is not None
    assert lease.arrow(["body"]).nbytes > 2 * BOUND  # all of it: the measure can fail
    found = 0
    for batch in lease.batches():
        found += len(batch)
        assert pa.total_allocated_bytes() - before < BOUND
    assert found == ROWS


def test_so_are_the_groups_of_a_fifo_queue(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, content_based_deduplication=True)
    assert sent(queue, group_id=lambda number: f"g{number % 997}") < BOUND


@pytest.mark.slow
def test_the_memory_of_a_process_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    peaks = []
    for rows in (20_000, 400_000):
        arrow_rows.write_input(data := str(tmp_path / f"{rows}.arrows"), rows)
        peaks.append(arrow.measured("ours", data, str(tmp_path / "root"), rows)[1])
    assert peaks[1] - peaks[0] < 48, f"{peaks} MiB for 20 and 390 MiB of bodies"
