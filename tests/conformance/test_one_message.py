"""One message by its id: reading it, and cancelling it in any state (JOB-2, JOB-3)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.fifo import FifoHarness
from conformance.harness import Harness
from lakequeue import InvalidParameterValue, LakeQueue, UnsupportedOperation
from lakequeue.storage.engines.point import Table
from lakequeue.storage.messages.read import LogFile

STATES = ["visible", "in_flight", "delayed", "held", "deleted", "expired"]


def in_state(harness: Harness, clock, state: str) -> str:
    """The id of a message in a state, between others."""
    queue = harness.create(rewind_range=3600, message_retention_period=7200, visibility_timeout=600)
    if state == "held":
        queue.set_attributes(max_delayed_messages=1)
        queue.send("before", delay=600)
    sent = queue.send("it", delay=600 if state == "delayed" else None, attributes={"lang": "en"}, group_id="g")
    received = queue.receive(consumer="me") if state in ("in_flight", "deleted") else []
    queue.send("after")
    if state == "deleted":
        received[0].delete()
    if state == "expired":
        clock.advance(7200)
    return sent.message_id


@pytest.mark.spec("JOB-2")
@pytest.mark.parametrize("state", STATES)
def test_a_message_is_shown_in_any_state(harness: Harness, clock, state: str):
    sent_at = clock.now()
    message_id = in_state(harness, clock, state)
    found = harness.queue().get(message_id)
    assert (found.message_id, found.body, found.state) == (message_id, "it", state)
    assert found.sent_at == sent_at and found.group_id == "g" and found.message_attributes["lang"].value == "en"
    receives = None if state == "expired" else int(state in ("in_flight", "deleted"))
    assert found.receive_count == receives and found.consumer == ("me" if state == "in_flight" else None)
    assert found.visible_at == {
        "visible": sent_at,
        "in_flight": sent_at + timedelta(seconds=600),
        "delayed": sent_at + timedelta(seconds=600),
    }.get(state)


@pytest.mark.spec("JOB-3")
@pytest.mark.parametrize("state", STATES)
def test_a_message_is_cancelled_in_any_state(harness: Harness, clock, state: str):
    message_id = in_state(harness, clock, state)
    queue, other = harness.queue(), harness.queue()
    before = queue.counts()
    assert queue.cancel(message_id) is (state not in ("deleted", "expired"))
    assert queue.cancel(message_id) is False
    if state != "expired":
        assert other.get(message_id).state == "deleted"
        assert other.counts().rewindable == 1
        clock.advance(1)
        assert other.rewind(queue.created_at) == 1
        assert "it" in [message.body for message in other.receive(10)]
    else:
        assert other.counts() == before


@pytest.mark.spec("JOB-3", "HBN-5")
def test_who_has_a_cancelled_message_loses_it(harness: Harness):
    queue = harness.create()
    sent = queue.send("order 17")
    [message] = queue.receive()
    assert harness.queue().cancel(sent.message_id)
    with pytest.raises(InvalidParameterValue, match="does not exist"):
        message.change_visibility(60)
    message.delete()  # a late one is no error


@pytest.mark.spec("JOB-2", "JOB-3", "DLQ-2")
def test_a_dead_letter_is_found_in_the_queue_where_it_went(lq: LakeQueue):
    dead = lq.create_queue("dead")
    queue = lq.create_queue("orders", dead_letter_queue="dead", max_receive_count=1)
    sent = queue.send("poison")
    queue.receive(visibility_timeout=0)
    assert queue.receive() == []
    gone = queue.get(sent.message_id)
    assert (gone.state, gone.receive_count) == ("deleted", None), "as SQL has it"
    assert queue.cancel(sent.message_id) is False
    found = dead.get(sent.message_id)
    assert (found.state, found.source_queue, found.receive_count) == ("visible", queue.name, 1)
    assert dead.redrive() == 1
    assert queue.get(sent.message_id).state == "visible"
    assert queue.cancel(sent.message_id) and queue.receive() == []


@pytest.mark.spec("DUR-42", "JOB-2", "JOB-3")
def test_an_unknown_id_is_refused(harness: Harness):
    queue = harness.create()
    queue.send("a")
    for verb in queue.get, queue.cancel, queue.erase:
        with pytest.raises(InvalidParameterValue, match="no message with this id"):
            verb("nobody")
        with pytest.raises(InvalidParameterValue, match="Unicode"):
            verb("\ud800")
    assert queue.counts().visible == 1


@pytest.mark.spec("JOB-12", "RCP-8")
def test_what_waits_is_rescheduled_and_keeps_its_receives(harness: Harness, clock):
    queue, other = harness.create(visibility_timeout=600), harness.queue()
    begun = clock.now()
    first, second = (queue.send(body).message_id for body in "ab")
    (message,) = queue.receive()
    message.change_visibility(0)
    assert other.reschedule(first, begun + timedelta(days=2)) and other.reschedule(
        second, begun + timedelta(hours=1)
    )
    counts = harness.queue().counts()
    assert (counts.visible, counts.delayed) == (0, 2)
    found = queue.get(first)
    assert (found.state, found.visible_at, found.receive_count) == ("delayed", begun + timedelta(days=2), 1)
    assert queue.reschedule(second, begun + timedelta(hours=2)), "once more"
    clock.advance(7199)
    assert harness.queue().receive(10) == []
    clock.advance(1)
    assert [each.body for each in other.receive(10)] == ["b"]
    assert other.reschedule(second, begun + timedelta(hours=3)) is False, "it is in flight"
    assert other.reschedule(first, begun), "an instant before now is now"
    (again,) = queue.receive(10)
    assert (again.body, again.receive_count) == ("a", 2)


@pytest.mark.spec("JOB-12", "DLY-1", "RCP-8")
def test_a_delay_becomes_another_and_the_last_holder_may_still_delete(harness: Harness, clock):
    queue = harness.create(visibility_timeout=5)
    delayed = queue.send("later", delay=600).message_id
    assert queue.reschedule(delayed, clock.now() + timedelta(seconds=10))
    clock.advance(10)
    (message,) = harness.queue().receive()
    clock.advance(5)
    assert queue.reschedule(delayed, clock.now() + timedelta(seconds=60))
    message.delete()
    assert queue.reschedule(delayed, clock.now() + timedelta(seconds=60)) is False
    clock.advance(60)
    assert harness.queue().receive() == []


@pytest.mark.spec("JOB-12", "DLY-8")
def test_what_cannot_be_rescheduled_is_refused(harness: Harness, fifo: FifoHarness, clock):
    queue = harness.create(message_retention_period=3600)
    sent = queue.send("a").message_id
    for at in (clock.now() + timedelta(seconds=3600), clock.now().replace(tzinfo=None), 5):
        with pytest.raises(InvalidParameterValue, match="at"):
            queue.reschedule(sent, at)
    assert queue.reschedule(sent, clock.now() + timedelta(seconds=3599))
    with pytest.raises(InvalidParameterValue, match="message_id"):
        queue.reschedule("0b6f8a4e-5d3c-4f0e-9a57-3f1d2c4b5a69", clock.now())
    letters = fifo.create()
    sent = letters.send("a", group_id="g", dedup_id="a").message_id
    with pytest.raises(UnsupportedOperation, match="FIFO"):
        letters.reschedule(sent, clock.now())


@pytest.mark.spec("JOB-2", "RCP-2")
def test_a_search_by_id_reads_messages_sent_near_the_time_in_the_id(harness: Harness, clock, monkeypatch):
    queue = harness.create(message_retention_period=14 * 86_400)
    sent = []
    for day in range(4):
        sent.append(queue.send(f"day {day}").message_id)
        clock.advance(86_400)
        queue.compact()
    assert sent == sorted(sent), "ids are in the order of time"
    read: list[LogFile] = []
    whole = LogFile.rows_of

    def counted(file: LogFile, table: Table, names, *rest):
        read.extend([file] * (names == ["message_id"]))
        return whole(file, table, names, *rest)

    monkeypatch.setattr(LogFile, "rows_of", counted)
    assert harness.queue().get(sent[1]).body == "day 1"
    assert len(read) == 1
    with pytest.raises(InvalidParameterValue):
        harness.queue().get(sent[1][:-1] + ("0" if sent[1][-1] != "0" else "1"))
    assert len(read) > 4
