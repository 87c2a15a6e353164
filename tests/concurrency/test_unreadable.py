"""Messages in an unreadable file: a receive returns the others, and later these."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import elsewhere, small_segments
from lakequeue import LakeQueue, Queue, QueueClientError, SendEntry
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.point import Table
from lakequeue.testing import ManualClock


@pytest.fixture
def lq(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> LakeQueue:
    small_segments(monkeypatch, commits=100)
    return LakeQueue(str(tmp_path / "root"), clock=clock)


def break_reads_of(patch: pytest.MonkeyPatch, number: int, queue: Queue) -> None:
    """Makes the data file of a send unreadable, given the number of the send."""
    read_rows = Table.read_rows

    def reading(table: Table, file: LiveFile, *more: Any) -> Any:
        if file.minimum["position"] == number:
            raise OSError("the disk is bad here")
        return read_rows(table, file, *more)

    patch.setattr(Table, "read_rows", reading)


@pytest.mark.spec("RCV-2", "RCV-6")
def test_what_can_be_read_is_delivered_and_the_rest_comes_again(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = lq.create_queue("orders")
    for number in range(5):
        queue.send(str(number))
    with monkeypatch.context() as patch:
        break_reads_of(patch, 2, queue)
        with caplog.at_level(logging.ERROR, "lakequeue"):
            found = elsewhere(queue).receive(max_messages=10)
    assert [message.body for message in found] == ["0", "1", "3", "4"]
    assert "1 message of orders cannot be read, from offset 2 to 2: the disk is bad here" in caplog.text
    clock.advance(30)
    again = {message.body: message.receive_count for message in elsewhere(queue).receive(max_messages=10)}
    assert again == dict.fromkeys("0134", 2) | {"2": 1}


@pytest.mark.spec("RCV-6", "ERR-2")
def test_a_receive_that_can_read_nothing_raises(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = lq.create_queue("orders")
    queue.send_batch([SendEntry(body=str(number)) for number in range(100)])
    with monkeypatch.context() as patch:
        break_reads_of(patch, 0, queue)
        with pytest.raises(QueueClientError, match="the disk is bad here"):
            elsewhere(queue).receive(max_messages=100)
    clock.advance(30)
    assert len(elsewhere(queue).receive(max_messages=100)) == 100


@pytest.mark.spec("FIF-1", "FIF-3")
def test_what_follows_an_unreadable_message_of_a_group_is_not_delivered_before_it(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True)
    for text in ("A1", "B1", "A2", "A3"):
        queue.send(text, group_id=text[0], dedup_id=text)
    with monkeypatch.context() as patch:
        break_reads_of(patch, 2, queue)
        found = elsewhere(queue).receive(max_messages=10)
    assert [message.body for message in found] == ["A1"]
    clock.advance(30)
    assert [message.body for message in elsewhere(queue).receive(max_messages=10)] == ["A1", "A2", "A3", "B1"]
