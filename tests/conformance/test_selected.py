"""Chosen messages, deleted or made visible without receipts; what a consumer has in flight stays with it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.harness import Harness
from lakequeue import MessageNotInflight, Queue, SendEntry
from lakequeue.model.states import MessageState
from lakequeue.operations import browse, selected
from lakequeue.testing import ManualClock

DELAYED, IN_FLIGHT, VISIBLE = MessageState.DELAYED, MessageState.IN_FLIGHT, MessageState.VISIBLE


def ids(queue: Queue) -> dict[str, str]:
    return {message.body: message.message_id for message in queue.peek(limit=100)}


def bodies(queue: Queue) -> list[str]:
    return [message.body for message in queue.peek(limit=100)]


@pytest.mark.spec("DEL-3", "RWD-4")
def test_visible_messages_are_deleted_and_the_others_stay(harness: Harness, clock: ManualClock):
    queue = harness.create(rewind_range=3600)
    begin = clock.now()
    for body in "held", "a", "b", "c":
        queue.send(body)
    queue.send("delayed", delay=60)
    [taken] = queue.receive(visibility_timeout=30)
    known = ids(queue)
    asked = [known[body] for body in ("held", "b", "delayed")] + ["nobody"]
    outcome = selected.delete(harness.queue()._runtime, asked)
    assert outcome == selected.Outcome(1, {IN_FLIGHT: 1, DELAYED: 1}, 1)
    assert bodies(queue) == ["held", "a", "c", "delayed"]
    before = harness.versions()
    assert selected.delete(queue._runtime, asked).done == 0
    assert harness.versions() == before, "nothing to delete, nothing to commit"
    queue.delete(taken.receipt_handle)  # its receipt was not touched
    clock.advance(1)
    assert queue.rewind(begin) == 2
    assert bodies(queue) == ["held", "a", "b", "c", "delayed"]


@pytest.mark.spec("VIS-4", "DLY-1", "RCP-6")
def test_delayed_messages_become_visible_and_those_in_flight_only_if_asked(harness: Harness, clock: ManualClock):
    queue = harness.create()
    queue.send_batch([SendEntry("a"), SendEntry("b", delay=60), SendEntry("c", delay=60)])
    [taken] = queue.receive(visibility_timeout=30)
    known = ids(queue)
    outcome = selected.make_visible(queue._runtime, [known["a"], known["b"]])
    assert outcome == selected.Outcome(1, {IN_FLIGHT: 1}, 0)
    assert [message.body for message in harness.queue().receive(10, visibility_timeout=1)] == ["b"]
    outcome = selected.make_visible(harness.queue()._runtime, [known["a"]], in_flight=True)
    assert outcome == selected.Outcome(1, {}, 0)
    with pytest.raises(MessageNotInflight):
        queue.change_visibility(taken.receipt_handle, 60)
    [again] = queue.receive()
    assert (again.body, again.receive_count) == ("a", 2)
    assert queue.delete_batch([taken.receipt_handle]).successful  # an older handle, which does nothing
    assert queue.counts().in_flight == 2
    assert queue.counts().delayed == 1


@pytest.mark.spec("FIF-1", "DEL-5")
def test_a_group_goes_on_behind_a_deleted_message(harness: Harness, clock: ManualClock):
    lake = harness.open(engine="point")
    lake.create_queue("orders.fifo", fifo=True, content_based_deduplication=True)
    queue = harness.open().queue("orders.fifo")
    for body in "a1", "a2", "b1", "a3":
        queue.send(body, group_id=body[0])
    clock.advance(1)
    known = ids(queue)
    assert selected.delete(queue._runtime, [known["a1"], known["a3"]]).done == 2
    assert [message.body for message in queue.receive(10)] == ["b1", "a2"]


def test_chosen_messages_are_found_in_all_shards_and_batches(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(browse, "ROWS", 2)
    queue = harness.create(shards=3)
    for number in range(20):
        queue.send(str(number))
    known = ids(queue)
    chosen = [known[str(number)] for number in range(0, 20, 3)]
    assert selected.delete(queue._runtime, chosen) == selected.Outcome(7, {}, 0)
    assert {*bodies(queue)} == {str(number) for number in range(20) if number % 3}
    assert queue.counts().oldest_age is not None and timedelta(seconds=queue.counts().oldest_age) < timedelta(1)
