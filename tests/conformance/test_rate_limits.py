"""Rate limits through the tables: the bucket is one for all processes, and lies in the ledger (JOB-11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.fifo import FifoHarness
from conformance.harness import Call, Harness, every_engine
from insides import reopen
from lakequeue import LakeQueue, SendEntry


def fill(queue, count: int, group: str | None = None) -> None:
    for start in range(0, count, 10):
        ids = range(start, min(count, start + 10))
        queue.send_batch(
            [SendEntry(str(n), group_id=group and f"{group}{n}", dedup_id=group and str(n)) for n in ids]
        )


@every_engine
@pytest.mark.spec("JOB-11")
def test_all_processes_share_a_bucket(harness: Harness, clock):
    queue = harness.create(rate_limit="5/s", rate_burst=3)
    fill(queue, 20)
    assert len(queue.receive(10)) == 3
    assert harness.queue().receive(10) == [] and queue.receive(10) == []
    clock.advance(0.199)
    assert harness.queue().receive(10) == []
    clock.advance(0.001)
    assert len(harness.queue().receive(10)) == 1
    clock.advance(0.5)
    assert len(queue.receive(10)) == 2 and harness.queue().receive(10) == []
    clock.advance(0.1)  # two and a half and a half
    assert len(harness.queue().receive(10)) == 1
    clock.advance(100)
    assert len(harness.queue().receive(10)) == 3, "no more than the bucket holds, however long nobody received"
    assert harness.queue().counts().visible == 20 - 3 + 3 - 3, "visibility timeouts ended"


@pytest.mark.spec("JOB-11")
def test_the_bucket_outlasts_rewrites_of_the_ledger_and_what_does_not_receive(harness: Harness, clock):
    queue = harness.create(rate_limit="1/m")
    fill(queue, 10)
    (message,) = queue.receive(10)
    queue.compact()
    message.change_visibility(0)
    queue.compact()
    clock.advance(59)
    assert harness.queue().receive() == [] and harness.queue().lease() is None
    clock.advance(1)
    assert len(harness.queue().lease().arrow()) == 1
    assert harness.queue().receive() == []


@pytest.mark.spec("JOB-11", "DUR-31")
def test_a_ledger_that_goes_back_begins_with_an_empty_bucket(tmp_path: Path, clock):
    lq = LakeQueue(str(tmp_path), clock=clock)
    queue = lq.create_queue("orders", rate_limit="6/m", rate_burst=2)
    fill(queue, 10)
    assert len(queue.receive(10)) == 2
    newest = max((tmp_path / "q").glob("*/0/receipts/**/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()
    assert reopen(lq).repair(apply=True, force=True)[0].applied
    queue = reopen(lq).queue("orders")
    assert queue.counts().visible == 10 and queue.receive(10) == []
    clock.advance(10)
    assert len(queue.receive(10)) == 1


@pytest.mark.spec("JOB-11", "LPL-4")
def test_a_receive_waits_for_the_next_token(harness: Harness, clock):
    queue = harness.create(rate_limit="6/m")
    fill(queue, 3)
    assert len(queue.receive(10)) == 1
    call = Call(clock, lambda: harness.queue().receive(10, wait_time=20)).after(9.999).after(0.001)
    assert len(call.join()) == 1


@pytest.mark.spec("JOB-11")
def test_a_limit_is_set_changed_and_lifted(harness: Harness, clock):
    queue, other = harness.create(), harness.queue()
    fill(queue, 30)
    other.set_attributes(rate_limit="1/h")
    assert queue.attributes(["rate_limit", "rate_burst"]) == {"rate_limit": "1/h", "rate_burst": None}
    assert queue.attributes(wire=True)["RateLimit"] == "1/h"
    assert len(queue.receive(10)) == 1 and other.receive(10) == []
    queue.set_attributes(rate_limit="100/s", rate_burst=4)
    clock.advance(0.04)
    assert len(other.receive(10)) == 4, "the hour that was missing is as much as four messages now"
    other.set_attributes(rate_limit=None)
    assert queue.attributes(["rate_burst"]) == {"rate_burst": None}
    assert len(queue.receive(10)) == 10


@pytest.mark.spec("JOB-11", "ATT-3")
def test_a_repeated_attempt_takes_nothing_and_groups_keep_their_order(fifo: FifoHarness, clock):
    queue = fifo.create(rate_limit="1/s", rate_burst=2)
    fill(queue, 4, "g")
    received = queue.receive(10, attempt_id="first")
    assert [message.body for message in received] == ["0", "1"]
    assert [message.body for message in fifo.queue().receive(10, attempt_id="first")] == ["0", "1"]
    assert fifo.queue().receive(10, attempt_id="second") == []
    clock.advance(1)
    assert [message.body for message in fifo.queue().receive(10)] == ["2"]


@pytest.mark.spec("JOB-11")
def test_shards_have_a_share_each(harness: Harness, clock):
    queue = harness.create(priorities=2, rate_limit="10/s", rate_burst=4)
    for n in range(10):
        queue.send(str(n), priority=n % 2)
    assert [message.priority for message in queue.receive(10)] == [1, 1, 0, 0]
    clock.advance(0.2)
    assert [message.priority for message in harness.queue().receive(10)] == [1, 0]


@pytest.mark.spec("JOB-11", "DLQ-2")
def test_dead_letters_wait_for_the_limit_and_take_nothing_from_it(harness: Harness, clock):
    dead = harness.create("dead")
    queue = harness.create(rate_limit="1/s", dead_letter_queue="dead", max_receive_count=1)
    fill(queue, 2)
    (message,) = queue.receive(10)
    message.change_visibility(0)
    assert queue.receive(10) == [] and dead.counts().visible == 0
    clock.advance(1)
    assert [one.body for one in queue.receive(10)] == ["1"] and dead.counts().visible == 1
