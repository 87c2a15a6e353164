"""Processes that move messages back and forth and are killed at any time; each message stays in one queue."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from concurrency.harness import log_rows
from concurrency.movers import Movers, unfinished
from concurrency.processes import SOAK_SECONDS, soak
from lakequeue import LakeQueue, RedrivePolicy, SendEntry


@pytest.mark.spec("DLQ-2", "DLQ-8", "QUE-33")
@pytest.mark.parametrize(
    ("movers", "kills", "at_least", "begun"),
    [
        pytest.param("disk", 4, 0, 1, id="disk"),
        pytest.param("s3", 4, 0, 1, marks=pytest.mark.objectstore, id="s3"),
        soak("disk", 20, SOAK_SECONDS, 5),
    ],
    indirect=["movers"],
)
def test_killed_movers_lose_and_double_nothing(movers: Movers, kills: int, at_least: float, begun: int) -> None:
    """Workers are killed during their work until at least ``begun`` moves were left unfinished."""
    lq = LakeQueue(movers.place)
    dead = lq.create_queue("dead", shards=2)
    queue = lq.create_queue("orders", shards=2, redrive_policy=RedrivePolicy("dead", 2))
    sent: list[str] = []
    chance, until = random.Random(5), time.monotonic() + at_least
    for _ in range(3):
        movers.start()
    left = 0
    deadline = time.monotonic() + at_least + 150
    while movers.killed < kills or left < begun or time.monotonic() < until:
        assert time.monotonic() < deadline, (
            f"does not get on: {movers.killed} killed, {left} moves left\n{movers.errors()}"
        )
        if len(sent) < 100:
            bodies = [f"{len(sent) + number:03}" for number in range(10)]
            queue.send_batch([SendEntry(body) for body in bodies])
            sent += bodies
        rows = len(log_rows(dead))
        while len(log_rows(dead)) == rows and time.monotonic() < deadline:  # they work
            time.sleep(chance.uniform(0, 0.1))
        movers.kill_one(chance)
        left += bool(unfinished(queue) or unfinished(dead))
        movers.start()
    movers.stop()

    summaries = lq.compact()
    assert not any(summary.failures for summary in summaries)
    assert not unfinished(queue) and not unfinished(dead)
    stored = [message.body for source in (queue, dead) for message in source.peek(limit=10_000)]
    assert Counter(stored) == Counter(sent)
    assert queue.counts().in_flight == dead.counts().in_flight == 0
    print(f"{movers.killed} killed, {left} of them left a move, {len(sent)} messages")
