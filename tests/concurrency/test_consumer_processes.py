"""Consumers in separate processes, on the system's clock, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.consumer_worker import RENEWAL
from lakequeue import LakeQueue, Queue, SendEntry

WORKER = Path(__file__).with_name("consumer_worker.py")
TESTS = Path(__file__).parents[1]
PATIENCE = 120


@attrs.define
class Workers:
    """The consumers of one test."""

    root: Path
    queue: Queue
    running: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)

    @property
    def die(self) -> Path:
        return self.root.parent / "die"

    def start(self, name: str) -> None:
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        with open(self.root.parent / f"{name}.stderr", "wb") as errors:
            self.running[name] = subprocess.Popen(
                [sys.executable, str(WORKER), str(self.root), str(self._diary(name)), str(self.die)],
                stderr=errors,
                env=os.environ | {"PYTHONPATH": paths},
                start_new_session=True,
            )

    def _diary(self, name: str) -> Path:
        return self.root.parent / f"{name}.jsonl"

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        text = self._diary(name).read_text() if self._diary(name).exists() else ""
        events = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [event for event in events if event["event"] == kind]

    def bodies(self, name: str, kind: str) -> list[str]:
        return [event["body"] for event in self.events(name, kind)]

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < deadline, f"waited for {what}: {self._errors()}"
            time.sleep(0.05)

    def _errors(self) -> str:
        return "".join(path.read_text()[-2_000:] for path in self.root.parent.glob("*.stderr"))


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    root = tmp_path / "root"
    workers = Workers(root, LakeQueue(str(root)).create_queue("orders"))
    yield workers
    for worker in workers.running.values():
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


@pytest.mark.slow
@pytest.mark.spec("HBN-1", "HBN-21", "RCV-6")
def test_another_consumer_takes_over_from_one_that_is_killed(workers: Workers) -> None:
    workers.queue.send("deadly")
    workers.start("first")
    workers.wait(lambda: workers.bodies("first", "begin") == ["deadly"], "the first one to begin")

    workers.start("second")
    workers.wait(lambda: bool(workers.events("second", "ready")), "the second one to be ready")
    sent, until = ["deadly"], time.monotonic() + 2 * float(str(RENEWAL.visibility_timeout))
    while time.monotonic() < until:  # longer than the timeout, so without heartbeats it would be taken
        bodies = [f"m{len(sent) + index}" for index in range(3)]
        workers.queue.send_batch([SendEntry(body) for body in bodies])
        sent += bodies
        time.sleep(0.3)
    assert "deadly" not in workers.bodies("second", "begin")

    workers.die.touch()
    assert workers.running["first"].wait(PATIENCE) == -signal.SIGKILL
    workers.wait(lambda: "deadly" in workers.bodies("second", "end"), "the second one to take over")
    [taken] = [event for event in workers.events("second", "begin") if event["body"] == "deadly"]
    assert taken["count"] == 2  # nobody had it in between

    ended = lambda: {body for name in workers.running for body in workers.bodies(name, "end")}  # noqa: E731
    workers.wait(lambda: ended() == set(sent), "everything to be done")
    workers.running["second"].send_signal(signal.SIGTERM)
    assert workers.running["second"].wait(PATIENCE) == 0
    assert workers.events("second", "stopped")
    counts = workers.queue.counts()
    assert (counts.visible, counts.in_flight) == (0, 0)
