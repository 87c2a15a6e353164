"""A consumer that delivers into a table and is killed anywhere: the rows of each message are in the table once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars
import pytest

from concurrency import delivery_worker
from concurrency.delivery_worker import STEPS
from concurrency.faults import FORKS
from concurrency.worker import run_forked
from lakequeue import LakeQueue, Queue, SendEntry

KILLS = int(os.environ.get("LAKEQUEUE_DELIVERY_KILLS", "1000"))


def stored(table: Path) -> list[int]:
    return sorted(polars.read_delta(str(table))["id"].to_list()) if (table / "_delta_log").exists() else []


def queue_of(tmp_path: Path, messages: int) -> tuple[Queue, Path]:
    table = tmp_path / "table"
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders", table=str(table))
    if messages:
        queue.send_batch([SendEntry(str(number)) for number in range(messages)])
    return queue, table


def start(tmp_path: Path, *step: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, delivery_worker.__file__, str(tmp_path / "root"), *step])


def left(queue: Queue) -> int:
    counts = queue.counts()
    return counts.visible + counts.in_flight + counts.undecided


def finish(tmp_path: Path, queue: Queue) -> None:
    """Delivers the messages that are left, once their receipts have ended."""
    while left(queue):
        delivery_worker.deliver(str(tmp_path / "root"))
        time.sleep(0.3)


@pytest.mark.spec("TAB-25", "TAB-26")
@pytest.mark.parametrize(
    "step", ["committed", *(pytest.param(each, marks=pytest.mark.slow) for each in STEPS if each != "committed")]
)
def test_a_consumer_that_is_killed_at_a_step_delivers_nothing_twice(tmp_path: Path, step: str):
    queue, table = queue_of(tmp_path, 20)
    assert start(tmp_path, step).wait(60) == -signal.SIGKILL
    finish(tmp_path, queue)
    assert stored(table) == [*range(20)]
    assert left(queue) == 0


@pytest.mark.slow
@pytest.mark.spec("TAB-25", "TAB-26")
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("kills", [10, pytest.param(KILLS, marks=pytest.mark.long)])
def test_consumers_that_are_killed_at_any_time_deliver_nothing_twice(tmp_path: Path, kills: int):
    chance, sent, ended = random.Random(kills), 0, 0
    queue, table = queue_of(tmp_path, 0)
    for _ in range(kills):
        queue.send_batch([SendEntry(str(number)) for number in range(sent, sent + 50)])
        sent += 50
        begun = FORKS.Event()
        arguments = str(tmp_path / "root"), begun
        worker = FORKS.Process(target=run_forked, args=({}, delivery_worker.begin, arguments), daemon=True)
        worker.start()
        assert begun.wait(600)
        worker.join(chance.uniform(0, 0.5))
        ended += not worker.is_alive()
        worker.kill()
        worker.join()
    before = len(stored(table))
    assert before and ended < kills  # some came to their rows, and some did not come to their end
    finish(tmp_path, queue)
    assert stored(table) == [*range(sent)]
