"""Every verb writes one structured log record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import apart, at_once
from concurrency.steps import meanwhile
from insides import place_of
from lakequeue import LakeQueue, Queue, QueueDoesNotExist, SendEntry
from lakequeue.storage.ledger import Ledger
from lakequeue.testing import ManualClock

FIELDS = ("verb", "queue", "shards", "messages", "commits", "lost_races", "error")

VERBS: list[tuple[Callable[[Queue], Any], tuple[Any, ...]]] = [
    (lambda queue: queue.send("c"), ("send", "orders", [0], 1, 1, 0, None)),
    (lambda queue: queue.send_batch([SendEntry("d")] * 2), ("send_batch", "orders", [0], 2, 1, 0, None)),
    (lambda queue: queue.receive(10), ("receive", "orders", [0], 1, 1, 0, None)),
    (lambda queue: queue.purge(), ("purge", "orders", [0], 0, 1, 0, None)),
    (lambda queue: queue.rewind(queue.created_at), ("rewind", "orders", [0], 1, 1, 0, None)),
    (lambda queue: queue.peek(), ("peek", "orders", [], 2, 0, 0, None)),
    (lambda queue: queue.counts(), ("counts", "orders", [], 0, 0, 0, None)),
    (lambda queue: queue.attributes(), ("attributes", "orders", [], 0, 0, 0, None)),
    (lambda queue: queue.compact(), ("compact", "orders", [], 0, 0, 0, None)),
]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """One message in flight and one visible; one deleted."""
    clock = ManualClock()
    queue = LakeQueue(str(tmp_path / "root"), clock=clock).create_queue("orders", rewind_range=3600)
    clock.advance(1)
    queue.send_batch([SendEntry(body) for body in "abc"])
    queue.delete(queue.receive()[0].receipt_handle)
    queue.receive()
    clock.advance(1)
    return queue


def records(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    found = [record for record in caplog.records if record.name == "lakequeue.verbs"]
    assert all(record.seconds >= 0 for record in found)  # type: ignore[attr-defined]
    return [tuple(getattr(record, field) for field in FIELDS) for record in found]


@pytest.mark.parametrize(
    ("verb", "expected"), VERBS, ids=lambda given: given[0] if isinstance(given, tuple) else ""
)
def test_a_verb_writes_one_record(
    queue: Queue, caplog: pytest.LogCaptureFixture, verb: Callable[[Queue], Any], expected: tuple[Any, ...]
) -> None:
    with caplog.at_level(logging.DEBUG, "lakequeue.verbs"):
        verb(queue)
    assert records(caplog) == [expected]


def test_lost_races_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here, there = (lq.create_queue("orders") for lq in apart(tmp_path / "root", ManualClock()))
    here.send_batch([SendEntry("a"), SendEntry("b")])
    overtaken = lambda *_: at_once([there.receive])  # noqa: E731  # in a thread of its own, no part of this call
    with meanwhile(Ledger, "change", overtaken), caplog.at_level(logging.DEBUG, "lakequeue.verbs"):
        assert [message.body for message in here.receive()] == ["b"]
    assert records(caplog)[-1] == ("receive", "orders", [0], 1, 1, 1, None)


def test_a_verb_that_fails_names_its_error(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    LakeQueue(place_of(queue), clock=queue.clock).delete_queue("orders")
    with caplog.at_level(logging.DEBUG, "lakequeue.verbs"), pytest.raises(QueueDoesNotExist):
        queue.rewind(queue.created_at + timedelta(seconds=1))
    assert [(record[0], record[-1]) for record in records(caplog)] == [("rewind", "QueueDoesNotExist")]


def test_nothing_is_written_unless_it_is_asked_for(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lakequeue"):
        queue.send("x")
    assert records(caplog) == []


def test_a_receive_that_is_closed_after_its_loop_ended_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lakequeue.verbs")
    queue = LakeQueue(str(tmp_path)).create_queue("orders")
    received = queue.receive_async(wait_time=20)

    async def begin() -> None:
        received.send(None)

    asyncio.run(begin())
    received.close()
