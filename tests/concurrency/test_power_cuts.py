"""What was acknowledged outlives a power cut, and the queue can be used afterwards (DUR-1, DUR-3)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest

from concurrency.power_cuts import disk
from lakequeue import LakeQueue
from lakequeue.errors import DamagedTable
from lakequeue.model.clock import SystemClock
from lakequeue.testing import ManualClock

pytestmark = pytest.mark.powercut
WORKER = Path(__file__).with_name("power_worker.py")


def busy(diary: bytes) -> bool:
    """Whether there is something to lose."""
    return diary.count(b"sent ") > 20 and b"deleted " in diary


def losses(folder: Path, rate: float, seconds: float, durability: str, form: str, workers: int = 2) -> list[str]:
    """Cuts the power of busy processes after some seconds; returns what was lost, brought back, or damaged."""
    diary = folder / "diary"
    environment = {**os.environ, "LAKEQUEUE_DURABILITY": durability}
    with disk(folder) as drive:
        root = str(drive.path / "root")
        LakeQueue(root, durability="power").create_queue("orders")
        command = [sys.executable, str(WORKER), root, str(diary), str(rate), form]
        running = [subprocess.Popen(command, env=environment) for _ in range(workers)]
        try:
            while not diary.exists() or not busy(diary.read_bytes()):
                time.sleep(0.05)
            time.sleep(seconds)
            drive.cut_power()
        finally:
            for process in running:
                process.kill()
                process.wait()
        drive.restore()
        told = [line.split() for line in diary.read_text().splitlines()]
        sent = {body for verb, body in told if verb == "sent"}
        deleted = {body for verb, body in told if verb == "deleted"}
        # it may be killed between the answer to a delete and the note of it
        perhaps = {body for verb, body in told if verb == "deleting"}
        damage = [f"damaged: {finding}" for finding in LakeQueue(root).check() if finding.damage]
        try:
            with LakeQueue(root, clock=ManualClock(SystemClock().now() + timedelta(hours=1))) as lq:
                queue = lq.queue("orders")
                queue.send("after")
                found = []
                while messages := queue.receive(max_messages=1_000):
                    found += [message.body for message in messages]
        except DamagedTable as error:
            return [*damage, f"the queue: {error}"]
    lost = [f"lost {body}" for body in sent - perhaps - set(found)]
    back = [f"came back: {body}" for body in deleted & set(found)]
    twice = [f"twice: {body}" for body in set(found) if found.count(body) > 1]
    assert "after" in found
    return sorted(damage + lost + back + twice)


@pytest.mark.spec("DUR-1", "DUR-3")
def test_a_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    assert losses(tmp_path, 100, 1, "power", "short") == []


@pytest.mark.spec("DUR-1")
def test_without_syncs_a_power_cut_takes_what_was_acknowledged(tmp_path: Path) -> None:
    """The disk of these tests forgets: a mutation of the one above."""
    assert losses(tmp_path, 100, 1, "process", "short")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "rate, seconds",
    [*product([8, 15, 30], [10, 12, 17, 28, 36, 45]), (15, 22), (30, 22)],
)
def test_many_power_cuts_take_nothing(tmp_path: Path, rate: float, seconds: float) -> None:
    assert losses(tmp_path, rate, seconds, "power", "long") == []
