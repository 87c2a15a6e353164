"""A handler learns within two seconds that others have deleted its message, whatever the policy (HBN-26)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumer.harness import Harness
from lakequeue import ComputedRenewal, Context, HeartbeatRenewal, LakeQueue, Message, NoRenewal
from lakequeue.runtime.shard_ledger import ShardLedger

pytestmark = pytest.mark.spec("HBN-26", "JOB-3")

LONG = {"visibility_timeout": 600}
POLICIES = [HeartbeatRenewal(), HeartbeatRenewal(600, heartbeat_interval=4), ComputedRenewal(300), NoRenewal()]


def someone_else(harness: Harness) -> Any:
    """The queue as another process knows it."""
    return LakeQueue(harness.lq.root, clock=harness.clock).queue(harness.queue.name)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("end", ["cancel", "purge"])
def test_all_handlers_of_a_process_learn_it_within_two_seconds(
    make: Callable[..., Harness], policy: Any, end: str
) -> None:
    harness = make(**LONG, shards=2)
    bodies = [str(number) for number in range(8)]
    harness.send(*bodies)
    told: dict[str, float] = {}

    def handle(message: Message, context: Context) -> None:
        context.sleep(250)
        told[message.body] = harness.now

    with harness.running(harness.consumer(handle, renewal=policy)):
        harness.clock.advance(7.3)
        other = someone_else(harness)
        if end == "cancel":
            for message in other.peek(limit=10):
                assert int(message.body) % 2 or other.cancel(message.message_id)
        elif end == "purge":
            other.purge()
        ended = {body for body in bodies if end == "purge" or int(body) % 2 == 0}
        harness.clock.advance(2)
        assert told.keys() == ended and all(at <= 9.3 for at in told.values())
    assert harness.queue.deletes() == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_waits_is_never_begun_once_it_is_cancelled(harness: Harness, asynchronous: bool) -> None:
    harness.send("A", "B", "C")
    handler = harness.handler(10, asynchronous=asynchronous)
    with harness.running(harness.consumer(handler, concurrency=1, prefetch=5)):
        harness.clock.advance(5)
        [second] = [message for message in harness.other.peek(limit=3) if message.body == "B"]
        assert someone_else(harness).cancel(second.message_id)
        harness.clock.advance(30)
    assert handler.begun == [(0, "A"), (10, "C")]


def test_one_read_of_the_ledger_a_second_is_for_all_messages(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.send(*(str(number) for number in range(10)))
    asked: list[tuple[float, int]] = []
    are_stored = ShardLedger.are_stored

    def noted(ledger: ShardLedger, offsets: Any, now: int) -> list[bool]:
        asked.append((harness.now, len(offsets)))
        return are_stored(ledger, offsets, now)

    monkeypatch.setattr(ShardLedger, "are_stored", noted)
    harness.consume(harness.handler(5), 20, renewal=NoRenewal())
    assert asked == [(at, 10) for at in (1, 2, 3, 4)]


def test_a_storage_that_fails_deletes_nothing(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.send("A")

    def fails(*_: Any) -> list[bool]:
        raise OSError("no network")

    monkeypatch.setattr(ShardLedger, "are_stored", fails)
    handler = harness.handler(20)
    harness.consume(handler, 30)
    assert handler.slept == [True] and harness.queue.deletes() == [(20, "A")]


def test_a_deleted_queue_ends_the_consumer_within_two_seconds(harness: Harness) -> None:
    harness.send("A")
    handler = harness.handler(100)
    with harness.running(harness.consumer(handler, renewal=NoRenewal(), concurrency=1)) as running:
        harness.clock.advance(5)
        LakeQueue(harness.lq.root, clock=harness.clock).delete_queue("orders")
        harness.clock.advance(2)
        assert type(running.join()).__name__ == "QueueDoesNotExist"
    assert handler.slept == [False]


def test_its_own_rounds_end_nothing(harness: Harness) -> None:
    """A busy consumer: what others settle in the same rounds, and what comes meanwhile, is not lost."""
    harness.send(*(str(number) for number in range(40)))
    handler = harness.handler(lambda message: 1 + int(message.body) % 3)
    harness.consume(handler, 60, concurrency=4, renewal=NoRenewal())
    assert handler.slept == [True] * 40 and len(harness.queue.deletes()) == 40
