"""Rewind with concurrent processes, and while it is switched off and on."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import apart
from concurrency.processes import WORKER, Processes
from concurrency.steps import at
from insides import shard_of
from lakequeue import InvalidParameterValue, LakeQueue, Queue, SendEntry
from lakequeue.model.clock import SystemClock
from lakequeue.testing import ManualClock
from mutations import Patch

HOUR = 3_600


def state_counts(queue: Queue) -> tuple[int, int, int]:
    counts = queue.counts()
    return counts.visible, counts.in_flight, counts.rewindable


@pytest.fixture
def consumers(processes: Processes) -> Processes:
    """Two processes that receive and delete until they are stopped."""
    LakeQueue(processes.place).create_queue("orders", profile="cmq", rewind_range=HOUR)  # its receipts are strict
    for name in ("a", "b"):
        processes.begin(name, WORKER, "consume", processes.root, name, processes.diary(name), processes.stop_file)
    return processes


@pytest.mark.slow
@pytest.mark.spec("RWD-9", "RWD-14", "RWD-21", "RCV-15", "QUE-33")
def test_one_process_rewinds_while_others_receive_and_delete(consumers: Processes) -> None:
    def events() -> list[dict[str, Any]]:
        return [event for diary in consumers.events() for event in diary]

    since, bodies, chance = SystemClock().now(), [str(number) for number in range(40)], random.Random(3)
    queue = LakeQueue(consumers.place).queue("orders")
    queue.send_batch([SendEntry(body) for body in bodies[:16]])
    queue.send_batch([SendEntry(body) for body in bodies[16:32]])
    later = SystemClock().now()
    queue.send_batch([SendEntry(body) for body in bodies[32:]])
    rewound, rewinds, until = 0, 0, time.monotonic() + 90
    while rewinds < 12 or rewound < 60 or not set(bodies) <= {event.get("body") for event in events()}:
        assert time.monotonic() < until, "does not get on"
        count = queue.rewind(chance.choice([since, since, later]))
        rewound += count
        rewinds += count > 0
        assert sum(state_counts(queue)) == len(bodies), "every message is somewhere, and once"
        time.sleep(0.1 + rewinds * 0.02)  # more and more of them, else the last ones are never received
    consumers.stop()

    diary = events()
    ends = {event["receipt"]: event["visible_at"] for event in diary if event["event"] == "got"}
    deleted = [event["at"] <= ends[event["receipt"]] for event in diary if event["event"] == "deleted"]
    # what was deleted is rewindable until a rewind takes it; late deletes may have found the message gone
    assert sum(deleted) <= rewound + queue.counts().rewindable <= len(deleted)
    given_up = {event["receipt"]: event["at"] for event in diary if event["event"] == "delete"}
    receipts = defaultdict(list)
    for event in diary:
        if event["event"] == "got":
            until_at = min(event["visible_at"], given_up.get(event["receipt"], event["visible_at"]))
            receipts[event["body"]].append((event["received_at"], until_at))
    assert set(receipts) == set(bodies)
    for own in receipts.values():
        own.sort()
        assert all(later[0] >= earlier[1] for earlier, later in zip(own, own[1:], strict=False)), own

    queue.rewind(since)
    left: list[str] = []
    until = time.monotonic() + 60
    while len(left) < len(bodies):
        assert time.monotonic() < until
        left += [message.body for message in queue.receive(16, visibility_timeout=HOUR, wait_time=1)]
    assert Counter(left) == Counter(bodies)


@pytest.mark.spec("RWD-8")
def test_rewind_switched_off_halfway_and_on_again_brings_nothing_back(tmp_path: Path, monkeypatch: Patch) -> None:
    clock = ManualClock()
    here, there = apart(tmp_path / "root", clock)
    queue = here.create_queue("orders", shards=2, rewind_range=HOUR)
    other, since = there.queue("orders"), clock.now()
    for body in "abcd":
        queue.send(body)
    queue.delete_batch([message.receipt_handle for message in queue.receive(4)])
    clock.advance(1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        at(patch, shard_of(queue, 1).ledger, "command", KeyboardInterrupt())
        queue.set_attributes(rewind_range=0)
    other.set_attributes(rewind_range=HOUR)
    assert other.counts().rewindable == 0
    assert other.rewind(since) == 0


class HurriedClock(ManualClock):
    """A millisecond passes between any two reads, once it runs."""

    runs = False

    def now(self) -> datetime:
        if self.runs:
            self.advance(0.001)
        return super().now()


@pytest.mark.spec("RWD-11", "ERR-8")
@pytest.mark.parametrize("left", [4, 5])
def test_a_rewind_at_the_end_of_the_range_takes_place_in_all_shards_or_in_no_shard(
    tmp_path: Path, left: int
) -> None:
    clock = HurriedClock()
    [here] = apart(tmp_path / "root", clock, 1)
    queue = here.create_queue("orders", shards=3, rewind_range=HOUR)
    clock.advance(HOUR)
    for body in "abc":
        queue.send(body)
    queue.delete_batch([message.receipt_handle for message in queue.receive(3)])
    clock.runs = True
    to = clock.now() + timedelta(milliseconds=left, seconds=-HOUR)
    try:
        rewound = queue.rewind(to)
    except InvalidParameterValue:
        rewound = 0
    assert rewound in (0, 3)
    assert state_counts(queue) == (rewound, 0, 3 - rewound)
