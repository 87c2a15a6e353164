"""A message whose receipt has ended before a handler began it is given back, whatever has delayed the handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumer.harness import Handler, Harness
from lakequeue import (
    ComputedRenewal,
    HeartbeatRenewal,
    NoRenewal,
    Outcome,
    QueueClientError,
)
from lakequeue.model.clock import to_micros

pytestmark = pytest.mark.spec("HBN-25", "FIF-1")

LIMIT = 1
SECONDS = 1.6
POLICIES = {
    "none": NoRenewal(),
    "disabled": HeartbeatRenewal(LIMIT, disable_extension=True),
    "not at all": ComputedRenewal(LIMIT, max_auto_renewal_duration=0),
    "failing": HeartbeatRenewal(LIMIT, extension_threshold=0.5, heartbeat_interval=0.1),
}


class Punctual(Handler):
    """Notes the messages that it begins after their receipts have ended, as the queue's clock goes."""

    late: list[Any] = []

    def _begin(self, message: Any, context: Any) -> float:
        for each in message if isinstance(message, list) else [message]:
            if to_micros(each.visible_at) <= to_micros(self._harness.clock.now()):
                self.late = [*self.late, each.body]
        return super()._begin(message, context)


def consumed(harness: Harness, policy: str, seconds: float = 60, answer: Any = None, **options: Any) -> Punctual:
    handler = Punctual(harness, SECONDS, answer)
    if policy == "failing":
        harness.fails(QueueClientError("the disk is gone"), verbs="change", until=1_000)
    harness.consume(handler, seconds, renewal=POLICIES[policy], **options)
    return handler


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "options",
    [{}, {"concurrency": 4}, {"prefetch": 0}, {"prefetch": 20}, {"batch": 2, "prefetch": 20}],
    ids=str,
)
def test_no_handler_begins_what_is_over_and_groups_keep_their_order(
    make: Callable[..., Harness], policy: str, options: dict[str, Any]
) -> None:
    harness = make(fifo=True, visibility_timeout=LIMIT)
    sent = [f"{group}{number}" for number in range(4) for group in "xyz"]
    harness.send(*sent)
    handler = consumed(harness, policy, **options)
    begun = [body for each in handler.bodies for body in (each if "batch" in options else [each])]
    assert handler.late == []
    for group in "xyz":
        of_group = [body for body in begun if body[0] == group]
        assert of_group == sorted(of_group)
    if policy != "failing":  # else nothing is deleted: a receipt of a FIFO queue that has ended is worth nothing
        assert set(begun) == set(sent) and harness.other.peek() == []


@pytest.mark.parametrize("prefetch", [None, 0, 20])
def test_what_waits_longer_than_its_receipt_lasts_comes_again_in_order(
    make: Callable[..., Harness], prefetch: int | None
) -> None:
    harness = make(fifo=True, visibility_timeout=5)
    harness.send(*(f"x{number}" for number in range(9)))
    handler = consumed(harness, "none", concurrency=1, prefetch=prefetch)
    assert handler.late == [] and handler.bodies == [f"x{number}" for number in range(9)]
    assert harness.other.peek() == []
    if prefetch != 20:  # else the next receive may come before the late ones are given back
        assert handler.receives == [1] * 9


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prefetch", [None, 20])
@pytest.mark.parametrize("batch", [None, 3])
def test_standard_queues_do_the_same(
    make: Callable[..., Harness], policy: str, prefetch: int | None, batch: int | None
) -> None:
    harness = make(visibility_timeout=LIMIT)
    harness.send(*"abcdef")
    handler = consumed(harness, policy, concurrency=1, prefetch=prefetch, batch=batch)
    assert handler.late == [] and set("".join(map(str, handler.bodies))) >= set("abcdef")
    if policy != "failing":
        assert harness.other.peek() == []


def test_the_log_names_what_was_late(make: Callable[..., Harness], caplog: pytest.LogCaptureFixture) -> None:
    harness = make(visibility_timeout=LIMIT)
    harness.send("a", "b")
    handler = consumed(harness, "none", concurrency=1, prefetch=1)
    assert handler.bodies == ["a", "b"]
    assert "its receipt ended before a handler began, so it is given back" in caplog.text


def test_a_message_that_failed_keeps_its_place_before_what_was_late(make: Callable[..., Harness]) -> None:
    harness = make(fifo=True, visibility_timeout=LIMIT)
    harness.send("x0", "x1", "x2")
    handler = consumed(
        harness, "none", answer=lambda message: Outcome.FAILED if message.receive_count == 1 else None
    )
    assert (
        handler.late == []
        and handler.bodies == sorted(handler.bodies)
        and set(handler.bodies) == {"x0", "x1", "x2"}
    )


def test_a_queue_that_hides_nothing_is_consumed(make: Callable[..., Harness]) -> None:
    harness = make(visibility_timeout=0)
    harness.send("a", "b")
    handler = harness.handler()
    harness.consume(handler, 1, renewal=NoRenewal(), concurrency=1)
    assert set(handler.bodies) == {"a", "b"} and harness.other.counts().visible == 0
