"""A rate limit, a pause and unique sends in several processes, some of which are killed or stopped."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from concurrency.processes import Processes
from lakequeue import LakeQueue
from lakequeue.model.clock import MICROS

WORKER = Path(__file__).with_name("job_worker.py")
NUMBER = 150
PATIENCE = 120


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"deduplication_interval": 3_600}, marks=pytest.mark.spec("JOB-6"), id="unique"),
        pytest.param({"priorities": 3}, marks=pytest.mark.spec("JOB-5"), id="priorities"),
    ],
)
@pytest.mark.spec("JOB-1", "JOB-11")
def test_limit_pause_and_uniqueness_hold_after_any_kill(processes: Processes, given: dict[str, int]) -> None:
    def start(role: str) -> subprocess.Popen[bytes]:
        return processes.begin(f"{role} {len(processes.running)}", WORKER, processes.root, role, NUMBER)

    def wait(number: float) -> None:
        processes.wait_until(lambda: queue.counts().rewindable >= number, f"{number:g} messages to be handled")

    queue = LakeQueue(processes.place).create_queue(
        "orders", rate_limit="60/s", rate_burst=4, rewind_range=3_600, **given
    )
    unique, number = "priorities" not in given, NUMBER if "priorities" not in given else 2 * NUMBER
    senders, consumers = [start("send") for _ in range(2)], [start("consume") for _ in range(3)]
    wait(number // 5)
    if unique:  # else nobody would know how many there are
        senders[0].kill()
        senders[0] = start("send")
    consumers[0].kill()
    consumers[1].send_signal(signal.SIGSTOP)
    wait(number // 3)
    queue.pause("the bank is down")
    paused = time.time()
    consumers[1].send_signal(signal.SIGCONT)
    consumers[0] = start("consume")
    time.sleep(1)
    resumed = time.time()
    queue.resume()
    wait(number * 2 // 3)
    random.choice(consumers).kill()
    assert [sender.wait(PATIENCE) for sender in senders] == [0, 0]
    wait(number)

    counts = queue.counts()  # each number once, though it was sent two or three times
    assert (counts.visible, counts.in_flight, counts.rewindable) == (0, 0, number)
    pace, found = queue._runtime.attributes.pace, 0
    # a claim in another shard than the bucket's is charged in a commit after it, which others may hold up
    late = 0 if unique else MICROS // 10
    for shard in queue._runtime.shards:
        runs = shard.ledger.query(lambda machine: machine.history)
        received = sorted(run.first_received_at for run in runs for _ in range(run.size))
        found += len(received)
        for first, begin in enumerate(received):
            for last, end in enumerate(received[first:], first):
                assert last - first + 1 <= pace.burst + (end - begin + late) * 1_000 / pace.step
        assert not [at for at in received if paused * MICROS < at < resumed * MICROS]
    assert found == number
