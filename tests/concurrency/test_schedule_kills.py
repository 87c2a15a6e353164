"""Processes that send what is due, three at a time, are killed wherever they are: each message is there once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from lakequeue import LakeQueue

PROGRAM = "from lakequeue.cli import main; main()"
EACH, KILLED = 4, 10


@pytest.mark.slow
@pytest.mark.spec("JOB-7")
def test_messages_of_killed_processes_are_sent_once(tmp_path: Path) -> None:
    lake = LakeQueue(str(tmp_path / "root"))
    queues = [lake.create_queue("orders", shards=3), lake.create_queue("jobs.fifo", fifo=True)]
    names = list[str]()
    drawn, killed = random.Random(7), 0
    command = [sys.executable, "-c", PROGRAM, "--root", lake.root, "schedule", "run", "--once"]

    def sent_until_now() -> int:
        return sum(queue.counts().visible for queue in queues)

    for number in range(KILLED + 1):
        for queue in queues * (EACH // 2 if number < KILLED else 0):
            names.append(f"s{len(names)}")
            lake.schedules.add(names[-1], queue.name, "x", at=lake.clock.now(), group_id="g")
        # killed once they have sent some more, however fast the machine is
        until = sent_until_now() + drawn.randint(1, 2) if number < KILLED else EACH * KILLED + 1
        processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
        while sent_until_now() < until and any(process.poll() is None for process in processes):
            time.sleep(drawn.uniform(0, 0.05))
        for process in processes:
            killed += process.poll() is None
            process.kill()
            process.wait()
    messages = [message for queue in queues for message in queue.peek(limit=1_000)]
    sent = Counter(message.message_attributes["schedule"].value for message in messages)
    assert sent == Counter(names)
    assert killed > KILLED / 2 and lake.schedules.list() == [] and lake.check() == []
