"""Previews of rewinds and redrives, and peeks at deleted messages."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from conformance.harness import Harness
from lakequeue import PeekedMessage, Queue, SendEntry, errors
from lakequeue.operations import browse
from lakequeue.testing import ManualClock


def consumed(harness: Harness, clock: ManualClock, count: int = 6, **attributes: object) -> Queue:
    """A queue with messages sent a second apart; those with even numbers are deleted."""
    queue = harness.create(**{"rewind_range": True} | attributes)
    for number in range(count):
        queue.send(str(number))
        clock.advance(1)
    while batch := queue.receive(10, visibility_timeout=3600):
        queue.delete_batch([message.receipt_handle for message in batch if int(message.body) % 2 == 0])
    return queue


def past(queue: Queue, since: datetime, where: str | None = None, limit: int = 10) -> list[PeekedMessage]:
    search = browse.Search(queue._runtime, browse.predicate(where), limit, since=since, history=True)
    return browse.page(search, list)


@pytest.mark.spec("RWD-4", "RWD-9", "RWD-19")
def test_deleted_messages_are_looked_at_and_counted_as_a_rewind_would_find_them(
    harness: Harness, clock: ManualClock
):
    begin = clock.now()
    consumed(harness, clock)
    before = harness.versions()
    queue = harness.queue()
    shown = past(queue, begin)
    assert [(message.body, message.state, message.receive_count) for message in shown] == [
        ("0", "deleted", 1),
        ("2", "deleted", 1),
        ("4", "deleted", 1),
    ]
    for seconds, count in ((0, 3), (2, 2), (2.5, 1), (4, 1), (5, 0), (6, 0)):
        assert (seconds, queue.rewindable(begin + timedelta(seconds=seconds))) == (seconds, count)
    assert harness.versions() == before
    assert queue.rewind(begin + timedelta(seconds=2)) == 2
    assert harness.queue().rewindable(begin) == 1
    found = past(harness.queue(), begin)
    assert [message.body for message in found] == ["0"]


def test_deleted_messages_of_all_shards_are_found_by_instant_and_condition(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(browse, "ROWS", 2)
    begin = clock.now()
    queue = consumed(harness, clock, 20, shards=3)

    def bodies(seconds: int, where: str | None, limit: int = 100) -> list[int]:
        return [int(message.body) for message in past(queue, begin + timedelta(seconds=seconds), where, limit)]

    assert bodies(0, None) == list(range(0, 20, 2))
    assert bodies(11, None) == [12, 14, 16, 18]
    assert bodies(11, None, 2) == [12, 14]
    assert bodies(3, "body::INT % 3 = 0") == [6, 12, 18]
    assert bodies(3, "state <> 'deleted'") == []
    assert queue.rewindable(begin + timedelta(seconds=11)) == 4


@pytest.mark.spec("RWD-6", "RWD-11", "RWD-15")
def test_what_a_rewind_refuses_is_refused_before_it(harness: Harness, clock: ManualClock):
    queue = consumed(harness, clock, rewind_range=60)
    for instant in (clock.now() + timedelta(seconds=1), clock.now() - timedelta(seconds=61)):
        with pytest.raises(errors.InvalidParameterValue, match="for parameter to is invalid"):
            queue.rewindable(instant)
    clock.advance(60)
    assert queue.rewindable(clock.now() - timedelta(seconds=60)) == 0
    assert past(queue, clock.now() - timedelta(hours=1)) == []
    with pytest.raises(errors.UnsupportedOperation):
        harness.create("plain").rewindable(clock.now())


@pytest.mark.spec("DLQ-8")
def test_a_redrive_says_beforehand_how_much_it_takes_where(harness: Harness, clock: ManualClock):
    harness.create("letters")
    for name in ("orders", "mails", "gone"):
        source = harness.create(name, visibility_timeout=0)
        source.set_attributes(redrive_policy={"deadLetterTargetArn": "letters", "maxReceiveCount": 1})
        source.send_batch([SendEntry(f"{name} {number}") for number in range(3 if name == "mails" else 2)])
        source.receive(10)
        source.receive(10)
    harness.queue("letters").send("no dead letter")
    harness.open().delete_queue("gone")
    letters = harness.queue("letters")
    before = harness.versions()
    assert letters.redrivable() == {"orders": 2, "mails": 3}
    assert letters.redrivable("body LIKE '% 1'") == {"orders": 1, "mails": 1}
    assert letters.redrivable("body LIKE 'gone%'") == {}
    with pytest.raises(errors.InvalidParameterValue, match="where"):
        letters.redrivable("nonsense(")
    assert harness.versions() == before
    letters.receive(1, visibility_timeout=60)
    assert sum(letters.redrivable().values()) == letters.redrive() == 4
