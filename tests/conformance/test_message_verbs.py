"""What a received message can do itself, messages in place of handles, JSON bodies, and batches that failed."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import timedelta

import attrs
import pytest

from conformance.harness import Harness, batch, bodies
from insides import shard_of
from lakequeue import BatchFailed, Message, SendEntry, errors
from lakequeue.testing import ManualClock

VALUES = [None, False, 0, "", "ä\n\x00", [], {}, {"a": [1, 2.5, {"b": None}], "ü": "🙂"}]


@pytest.mark.spec("DEL-1", "VIS-1", "VIS-4")
def test_a_message_settles_itself(harness: Harness, clock: ManualClock) -> None:
    queue = harness.create(visibility_timeout=30)
    queue.send_batch(batch("a", "b"))
    a, b = queue.receive(2)
    a.delete()
    b.change_visibility(0)
    (b,) = queue.receive()
    b.change_visibility(timedelta(seconds=100))
    clock.advance(99)
    assert queue.receive() == []
    clock.advance(1)
    assert bodies(queue.receive(10)) == ["b"]


@pytest.mark.spec("DEL-1", "DEL-10", "VIS-1", "BAT-3")
def test_messages_stand_for_their_handles(harness: Harness, clock: ManualClock) -> None:
    queue = harness.create(visibility_timeout=30)
    queue.send_batch(batch("a", "b", "c", "d"))
    a, b, c, d = queue.receive(4)
    queue.delete(a)
    queue.change_visibility(b, 0)
    assert [one.receipt_handle for one in queue.delete_batch([c]).successful] == [c.receipt_handle]
    assert not queue.change_visibility_batch([(d, 0), (d.receipt_handle, 5)]).successful[1:]
    assert bodies(queue.receive(10)) == ["b", "d"]


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda message: pickle.loads(pickle.dumps(message)),
        copy.copy,
        copy.deepcopy,
        lambda message: attrs.evolve(message),
        lambda message: Message(**attrs.asdict(message, recurse=False)),
    ],
    ids=["pickle", "copy", "deepcopy", "evolve", "fields"],
)
def test_a_copy_of_a_message_is_data_that_its_queue_settles(harness: Harness, duplicate) -> None:
    queue = harness.create()
    queue.send("a")
    (message,) = queue.receive()
    twin = duplicate(message)
    assert twin == message and repr(twin) == repr(message)
    for call in (twin.delete, lambda: twin.change_visibility(0)):
        with pytest.raises(errors.UnsupportedOperation, match="is a copy"):
            call()
    assert harness.queue().counts().in_flight == 1
    harness.queue().delete(twin)
    assert harness.queue().counts().in_flight == 0


def test_no_text_of_a_message_has_the_queue_or_its_key(harness: Harness) -> None:
    queue = harness.create()
    queue.send("a")
    (message,) = queue.receive()
    secret = queue._runtime.row.handle_key
    for shown in (repr(message), str(message), str(attrs.asdict(message)), repr(pickle.dumps(message))):
        assert "OpenQueue" not in shown and "settler" not in shown.lower()
        assert secret.hex() not in shown and repr(secret) not in shown


@pytest.mark.parametrize("value", VALUES, ids=json.dumps)
def test_json_comes_back_as_it_was_sent(harness: Harness, value) -> None:
    queue = harness.create()
    queue.send(json=value)
    queue.send_batch([SendEntry(json=value)]).raise_for_failures()
    for message in queue.receive(2):
        assert message.json() == value
        assert message.body == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert message.message_attributes == {}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"when": [{1, 2}]}, "{1, 2} for parameter json is invalid. Reason: An object of type set cannot be"),
        (b"bytes", "An object of type bytes cannot be written as JSON"),
        (float("nan"), "not JSON compliant"),
        ({(1, 2): 3}, "keys must be str"),
    ],
    ids=["set", "bytes", "nan", "key"],
)
def test_what_has_no_json_is_refused_by_name(harness: Harness, value, named) -> None:
    queue = harness.create()
    before = harness.versions()
    with pytest.raises(errors.InvalidParameterValue, match="json") as refused:
        queue.send(json=value)
    assert named in str(refused.value)
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(errors.InvalidParameterValue, match="Circular"):
        queue.send(json=cycle)
    assert harness.versions() == before
    result = queue.send_batch([SendEntry("good"), SendEntry(json=value)])
    assert [one.id for one in result.failed] == ["1"] and named in result.failed[0].message


def test_a_message_has_a_body_or_json(harness: Harness) -> None:
    queue = harness.create()
    with pytest.raises(errors.InvalidParameterValue, match="either a body or json"):
        queue.send("a", json=1)
    with pytest.raises(errors.MissingParameter):
        queue.send()
    queue.send("not JSON")
    (message,) = queue.receive()
    with pytest.raises(errors.InvalidMessageContents, match=f"body of message {message.message_id} is not JSON"):
        message.json()


@pytest.mark.spec("BAT-4")
def test_a_batch_raises_for_its_failures(harness: Harness) -> None:
    queue = harness.create()
    good = queue.send_batch(batch("a", "b"))
    assert good.raise_for_failures() is good
    with pytest.raises(BatchFailed) as failed:
        queue.send_batch([SendEntry("c"), *batch("\x00", "\x01", "\x02", "\x03")]).raise_for_failures()
    assert isinstance(failed.value, errors.LakeQueueError)
    assert [one.id for one in failed.value.failed] == ["1", "2", "3", "4"]
    assert str(failed.value).startswith("4 of 5 entries failed: 1: InvalidMessageContents: ")
    assert str(failed.value).endswith("; and 1 more")
    again = pickle.loads(pickle.dumps(failed.value))
    assert (again.failed, again.tried) == (failed.value.failed, 5)
    assert bodies(queue.receive(10)) == ["a", "b", "c"]


@pytest.mark.spec("ERR-7", "BAT-4")
def test_batches_of_cmq_queues_say_their_numbers(harness: Harness, clock: ManualClock) -> None:
    queue = harness.create(profile="cmq")
    sent = queue.send_batch([SendEntry("a"), SendEntry("b", delay=-1), SendEntry("c")])
    assert ([one.cmq_code for one in sent.failed], sent.cmq_code) == ([4000], None)
    a, c = queue.receive(2)
    assert queue.delete_batch([a, "no handle"]).cmq_code == 6010
    assert queue.delete_batch(["no handle"]).cmq_code == 6020
    assert queue.delete_batch([c]).cmq_code == 0
    other = harness.create("other")
    assert [one.cmq_code for one in other.send_batch([SendEntry("b", delay=-1)]).failed] == [None]
    assert other.delete_batch(["no handle"]).cmq_code is None


@pytest.mark.spec("RWD-10", "RWD-12")
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_receive_after_a_rewind_answers_by_send_time_over_shards(
    harness: Harness, clock: ManualClock, fifo: bool
) -> None:
    kind = {"fifo": True, "deduplication_scope": "message_group"} if fifo else {}
    name = "orders.fifo" if fifo else "orders"
    queue = harness.create(name, shards=4, rewind_range=3600, **kind)
    start = clock.now()
    for number in range(24):
        fields = {"group_id": f"g{number % 7}", "dedup_id": str(number)} if fifo else {}
        queue.send(f"{number:02}", **fields)
        # several shards take sends, as those of several processes do
        shard_of(queue).shared.sends.current = (number + 1) % 4
        clock.advance(1)
    received = queue.receive(100)
    assert [message.body for message in received] == [f"{number:02}" for number in range(24)]
    queue.delete_batch(list(reversed(received))).raise_for_failures()
    assert harness.queue(name).rewind(start) == 24
    again = harness.queue(name).receive(100)
    assert len({message.receipt_handle.split("x")[1] for message in again}) > 1  # shards
    assert [message.body for message in again] == [f"{number:02}" for number in range(24)]
