"""A backup is put back in place, file by file, while processes send: later messages are not lost (DUR-86)."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from concurrency.harness import apart, put_back_file
from lakequeue import LakeQueueError, Queue
from lakequeue.storage import snapshot
from lakequeue.testing import ManualClock

PAUSES = (0.0, 0.0, 0.0, 0.01, 0.03)
"""Seconds by the machine's clock between two steps of a restore."""


def put_back(backup: Path, root: Path, draw: random.Random) -> Iterator[bool]:
    """Makes a root the same as its backup. Yields after each file: True if it removed the file, False for a copy.

    It removes only what it listed at first, and leaves an entry that a process has made again since.
    """
    listed = [path for path in root.rglob("*") if path.is_file()]
    surplus = sorted(path for path in listed if not (backup / path.relative_to(root)).exists())
    if draw.random() < 0.5:
        surplus.reverse()
    if draw.random() < 0.5:
        surplus.sort(key=lambda path: "_delta_log" in path.parts)
    kept = [path.relative_to(backup) for path in backup.rglob("*") if path.is_file()]
    removals = [partial(remove, path, path.stat().st_mtime_ns) for path in surplus]
    copies = [partial(put_back_file, backup / name, root / name) for name in kept]
    for step in copies + removals if draw.random() < 0.3 else removals + copies:
        step()
        yield step in removals


def remove(path: Path, modified: int) -> None:
    """Removes a file, if it is there and has not changed."""
    if path.exists() and path.stat().st_mtime_ns == modified:
        path.unlink()


def send(queue: Queue, body: str, acknowledged: list[str]) -> None:
    try:
        queue.send(body)
    except LakeQueueError:
        return
    acknowledged.append(body)


def slow_restore(tmp_path: Path, clock: ManualClock, seed: int) -> None:
    """Processes send while a restore removes files; some begin meanwhile.

    The log has less than 100 commits, so it gets no checkpoint meanwhile. Nobody sends while files are copied: a
    copy may replace the entry of an acknowledged send.
    """
    draw, now = random.Random(seed), [0.0]
    root, backup = tmp_path / f"root{seed}", tmp_path / f"backup{seed}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "time", SimpleNamespace(time=time.time, monotonic=lambda: now[0]))
        queues = [apart(root, clock, 1)[0].create_queue("orders")]
        for number in range(draw.randint(0, 20)):
            queues[0].send(f"kept {number}")
        shutil.copytree(root, backup)
        for number in range(draw.randint(1, 30)):
            now[0] += draw.choice(PAUSES)
            queues[0].send(f"lost {number}")
        during = 40
        for removes in put_back(backup, root, draw):
            now[0] += draw.choice(PAUSES)
            if removes and draw.random() < 0.1:
                queues.append(apart(root, clock, 1)[0].queue("orders"))
            for _ in range(min(during, draw.choice([0, 0, 0, 1, 5])) if removes else 0):
                send(draw.choice(queues), "during", [])
                during -= 1
        now[0] += 0.4
        sent: list[str] = []
        for number in range(12):
            send(queues[number % len(queues)], f"new {number}", sent)
        [fresh] = apart(root, clock, 1)
        stored = [message.body for message in fresh.queue("orders").peek(limit=1_000)]
        assert [body for body in stored if body.startswith("new")] == sent
        assert len(sent) >= 12 - len(queues)
        assert not fresh.check()


@pytest.mark.spec("DUR-86")
@pytest.mark.parametrize("seed", range(20))
def test_no_process_goes_on_behind_the_gap_of_a_slow_restore(
    tmp_path: Path, clock: ManualClock, seed: int
) -> None:
    slow_restore(tmp_path, clock, seed)
