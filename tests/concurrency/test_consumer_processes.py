"""Consumers in separate processes, on the system's clock, one of which is killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.consumer_worker import RENEWAL
from concurrency.processes import Processes, events_of
from lakequeue import LakeQueue, Queue, SendEntry

WORKER = Path(__file__).with_name("consumer_worker.py")
PATIENCE = 120


@attrs.define
class Consumers(Processes):
    """The consumers of one test."""

    queue: Queue

    @property
    def die(self) -> Path:
        return self.root.parent / "die"

    def start(self, name: str) -> None:
        self.begin(name, WORKER, self.root, self.diary(name), self.die)

    def told(self, name: str, kind: str) -> list[dict[str, Any]]:
        return [event for event in events_of(self.diary(name)) if event["event"] == kind]

    def bodies(self, name: str, kind: str) -> list[str]:
        return [event["body"] for event in self.told(name, kind)]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Consumers]:
    root = tmp_path / "root"
    workers = Consumers(root, LakeQueue(str(root)).create_queue("orders"))
    yield workers
    workers.end()


@pytest.mark.slow
@pytest.mark.spec("HBN-1", "HBN-21", "RCV-6")
def test_another_consumer_takes_over_from_one_that_is_killed(workers: Consumers) -> None:
    workers.queue.send("deadly")
    workers.start("first")
    workers.wait_until(lambda: workers.bodies("first", "begin") == ["deadly"], "the first one to begin")

    workers.start("second")
    workers.wait_until(lambda: bool(workers.told("second", "ready")), "the second one to be ready")
    sent, until = ["deadly"], time.monotonic() + 2 * float(str(RENEWAL.visibility_timeout))
    while time.monotonic() < until:  # longer than the timeout, so without heartbeats it would be taken
        bodies = [f"m{len(sent) + index}" for index in range(3)]
        workers.queue.send_batch([SendEntry(body) for body in bodies])
        sent += bodies
        time.sleep(0.3)
    assert "deadly" not in workers.bodies("second", "begin")

    workers.die.touch()
    assert workers.running["first"].wait(PATIENCE) == -signal.SIGKILL
    workers.wait_until(lambda: "deadly" in workers.bodies("second", "end"), "the second one to take over")
    [taken] = [event for event in workers.told("second", "begin") if event["body"] == "deadly"]
    assert taken["count"] == 2  # nobody had it in between

    ended = lambda: {body for name in workers.running for body in workers.bodies(name, "end")}  # noqa: E731
    workers.wait_until(lambda: ended() == set(sent), "everything to be done")
    workers.running["second"].send_signal(signal.SIGTERM)
    assert workers.running["second"].wait(PATIENCE) == 0
    assert workers.told("second", "stopped")
    counts = workers.queue.counts()
    assert (counts.visible, counts.in_flight) == (0, 0)
