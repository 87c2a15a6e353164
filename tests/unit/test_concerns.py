"""Which states of a queue deserve an operator's attention, on depths as queues have them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, from_micros, to_micros
from lakequeue.model.consumer_processes import ConsumerProcess
from lakequeue.operations.concerns import GROWTH_SECONDS, STUCK_SECONDS, UNREAD_SECONDS, found
from lakequeue.operations.consumers import ActiveConsumer
from lakequeue.operations.depth import Depth
from lakequeue.operations.results import QueueCounts

NOW = to_micros(datetime(2026, 1, 1, tzinfo=timezone.utc))
OLD = UNREAD_SECONDS + 1.0


def kinds(
    visible: int = 0,
    in_flight: int = 0,
    delayed: int = 0,
    age: float | None = None,
    held_for: float | None = None,
    sources: tuple[str, ...] = (),
    before: int | None = None,
    undecided: int = 0,
    **attributes: object,
) -> list[str]:
    """The kinds of the concerns about a queue."""
    depth = Depth(NOW, QueueCounts(visible, in_flight, delayed, 0, age, undecided=undecided), 0)
    received = None if held_for is None else from_micros(NOW - round(held_for * MICROS))
    busy = [] if received is None else [ActiveConsumer("host:7", 1, received, received)]
    texts = found("orders", QueueAttributes.create(**attributes), depth, busy, sources, before)
    return [concern.kind for concern in texts]


def test_a_queue_that_is_used_has_none() -> None:
    assert kinds() == []
    assert kinds(visible=10_000, in_flight=9, age=3 * OLD, held_for=STUCK_SECONDS - 1, before=9_950) == []


@pytest.mark.parametrize(("age", "expected"), [(OLD, ["unread"]), (OLD - 2, [])])
def test_nobody_receives_if_messages_wait_and_none_is_in_flight(age: float, expected: list[str]) -> None:
    assert kinds(visible=1, age=age) == expected
    assert kinds(visible=1, in_flight=1, age=age) == []
    assert kinds(delayed=1, age=age) == [], "a delayed message waits for its time"


def test_a_paused_queue_is_paused_and_not_unread_or_growing() -> None:
    assert kinds(visible=1, age=OLD, paused="the bank is down") == ["paused"]
    assert kinds(visible=900, age=1.0, before=1, paused="the bank is down") == ["paused"]
    assert kinds(visible=1, age=OLD, paused_groups={"acme": "late"}) == ["paused", "unread"]


@pytest.mark.spec("TAB-10")
def test_undecided_deliveries_are_shown_also_once_the_queue_has_no_table() -> None:
    assert kinds(undecided=2, table="/lake/orders") == kinds(undecided=2) == ["undecided"]
    assert kinds(table="/lake/orders") == []


def test_dead_letters_are_no_unread_messages() -> None:
    assert kinds(visible=30, age=OLD, sources=("pay",)) == ["dead letters"]
    assert kinds(sources=("pay",)) == []


@pytest.mark.parametrize(
    ("before", "visible", "expected"),
    [(0, 100, ["growing"]), (0, 99, []), (1_000, 1_200, ["growing"]), (1_000, 1_199, []), (None, 9_999, [])],
)
def test_a_queue_grows_by_its_messages_and_its_share(
    before: int | None, visible: int, expected: list[str]
) -> None:
    assert kinds(visible=visible, in_flight=1, age=1.0, before=before) == expected


def test_a_queue_at_one_of_its_limits_is_full() -> None:
    limit = {"max_inflight_messages": 100}
    assert kinds(in_flight=95, age=1.0, **limit) == ["full"]
    assert kinds(in_flight=94, age=1.0, **limit) == []
    assert kinds(visible=40, in_flight=40, delayed=20, age=1.0, max_stored_messages=100) == ["full"]
    assert kinds(delayed=10, age=1.0, max_delayed_messages=10) == ["full"]


def test_a_consumer_that_holds_a_message_for_long_may_hang() -> None:
    assert kinds(in_flight=1, age=OLD, held_for=STUCK_SECONDS + 1) == ["stuck"]
    day = 24 * GROWTH_SECONDS
    assert kinds(in_flight=1, age=OLD, held_for=STUCK_SECONDS + 1, visibility_timeout=day // 2) == []
    assert kinds(in_flight=1, age=OLD, held_for=day, visibility_timeout=day // 2) == ["stuck"]


PROCESS = ConsumerProcess("worker-1", 4711, from_micros(NOW), from_micros(NOW), 0, None)


def test_the_process_that_hangs_and_its_machine_are_named() -> None:
    received = from_micros(NOW - 2 * STUCK_SECONDS * MICROS)
    depth = Depth(NOW, QueueCounts(0, 1, 0, 0, OLD), 0)
    hanging = ActiveConsumer("packer", 1, received, received, [PROCESS])
    [concern] = found("orders", QueueAttributes.create(), depth, [hanging], (), None)
    assert "packer has held a message of orders for 2h" in concern.text
    assert "py-spy dump --pid 4711 on worker-1 shows where its handler hangs" in concern.cure


def test_consumers_that_run_and_receive_nothing_are_named_by_their_process() -> None:
    depth = Depth(NOW, QueueCounts(5, 0, 0, 0, OLD), 0)
    idle = ActiveConsumer("packer", 0, None, None, [PROCESS])
    [concern] = found("orders", QueueAttributes.create(), depth, [idle], (), None)
    assert concern.kind == "unread" and "though 1 consumer of it runs" in concern.text
    assert "process 4711 on worker-1" in concern.cure and "start" not in concern.cure
    [concern] = found("orders", QueueAttributes.create(), depth, [], (), None)
    assert "start its consumers" in concern.cure
