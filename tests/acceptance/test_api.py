"""Rules that only show at the Python API as a whole; the point engine and a manual clock, no JVM."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta

import pytest

from conformance.fifo import bodies
from lakequeue import LakeQueue, Queue, SendEntry, errors


@pytest.mark.spec("QUE-32", "INF-5", "QTA-4")
def test_a_full_queue_leaves_others_their_room(lq):
    full, other = (lq.create_queue(name, max_inflight_messages=1) for name in ("full", "other"))
    for queue in (full, other):
        queue.send_batch([SendEntry("a"), SendEntry("b")])
    full.receive()
    with pytest.raises(errors.OverLimit):
        full.receive()
    assert bodies(other.receive()) == ["a"]


@pytest.mark.spec("RCV-8", "STA-11")
def test_who_saw_no_answer_sends_or_receives_again_and_nothing_is_lost(lq, clock):
    queue = lq.create_queue("orders")
    queue.send("A")
    queue.send("A")  # the first answer was lost; a standard queue keeps both
    lost = queue.receive(10)
    clock.advance(30)
    again = queue.receive(10)
    assert [m.message_id for m in again] == [m.message_id for m in lost]
    assert not {m.receipt_handle for m in again} & {m.receipt_handle for m in lost}


@pytest.mark.spec("QUE-14")
@pytest.mark.parametrize(("profile", "pause"), [("sqs", 60), ("sqs-2018", 60), ("cmq", 0), ("lake", 0)])
def test_a_name_rests_as_long_as_its_profile_says(lq, clock, profile, pause):
    lq.create_queue("orders", profile=profile).send("A")
    lq.delete_queue("orders")
    if pause:
        clock.advance(pause - 0.001)
        with pytest.raises(errors.QueueDeletedRecently, match="60 seconds"):
            lq.create_queue("orders", profile=profile)
        clock.advance(0.001)
    assert lq.create_queue("orders", profile=profile).counts().visible == 0


@pytest.mark.spec("QUE-15", "QUE-16", "NAM-9", "ERR-7")
def test_a_name_that_is_taken_gives_the_queue_or_an_error_as_its_profile_says(lq):
    made = lq.create_queue("orders", visibility_timeout=60, delay=5)
    assert lq.create_queue("orders").key == made.key
    assert lq.create_queue("orders", delay=5).key == made.key
    with pytest.raises(errors.QueueNameExists, match="delay"):
        lq.create_queue("orders", visibility_timeout=60, delay=6)
    with pytest.raises(errors.QueueNameExists, match="profile"):
        lq.create_queue("orders", profile="sqs")
    lq.create_queue("Foo", profile="cmq")
    assert lq.create_queue("foo", profile="cmq").name == "foo"
    with pytest.raises(errors.QueueNameExists) as caught:
        lq.create_queue("Foo", profile="cmq")
    assert (caught.value.code, caught.value.cmq_code) == ("QueueNameExists", 4460)


@pytest.mark.spec("QUE-17", "QUE-19", "QUE-20", "QUE-21", "LPL-2")
def test_a_cmq_queue_takes_and_tells_its_attributes(lq):
    given = {
        "message_retention_period": ("MessageRetentionPeriod", 1_296_000),
        "receive_wait_time": ("PollingWaitSeconds", 0.5),
        "visibility_timeout": ("VisibilityTimeout", 1),
        "maximum_message_size": ("MaximumMessageSize", 1_024),
        "max_stored_messages": ("MaxStoredMessages", 1_000_000),
        "rewind_range": ("RewindSeconds", 0),
    }
    queue = lq.create_queue("orders", profile="cmq", **{name: value for name, (_, value) in given.items()})
    expected = {"Profile": "cmq"} | {wire: str(value) for wire, value in given.values()}
    assert queue.attributes([*expected], wire=True) == expected
    plain = lq.create_queue("plain", profile="cmq")
    assert plain.attributes(["PollingWaitSeconds"], wire=True) == {"PollingWaitSeconds": "0.2"}


@pytest.mark.spec("RCP-1", "RCP-2", "RCP-3", "RCP-4", "RCP-14")
@pytest.mark.parametrize(
    ("profile", "form"),
    [("lake", r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), ("cmq", r"Msg-[A-Za-z0-9]{8}")],
)
def test_a_sent_message_has_an_id_and_only_a_receipt_gives_power_over_it(lq, profile, form):
    queue = lq.create_queue("orders", profile=profile)
    sent = queue.send("A")
    assert re.fullmatch(form, sent.message_id)
    for name in ("receipt_handle", "handle"):
        assert not hasattr(sent, name)
    for verb in (queue.delete, lambda handle: queue.change_visibility(handle, 5)):
        with pytest.raises(errors.ReceiptHandleIsInvalid):
            verb(sent.message_id)
    (m,) = queue.receive()
    assert m.message_id == sent.message_id
    assert 0 < len(m.receipt_handle) <= 1024
    queue.delete(m.receipt_handle)


@pytest.mark.spec("RCV-9", "NAM-8", "DLY-6")
def test_there_is_no_receive_by_group_no_renaming_and_no_topic():
    for receive in (Queue.receive, Queue.receive_async, Queue.lease):
        assert not [name for name in inspect.signature(receive).parameters if "group" in name]
    verbs = [name for kind in (Queue, LakeQueue) for name in vars(kind)]
    assert not [name for name in verbs if "rename" in name or "topic" in name]


@pytest.mark.spec("RCV-1", "RCV-2", "BAT-1", "BAT-2")
@pytest.mark.parametrize(("profile", "most"), [("sqs", 10), ("cmq", 16), ("lake", None)])
def test_a_call_takes_as_many_messages_as_its_profile_allows(lq, profile, most):
    queue = lq.create_queue("orders", profile=profile)
    many = most or 100
    entries = [SendEntry(str(number)) for number in range(many)]
    assert len(queue.send_batch(entries).successful) == many
    assert len(queue.receive()) == 1
    received = queue.receive(many)
    assert len(received) == many - 1
    if most:
        with pytest.raises(errors.TooManyEntriesInBatchRequest):
            queue.send_batch([*entries, SendEntry("one more")])
        with pytest.raises(errors.InvalidParameterValue):
            queue.receive(most + 1)
        with pytest.raises(errors.TooManyEntriesInBatchRequest):
            queue.delete_batch(["x"] * (most + 1))
        with pytest.raises(errors.TooManyEntriesInBatchRequest):
            queue.change_visibility_batch([("x", 5)] * (most + 1))
    assert len(queue.delete_batch([m.receipt_handle for m in received]).successful) == many - 1


@pytest.mark.spec("QUE-7", "RCV-13", "VIS-10", "DLY-4", "LPL-3")
def test_durations_may_be_numbers_or_timedeltas_and_keep_fractions(lq, clock):
    queue = lq.create_queue("orders", visibility_timeout=timedelta(minutes=1), delay=0.25)
    assert queue.attributes(["visibility_timeout", "delay"]) == {"visibility_timeout": 60, "delay": 0.25}
    queue.send("A", delay=timedelta(seconds=0.5))
    assert queue.receive() == []
    clock.advance(0.5)
    (m,) = queue.receive(visibility_timeout=timedelta(seconds=1.5))
    queue.change_visibility(m.receipt_handle, 0.125)
    clock.advance(0.125)
    assert bodies(queue.receive()) == ["A"]


@pytest.mark.spec("RCV-4")
def test_a_message_says_when_its_receipt_began_and_ends(lq, clock):
    queue = lq.create_queue("orders")
    queue.send("A", delay=3)
    clock.advance(5)
    (m,) = queue.receive(visibility_timeout=40)
    assert m.received_at == clock.now()
    assert m.visible_at == clock.now() + timedelta(seconds=40)
    clock.advance(40)
    (again,) = queue.receive()
    assert (again.received_at, again.first_received_at) == (m.visible_at, m.received_at)


def test_a_condition_takes_an_instant_as_a_parameter(lq, clock):
    queue = lq.create_queue("orders")
    for body in "ab":
        queue.send(body)
        clock.advance(1)
    assert bodies(queue.peek("sent_at < ?", parameters=[clock.now() - timedelta(seconds=1)])) == ["a"]
