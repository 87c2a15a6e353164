"""Standard queues whose messages have groups: fair receives and the limit of each group, on real tables."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest

from conformance.harness import Harness
from insides import shard_of
from lakequeue import OverLimit, SendEntry

NOISY = 200


def groups_of(messages) -> list[str | None]:
    return [message.group_id for message in messages]


def fill(queue, *quiet: str | None, noisy: int = NOISY) -> None:
    for groups in filter(None, (["noisy"] * noisy, quiet)):
        queue.send_batch([SendEntry("x", group_id=group) for group in groups])


@pytest.mark.spec("FAI-2")
def test_groups_whose_messages_are_deleted_at_once_take_turns_over_processes(harness: Harness, clock):
    queue = harness.create()
    fill(queue, *["quiet"] * 5)
    found = []
    for _ in range(10):
        queue = harness.queue()
        clock.advance(0.01)
        for message in queue.receive(1):
            found.append(message.group_id)
            message.delete()
    assert found == ["noisy", "quiet"] * 5


@pytest.mark.spec("FAI-4")
def test_no_more_messages_of_a_group_are_in_flight_than_its_limit(harness: Harness, clock):
    queue = harness.create(group_in_flight_limit=2)
    fill(queue, "a", None, None, None, noisy=5)
    first = queue.receive(10)
    assert Counter(groups_of(first)) == {"noisy": 2, "a": 1, None: 2}
    assert queue.receive(10) == []
    next(message for message in first if message.group_id == "noisy").delete()
    assert groups_of(queue.receive(10)) == ["noisy"]
    clock.advance(30)
    lease = queue.lease(100, visibility_timeout=60)
    assert lease is not None and lease.message_count == 5
    peeked = harness.queue().peek(limit=100)
    hidden = Counter(message.group_id for message in peeked if message.state == "in_flight")
    assert hidden == {"noisy": 2, "a": 1, None: 2}


@pytest.mark.spec("FAI-4", "RCP-8", "VIS-3")
def test_a_receipt_that_has_ended_is_not_extended_beyond_the_limit(harness: Harness, clock):
    queue = harness.create(group_in_flight_limit=1)
    fill(queue, noisy=2)
    [first] = queue.receive(1, visibility_timeout=5)
    queue.set_attributes(group_in_flight_limit=2)
    [second] = queue.receive(1, visibility_timeout=60)
    queue.set_attributes(group_in_flight_limit=1)
    clock.advance(5)
    with pytest.raises(OverLimit, match="message group"):
        first.change_visibility(10)
    second.delete()
    first.change_visibility(10)
    assert queue.receive(1) == []


@pytest.mark.spec("FAI-5")
@pytest.mark.parametrize("by", ["send", "rows"])
def test_with_a_limit_a_group_lives_on_one_shard(harness: Harness, by: str):
    queue = harness.create(shards=4, group_in_flight_limit=1)
    groups = [f"tenant {n}".replace(" ", "-") for n in range(8)]
    if by == "send":
        for _ in range(3):
            queue.send_batch([SendEntry("x", group_id=group) for group in groups])
    else:
        import pyarrow as pa

        queue.send_arrow(pa.table({"body": ["x"] * 24, "group_id": groups * 3}))
    found = [message for _ in range(8) for message in queue.receive(100)]
    assert sorted(groups_of(found)) == sorted(groups)
    for message in found:
        message.delete()
    assert sorted(groups_of([m for _ in range(8) for m in queue.receive(100)])) == sorted(groups)


@pytest.mark.spec("FAI-5")
def test_moved_messages_go_to_the_shard_of_their_group(harness: Harness):
    target = harness.create("dead", shards=4, group_in_flight_limit=1)
    source = harness.create(redrive_policy={"deadLetterTargetArn": target.arn, "maxReceiveCount": 1})
    groups = [f"tenant-{n}" for n in range(8)]
    source.send_batch([SendEntry("x", group_id=group) for group in groups * 2])
    assert len(source.receive(100, visibility_timeout=0)) == 16
    assert source.receive(100) == []
    found = [message for _ in range(8) for message in target.receive(100)]
    assert sorted(groups_of(found)) == sorted(groups)


@pytest.mark.spec("FAI-2", "RWD-10")
def test_a_quiet_message_on_another_shard_is_received_after_at_most_32_receives(harness: Harness):
    queue = harness.create(shards=2)
    for shard in queue._runtime.shards:
        shard.shared.sends.current = 0
    fill(queue, noisy=300)
    shard_of(queue).shared.sends.current = 1
    fill(queue, "quiet", noisy=0)
    shard_of(queue).shared.home.current = 0
    seen = 0
    while "quiet" not in groups_of(queue.receive(1)):
        seen += 1
        assert seen < 33


PLOT = Path(__file__).parents[2] / "docs" / "guides" / "fair_queues_plot.py"


@pytest.mark.spec("FAI-2")
@pytest.mark.parametrize(("fair", "longest"), [(True, 3), (False, 10)])
def test_quiet_tenants_wait_for_a_backlog_of_another_only_without_fair_groups(fair: bool, longest: int) -> None:
    """Three rounds of the consumer, or those that the backlog takes."""
    quiet, noisy = runpy.run_path(str(PLOT))["waits"](fair, seconds=30, backlog=100, at=5)
    waited = max(max(seconds) for seconds in quiet.values())
    assert waited <= longest if fair else waited >= longest - 1
    assert sum(map(len, noisy.values())) == 100, "the noisy tenant has the hands that nobody else needs"
