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
    for verb in (full.receive, full.lease):
        with pytest.raises(errors.OverLimit):
            verb()
    assert bodies(other.receive()) == ["a"]


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
    with pytest.raises(errors.QueueNameExists, match=r"delay.*update=True"):
        lq.create_queue("orders", visibility_timeout=60, delay=6)
    with pytest.raises(errors.QueueNameExists, match="profile"):
        lq.create_queue("orders", profile="sqs")
    lq.create_queue("Foo", profile="cmq")
    assert lq.create_queue("foo", profile="cmq").name == "foo"
    with pytest.raises(errors.QueueNameExists) as caught:
        lq.create_queue("Foo", profile="cmq")
    assert (caught.value.code, caught.value.cmq_code) == ("QueueNameExists", 4460)


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
