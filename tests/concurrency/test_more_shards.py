"""Shards that a living queue gets: every process finds them, whatever it did before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from concurrency.harness import apart, drain, keep_to
from concurrency.steps import at, held_at
from insides import place_of
from lakequeue import (
    Consumer,
    InvalidAttributeValue,
    LakeQueue,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    errors,
)
from lakequeue.entry_verbs import export
from lakequeue.operations import attributes
from lakequeue.testing import ManualClock

pytestmark = pytest.mark.spec("QUE-34", "QUE-25")


Pair = tuple[Queue, Queue]


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock) -> Pair:
    """One queue of a shard in two processes, both of which have used it."""
    here, there = apart(tmp_path / "root", clock)
    pair = here.create_queue("orders"), there.create_queue("orders")
    for queue in pair:
        queue.send("first")
        queue.delete(queue.receive()[0])
    return pair


def raised(queue: Queue) -> None:
    """Four shards, each with two messages."""
    queue.set_attributes(shards=4)
    for shard in range(4):
        keep_to(queue, shard)
        queue.send(f"{shard}a")
        queue.send(f"{shard}b")


ALL = [f"{shard}{letter}" for shard in range(4) for letter in "ab"]


def handled(queue: Queue) -> list[str]:
    found: list[str] = []
    Consumer(queue, lambda message, _: found.append(message.body)).run(until_empty=True)
    return found


FIRST_CALLS: dict[str, Callable[[Queue], list[str]]] = {
    "receive": lambda queue: [message.body for message in queue.receive(8)],
    "lease": lambda queue: queue.lease().arrow(["body"])["body"].to_pylist(),
    "peek": lambda queue: [message.body for message in queue.peek(limit=8)],
    "export": lambda queue: [message.body for message in export(queue, None, None)],
    "consumer": handled,
}


@pytest.mark.spec("RCV-2")
@pytest.mark.parametrize("verb", FIRST_CALLS)
def test_the_first_call_of_another_process_finds_new_shards(pair: Pair, verb: str) -> None:
    queue, other = pair
    queue.set_attributes(shards=3)
    for shard in 1, 2:
        keep_to(queue, shard)
        queue.send(f"{shard}")
    assert sorted(FIRST_CALLS[verb](other)) == ["1", "2"]


def test_another_process_sends_to_new_shards(pair: Pair) -> None:
    queue, other = pair
    queue.set_attributes(shards=4)
    other.send("by the other")
    assert len(other._runtime.shards) == 4 and drain(queue) == ["by the other"]


def test_another_process_counts_new_shards(pair: Pair) -> None:
    raised(pair[0])
    assert pair[1].counts().visible == 8
    assert pair[1].attributes()["shards"] == 4


def test_another_process_settles_what_was_received_there(pair: Pair) -> None:
    raised(pair[0])
    handles = [message.receipt_handle for message in pair[0].receive(8)]
    pair[1].delete(handles[-1])
    pair[1].delete_batch(handles[:-1]).raise_for_failures()
    assert pair[0].counts().in_flight == 0


def test_another_process_purges_and_deletes_new_shards(pair: Pair) -> None:
    raised(pair[0])
    pair[1].purge()
    assert pair[0].counts().visible == 0
    pair[0].send("later")
    apart(place_of(pair[0]), pair[0].clock, 1)[0].delete_queue("orders")
    for shard in range(4):
        keep_to(pair[0], shard)
        with pytest.raises(QueueDoesNotExist):
            pair[0].send("too late")


def test_a_process_that_knew_only_the_first_deletes_them_all(pair: Pair) -> None:
    queue, other = pair
    raised(queue)
    other._runtime.delete()
    for shard in range(4):
        assert queue._runtime.shards[shard].sender.closed()


def test_another_process_erases_messages_in_new_shards(pair: Pair) -> None:
    queue, other = pair
    queue.set_attributes(shards=4)
    keep_to(queue, 3)
    assert other.erase(queue.send("secret").message_id)
    assert drain(queue) == []


def test_a_running_consumer_finds_new_shards(pair: Pair) -> None:
    queue, other = pair
    handled: list[str] = []

    def handle(message: object, context: object) -> None:
        if not handled:
            raised(queue)
        handled.append(message.body)  # type: ignore[attr-defined]

    queue.send("begin")
    Consumer(other, handle, concurrency=1).run(until_empty=True)
    Consumer(other, handle, concurrency=1).run(until_empty=True)
    assert sorted(handled) == sorted([*ALL, "begin"])


def test_what_was_interrupted_is_done_by_the_next_attempt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other = pair
    with monkeypatch.context() as patch, pytest.raises(QueueClientError):
        at(patch, attributes, "make_tables", OSError("the process died"), landed=True)
        queue.set_attributes(shards=3)
    assert queue.attributes()["shards"] == 1
    raised(other)
    assert sorted(drain(queue)) == ALL


def test_other_calls_work_while_the_tables_of_new_shards_are_made(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lq = LakeQueue(str(tmp_path / "root"), clock=clock)
    queue, other = lq.create_queue("orders"), lq.create_queue("other")
    with held_at(monkeypatch, attributes, "make_tables", lambda: raised(queue)) as pool:
        others = pool.submit(lambda: (other.set_attributes(delay=1), queue.set_tags(a="b"), lq.list_queues()))
        others.result(20)
        assert queue.attributes()["shards"] == 1
    assert sorted(drain(queue)) == ALL and queue.tags() == {"a": "b"}


def test_two_processes_that_raise_at_once_make_them_all(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other = pair
    at(monkeypatch, attributes, "make_tables", lambda: other.set_attributes(shards=2), landed=True)
    raised(queue)
    assert sorted(drain(other)) == ALL
    with pytest.raises(InvalidAttributeValue, match="shards"):
        other.set_attributes(shards=3)


def test_fewer_shards_and_those_of_fifo_queues_are_refused(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    queue = lq.create_queue("orders", shards=2)
    fifo = lq.create_queue("orders.fifo", fifo=True, shards=2, deduplication_scope="message_group")
    for refused, shards in (queue, 1), (queue, 1_025), (fifo, 3):
        with pytest.raises(InvalidAttributeValue, match="shards") as caught:
            refused.set_attributes(shards=shards)
        assert isinstance(caught.value, errors.QueueServiceError)
        assert refused.attributes()["shards"] == 2
