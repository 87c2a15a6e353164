"""Segments are merged and dropped and ledgers compacted, and no answer changes; leases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from deltalake import DeltaTable

from concurrency.harness import keep_to
from conformance.harness import Harness, batch, bodies, numbered
from insides import place_of
from lakequeue import Queue, errors
from lakequeue.storage.layout import messages_path, receipts_path
from lakequeue.storage.messages import append, merge_segments


def live_files(queue: Queue, path) -> int:
    return len(DeltaTable(path(place_of(queue), queue.key, 0)).file_uris())


@pytest.mark.spec("DLT-7", "RCV-16", "DLT-6")
def test_segments_close_and_merge_and_nobody_notices(harness: Harness, monkeypatch, clock):
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 3)
    queue, other = harness.create(), harness.queue()
    texts = [f"{number}\n\t\U0001f600" for number in range(5)]
    attributes = {"binary": b"\x00\xff", "number": 1}
    for text in texts:
        queue.send(text, attributes=attributes, delay=5 if text == texts[3] else None)
    actions = harness.log_actions(f"q/{queue.key}/0/messages")
    assert any("remove" in action for action in actions), "nothing was merged"
    assert live_files(queue, messages_path) < 5
    assert len(other.receive(2)) == 2
    clock.advance(5)
    received = [*other.receive(1), *harness.queue().receive(10)]
    assert [m.body for m in received] == texts[2:]
    assert {m.message_attributes["binary"] for m in received} == {("Binary", b"\x00\xff")}
    assert {m.sent_at for m in received} == {clock.now() - timedelta(seconds=5)}


@pytest.mark.spec("RCV-3", "VIS-9", "DLT-3")
def test_a_lease_settles_all_its_messages_at_once(harness: Harness, clock):
    queue = harness.create()
    queue.send_batch(batch(*numbered(50)))
    lease = harness.queue().lease(40, visibility_timeout=10)
    assert (lease.message_count, lease.visible_at) == (40, clock.now() + timedelta(seconds=10))
    assert lease.extend(100).done == 40
    clock.advance(99)
    assert harness.queue().counts().in_flight == 40
    before = harness.versions()
    assert lease.delete().done == 40
    after = harness.versions()
    assert sum(after.values()) - sum(before.values()) == 1
    assert bodies(harness.queue().receive(100)) == numbered(10, 40)
    with pytest.raises(errors.LeaseLost):
        lease.release()
    assert harness.queue().lease() is None


@pytest.mark.spec("DLT-3")
def test_the_ledger_has_one_head_row_for_each_shard(harness: Harness):
    queue = harness.create(shards=2)
    for shard in range(2):
        keep_to(queue, shard)
        queue.send("a")
        queue.receive()
    for shard in range(2):
        rows = DeltaTable(receipts_path(harness.root, queue.key, shard)).to_pyarrow_table(
            columns=["first_offset", "last_offset", "state"]
        )
        head, run = sorted(tuple(row.values()) for row in rows.to_pylist())
        assert head == (-1, -1, "head") and run[2] == "in_flight"
