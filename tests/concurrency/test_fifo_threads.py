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


@pytest.mark.spec("ATT-1", "ATT-3", "ATT-8", "ATT-11")
@pytest.mark.parametrize("processes", [1, 2])
def test_threads_with_one_attempt_id_get_the_same_receipts(tmp_path: Path, processes: int) -> None:
    targets = (queues(tmp_path / "root", processes) * 8)[:8]
    targets[0].send_batch([SendEntry(f"{n}", group_id=f"g{n % 3}", dedup_id=f"{n}") for n in range(9)])

    def receive(queue: Queue, count: int) -> list[tuple[str, int]]:
        messages = queue.receive(max_messages=count, attempt_id="x")
        return [(message.receipt_handle, message.receive_count) for message in messages]

    answers = at_once([lambda q=queue, n=number: receive(q, n + 2) for number, queue in enumerate(targets)])
    assert all(answer == answers[0] for answer in answers)
    assert {count for _, count in answers[0]} == {1}
    others = targets[0].receive(max_messages=9, attempt_id="y")
    assert not {handle for handle, _ in answers[0]} & {message.receipt_handle for message in others}


@pytest.mark.spec("FIF-12", "FIF-6")
def test_threads_take_whole_groups_off_a_queue_of_many(tmp_path: Path) -> None:
    [queue] = queues(tmp_path / "root", 1)
    queue.send_batch([SendEntry(f"{n}", group_id=f"g{n % 100}", dedup_id=f"{n}") for n in range(300)])

    def receive() -> list[int]:
        taken: list[int] = []
        while messages := queue.receive(max_messages=6):
            taken += [int(message.body) for message in messages]
        return taken

    taken = [number for numbers in at_once([receive] * 8) for number in numbers]
    assert sorted(taken[::3]) == list(range(100))
    assert [taken[1::3], taken[2::3]] == [[number + more for number in taken[::3]] for more in (100, 200)]
