"""The ledger's side of deliveries into a table: the attribute, and what operators see of undecided messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from insides import shard_of
from lakequeue import LakeQueue, Queue
from lakequeue.errors import InvalidAttributeValue, RootDoesNotExist
from lakequeue.model.deliveries import new_nonce
from lakequeue.shard.commands import Claim, Command, Decide


def delivery_id(queue: Queue) -> str | None:
    return queue._runtime.attributes.delivery_id


def commit(queue: Queue, command: Command) -> Any:
    return queue._runtime.command(shard_of(queue), command)


@pytest.mark.spec("TAB-1")
@pytest.mark.parametrize(
    ("table", "stored"),
    [
        ("/lake/orders/", "/lake/orders"),
        (Path("/lake/orders"), "/lake/orders"),
        ("file:///lake/some%20orders", "/lake/some orders"),
        ("s3a://lake/orders", "s3://lake/orders"),
        ("silver.orders", "silver.orders"),
        ("lake.silver.orders", "lake.silver.orders"),
    ],
)
def test_a_table_is_an_absolute_path_a_uri_or_a_name_in_a_catalog(
    lq: LakeQueue, table: object, stored: str
) -> None:
    queue = lq.create_queue("orders", table=table)
    assert queue.attributes()["table"] == stored == lq.queue("orders").attributes()["Table"]
    again = lq.create_queue("orders", table=table)
    assert delivery_id(again) == delivery_id(queue)


@pytest.mark.spec("TAB-1")
@pytest.mark.parametrize(
    "table",
    [
        "s3://key:secret@lake/orders",
        "https://lake/orders?sig=secret",
        "redis://lake/orders",
        "/lake/a\nb",
        "  ",
        7,
    ],
)
def test_a_place_that_no_table_can_have_is_refused(lq: LakeQueue, table: object) -> None:
    with pytest.raises(InvalidAttributeValue, match=r"parameter table\b") as caught:
        lq.create_queue("orders", table=table)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(RootDoesNotExist):
        lq.list_queues()


@pytest.mark.spec("TAB-1")
def test_a_table_and_the_root_are_not_in_one_another(lq: LakeQueue) -> None:
    for place in (lq.root, f"{lq.root}/orders", lq.root.rpartition("/")[0]):
        with pytest.raises(InvalidAttributeValue, match="in one another"):
            lq.create_queue("orders", table=place)
    lq.create_queue("orders", table=f"{lq.root}-tables/orders")


@pytest.mark.spec("TAB-1")
def test_each_change_of_the_table_gives_the_queue_a_new_delivery_id_and_other_changes_do_not(
    lq: LakeQueue,
) -> None:
    queue = lq.create_queue("orders")

    assert delivery_id(queue) is None
    known = set()
    for table in ("/lake/orders", "/lake/other", "/lake/orders"):
        queue.set_attributes(table=table)
        known.add(delivery_id(lq.queue("orders")))
        queue.set_attributes(table=table, visibility_timeout=60)
        known.add(delivery_id(lq.queue("orders")))
    assert len(known) == 3 and all(re.fullmatch("[0-9a-f]{32}", each or "") for each in known)
    queue.set_attributes(table=None)
    assert (delivery_id(queue), queue.attributes()["table"]) == (None, None)


@pytest.mark.spec("TAB-1")
def test_the_table_stays_while_a_message_is_being_delivered_or_is_undecided(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", table="/lake/orders", visibility_timeout=30)
    queue.send("one")
    claimed = commit(queue, Claim(1, None, "lease", delivery=new_nonce()))
    for _ in range(2):
        with pytest.raises(InvalidAttributeValue, match="1 messages are being delivered"):
            queue.set_attributes(table="/lake/other")
        queue.set_attributes(table="/lake/orders", visibility_timeout=60)
        lq.clock.advance(30)
    assert queue.counts().undecided == 1
    assert commit(queue, Decide(*claimed.mark, delivered=True)) == 1
    queue.set_attributes(table="/lake/other")
