"""Many threads, of one process and of two, on one FIFO queue."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import apart, at_once, log_rows
from lakequeue import Queue, SendEntry
from lakequeue.testing import ManualClock


def queues(root: Path, count: int, clock: Any = None, **attributes: Any) -> list[Queue]:
    """One queue, opened as in several processes."""
    entries = apart(root, clock or ManualClock(), count)
    return [entry.create_queue("orders.fifo", fifo=True, **attributes) for entry in entries]


@pytest.mark.spec("DDP-10", "DDP-8", "DDP-14", "DDP-17")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("scope", ["queue", "message_group"])
def test_sixteen_threads_that_send_one_id_get_one_message(tmp_path: Path, processes: int, scope: str) -> None:
    targets = queues(tmp_path / "root", processes, deduplication_scope=scope) * (16 // processes)

    def send(queue: Queue, number: int) -> tuple[str, str | None]:
        group = "g" if scope == "message_group" else f"g{number}"
        result = queue.send(f"body {number}", group_id=group, dedup_id="one")
        return result.message_id, result.sequence_number

    answers = at_once([lambda q=queue, n=number: send(q, n) for number, queue in enumerate(targets)])
    [row] = log_rows(targets[0])
    assert {message_id for message_id, _ in answers} == {row.message_id}
    assert len(set(answers)) == 1


@pytest.mark.spec("FIF-1", "FIF-3", "FIF-4", "FIF-13")
@pytest.mark.parametrize("processes", [1, 2])
def test_no_thread_receives_a_message_before_the_one_in_front_of_it_is_deleted(
    tmp_path: Path, processes: int
) -> None:
    targets = (queues(tmp_path / "root", processes) * 4)[:4]
    entries = [SendEntry(f"{n}", group_id=f"g{n % 3}", dedup_id=f"{n}") for n in range(15)]
    targets[0].send_batch(entries)
    order: list[tuple[str, int]] = []  # entered while the message still blocks its group
    left = set(range(15))

    def consume(queue: Queue) -> None:
        while left:
            for message in queue.receive(max_messages=1):
                order.append((message.group_id or "", int(message.body)))
                queue.delete(message.receipt_handle)
                left.discard(int(message.body))

    assert at_once([lambda queue=queue: consume(queue) for queue in targets]) == [None] * 4
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for group, number in order:
        groups[group].append(number)
    assert groups == {f"g{start}": list(range(start, 15, 3)) for start in range(3)}
