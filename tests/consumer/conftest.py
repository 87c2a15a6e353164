"""A queue under a manual clock, seen by a consumer and by somebody who looks on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from consumer.harness import Harness, Recorder, given_back, received, recorded
from lakequeue import LakeQueue
from lakequeue.testing import ManualClock


@pytest.fixture(autouse=True)
def record_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And has each take a millisecond: what a consumer holds follows from the longest one."""
    monkeypatch.setattr("lakequeue.consumer.queue_loop.monotonic", count(step=0.001).__next__)
    monkeypatch.setattr("lakequeue.consumer.queue_loop.exchange", recorded)
    monkeypatch.setattr("lakequeue.consumer.queue_loop.receive_for_hands", received)
    monkeypatch.setattr("lakequeue.consumer.queue_loop.give_back", given_back)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Harness]:
    """Makes a queue with the given attributes."""

    def make(**attributes: object) -> Harness:
        clock = ManualClock()
        lq = LakeQueue(str(tmp_path / "root"), clock=clock)
        queue = lq.create_queue("orders.fifo" if attributes.get("fifo") else "orders", **attributes)
        return Harness(lq, clock, Recorder.of(queue), lq.queue(queue.name))

    return make


@pytest.fixture
def harness(make: Callable[..., Harness]) -> Harness:
    """A standard queue of the default profile; its visibility timeout is 120 s."""
    return make(visibility_timeout=120)


@pytest.fixture
def fifo(make: Callable[..., Harness]) -> Harness:
    return make(fifo=True)
