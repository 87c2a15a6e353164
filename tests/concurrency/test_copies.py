"""Copies of roots that busy processes write to: what was acknowledged before is delivered, whoever moved it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from concurrency.harness import unfinished
from concurrency.processes import (
    SOAK_SECONDS,
    TEN_MINUTES,
    WORKER,
    Processes,
    Workers,
    drain_receipts,
    judge,
    receipts_of,
)
from lakequeue import Finding, LakeQueue, Queue, RedrivePolicy, SendEntry


@attrs.frozen
class Copied:
    """A copy, and when it was made; instants in microseconds, and by the diaries' clock."""

    queue: Queue
    begun_at: int
    ended_at: int
    begun: float


def copied(lq: LakeQueue, root: Path | str) -> Copied:
    begun_at, begun = time.time_ns() // 1_000, time.monotonic()
    to = LakeQueue(str(root))
    lq.copy(to)
    return Copied(to.queue("orders"), begun_at, time.time_ns() // 1_000, begun)


def copy_beside(workers: Workers, lq: LakeQueue, roots: Sequence[Path | str], seconds: float) -> list[Copied]:
    """Makes copies beside three processes that send, receive and delete, and one that removes whatever it may."""
    for name in "abc":
        workers.start(name)
    workers.start_compactor("compactor")
    for name in "abc":
        workers.wait_until_ready(name)
    workers.run(at_least=1, at_most=40, until=dict.fromkeys("abc", 5))
    copies, until = [], time.monotonic() + seconds
    for root in roots:
        copies.append(copied(lq, root))
        time.sleep(max(0.0, until - time.monotonic()) / len(roots))
    workers.stop()
    return copies


def damage_of(root: Path | str) -> list[Finding]:
    return [finding for finding in LakeQueue(str(root)).check() if finding.damage]


def check_copy(workers: Workers, copy: Copied) -> int:
    """Empties a copy, and compares what came with the diaries; returns how many messages had to come."""
    events = workers.events()
    bodies = {e["receipt"]: e["body"] for diary in events for e in diary if e["event"] == "got"}
    sent = {
        body
        for diary in events
        for e in diary
        if e["event"] == "sent" and e["clock"] < copy.begun
        for body in e["bodies"]
    }
    touched = {
        bodies[e["receipt"]]
        for diary in events
        for e in diary
        if e["event"] == "delete" and e["at"] <= copy.ended_at
    }
    final = {
        receipt.body
        for diary in events
        for receipt in receipts_of(diary)
        if receipt.deleted_at is not None and receipt.deleted_at < copy.begun_at
    }
    assert damage_of(copy.queue._runtime.root.path) == []
    came = [receipt.body for receipt in drain_receipts(copy.queue)]
    assert len(set(came)) == len(came)
    assert sent - touched <= set(came), "an acknowledged message is not in the copy"
    assert not final & set(came), "a message comes again that was deleted before"
    return len(sent - touched)


@pytest.mark.spec("DUR-40", "DUR-41")
@pytest.mark.parametrize(
    ("workers", "copies", "seconds"),
    [
        pytest.param(2, 2, 5, marks=pytest.mark.slow, id="two copies"),
        *(
            pytest.param(
                shards, int(SOAK_SECONDS / 15), SOAK_SECONDS, marks=TEN_MINUTES, id=f"{shards}, ten minutes"
            )
            for shards in (1, 4)
        ),
    ],
    indirect=["workers"],
)
def test_copies_while_four_processes_are_busy(
    workers: Workers, tmp_path: Path, copies: int, seconds: float
) -> None:
    roots = [tmp_path / str(number) for number in range(copies)]
    made = copy_beside(workers, LakeQueue(str(workers.root)), roots, seconds)
    assert max([check_copy(workers, copy) for copy in made]) > 0
    judge(workers)


@pytest.mark.spec("DUR-41", "DLQ-2")
@pytest.mark.parametrize("copies", [3, pytest.param(40, marks=pytest.mark.long)])
def test_copies_while_processes_move_messages(processes: Processes, copies: int) -> None:
    lq = LakeQueue(str(processes.root))
    lq.create_queue("dead", shards=2)
    queue = lq.create_queue("orders", shards=2, redrive_policy=RedrivePolicy("dead", 2))
    sent = {f"{number:03}" for number in range(40)}
    for body in sorted(sent):
        queue.send_batch([SendEntry(body)])
    for name in "abc":
        processes.begin(name, WORKER, "move", processes.place, name, processes.stop_file)
    time.sleep(2)
    for number in range(copies):
        copied(lq, processes.root.parent / str(number))
    processes.stop()
    for number in range(copies):
        copy = LakeQueue(str(processes.root.parent / str(number)))
        assert damage_of(copy.root) == []
        assert not any(summary.failures for summary in copy.compact())
        queues = copy.list_queues()
        assert not any(map(unfinished, queues))
        stored = [message.body for each in queues for message in each.peek(limit=10_000)]
        assert set(stored) == sent, "a message that moved is not in the copy"
        copy.queue("dead").redrive()
        for _ in range(4):
            copy.queue("orders").receive(10_000, visibility_timeout=0)
        assert {message.body for each in queues for message in each.peek(limit=10_000)} == sent
