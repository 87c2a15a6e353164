"""The depth of message groups: in Python, SQL and on the command line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow.compute as pc
import pytest

from lakequeue import LakeQueue, Queue, SendEntry, errors
from lakequeue.cli.sql import by_duckdb
from lakequeue.operations import group_depth
from lakequeue.testing import ManualClock


@pytest.fixture
def tenants(lq: LakeQueue, clock: ManualClock) -> Queue:
    """A noisy group in front of two quiet ones, and messages without a group, over two shards."""
    queue = lq.create_queue("tenants", shards=2, fair_groups=False)
    for group, count in (("noisy", 50), ("quiet", 2), ("delayed", 1), (None, 3)):
        for index in range(count):
            delay = 60 if group == "delayed" else None
            queue.send_batch([SendEntry(body=f"{index}", group_id=group, delay=delay)])
        clock.advance(10)
    return queue


def rows(found: list[Any]) -> list[tuple[Any, ...]]:
    return [(group.group_id, group.visible, group.in_flight, group.oldest_age, group.noisy) for group in found]


@pytest.mark.spec("FAI-3")
def test_groups_show_their_counts_and_which_are_noisy(tenants: Queue, clock: ManualClock) -> None:
    assert rows(tenants.groups()) == [
        ("noisy", 50, 0, 40.0, True),
        (None, 3, 0, 10.0, False),
        ("quiet", 2, 0, 30.0, False),
    ]
    assert rows(tenants.groups(limit=1)) == [("noisy", 50, 0, 40.0, True)]
    received = [message for _ in range(5) for message in tenants.receive(max_messages=10, visibility_timeout=600)]
    loads = {group.group_id: group for group in tenants.groups()}
    assert sum(group.in_flight for group in loads.values()) == len(received)
    tenants.delete_batch([message.receipt_handle for message in received])
    clock.advance(60)  # the delayed message becomes visible
    found = tenants.groups()
    assert sum(group.visible + group.in_flight for group in found) == 56 - len(received)
    assert "delayed" in {group.group_id for group in found}


def test_partial_sums_are_added_up(tenants: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tenants.groups()
    monkeypatch.setattr(group_depth, "_PARTS", 0)
    assert tenants.groups() == whole


@pytest.mark.spec("FAI-3")
def test_the_relation_has_the_groups_of_all_queues(tenants: Queue, lq: LakeQueue, clock: ManualClock) -> None:
    fifo = lq.create_queue("orders.fifo", fifo=True)
    for index in range(20):
        fifo.send(f"{index}", group_id="a" if index else "b", dedup_id=f"{index}")
    lq.create_queue("empty")
    groups = lq.arrow_views()["groups"]
    shown = {(row.pop("queue"), row["group_id"]): row for row in groups.to_table().to_pylist()}
    assert len(shown) == 5 and {row["region"] for row in shown.values()} == {"local"}
    assert shown["orders.fifo", "a"]["visible"] == 19 and shown["orders.fifo", "a"]["noisy"] is None
    noisy = "SELECT queue, group_id, visible FROM groups WHERE noisy AND visible > 9 ORDER BY visible"
    assert by_duckdb(lq, noisy, 10).to_pylist() == [{"queue": "tenants", "group_id": "noisy", "visible": 50}]
    one = groups.to_table(filter=pc.field("queue") == "orders.fifo", columns=["group_id"])
    assert sorted(one["group_id"].to_pylist()) == ["a", "b"]
    before = clock.now()
    clock.advance(15 * 24 * 3_600)
    assert groups.count_rows() == 0  # expired
    assert lq.arrow_views(now=before)["groups"].count_rows() == 5
    [oldest] = lq.arrow_views(now=before + timedelta(seconds=1))["groups"].to_table(
        filter=pc.field("group_id") == "noisy", columns=["oldest_age"]
    )["oldest_age"]
    assert oldest.as_py() == 41.0


def test_bad_limits_and_deleted_queues_are_refused(tenants: Queue, lq: LakeQueue) -> None:
    for limit in (0, True, 1.5):
        with pytest.raises(errors.InvalidParameterValue, match="limit"):
            tenants.groups(limit=limit)  # type: ignore[arg-type]
    lq.delete_queue("tenants")
    with pytest.raises(errors.QueueDoesNotExist):
        tenants.groups()
