"""Processes that drain a queue and are killed: nothing is lost, nothing is doubled, order is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lakequeue
from concurrency.harness import keep_to
from concurrency.processes import TESTS
from lakequeue import LakeQueue, Queue, SendEntry

PROGRAM = """
import os
from concurrency.worker import die
from lakequeue import Queue
from lakequeue.cli import drain, main
from lakequeue.operations import move

drain.HOLD = 1
drain.MOST = 10
if dies := os.environ["DIES"]:
    moment, name = dies.split()
    die(*((1, moment, [(move, name)]) if name == "_bring" else (3, moment, [(Queue, name)])))
main()
"""


def drain(root: Path, *args: str, dies: str = "") -> subprocess.Popen[str]:
    paths = os.pathsep.join(str(path) for path in (Path(lakequeue.__file__).parents[1], TESTS))
    env = os.environ | {"PYTHONPATH": paths, "DIES": dies}
    command = [sys.executable, "-c", PROGRAM, "drain", *args, "--yes", "--root", str(root)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def bodies(queue: Queue) -> list[str]:
    return [message.body for message in queue.peek(limit=10_000)]


@pytest.mark.parametrize("dies", ["before send_batch", "after send_batch", "after delete_batch"])
def test_a_killed_and_repeated_drain_into_a_fifo_queue_adds_nothing_twice(tmp_path: Path, dies: str) -> None:
    lake = LakeQueue(str(tmp_path / "root"))
    source = lake.create_queue("orders")
    target = lake.create_queue("orders.fifo", fifo=True)
    sent = [f"{number:03}" for number in range(60)]
    source.send_batch([SendEntry(body, group_id=f"g{int(body) % 3}") for body in sent])
    killed = drain(tmp_path / "root", "orders", "orders.fifo", dies=dies)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert 20 <= len(bodies(target)) <= 30  # it was in the middle
    again = drain(tmp_path / "root", "orders", "orders.fifo", "--wait", "20s")
    out, err = again.communicate(timeout=60)
    assert (again.returncode, err) == (0, ""), err
    moved = bodies(target)
    assert sorted(moved) == sent  # each once
    for group in range(3):  # which take turns
        ours = [body for body in sent if int(body) % 3 == group]
        assert [body for body in moved if body in ours] == ours  # in the order of sending
    assert bodies(source) == [] and source.counts().in_flight == 0


@pytest.mark.parametrize("dies", ["before _bring", "after _bring"])
def test_processes_that_drain_together_and_are_killed_move_each_message_once(tmp_path: Path, dies: str) -> None:
    lake = LakeQueue(str(tmp_path / "root"))
    source, target = lake.create_queue("orders", shards=2), lake.create_queue("aside", shards=2)
    sent = [f"{number:03}" for number in range(200)]
    for start in range(0, 200, 50):
        keep_to(source, start // 50 % 2)
        source.send_batch([SendEntry(body) for body in sent[start : start + 50]])
    first = drain(tmp_path / "root", "orders", "aside", dies=dies)
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    assert len(bodies(target)) < 200
    others = [drain(tmp_path / "root", "orders", "aside") for _ in range(3)]
    for process in others:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert sorted(bodies(target)) == sent and bodies(source) == []
