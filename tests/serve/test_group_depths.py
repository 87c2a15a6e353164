"""Figures of message groups: what metrics and console tell, and what reading them costs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.serve import group_depths
from lakequeue.serve.group_depths import GroupDepths
from lakequeue.serve.queue_metrics import QueueMetrics
from lakequeue.testing import ManualClock

METRICS = (
    "lakequeue_queue_noisy_groups",
    "lakequeue_queue_quiet_groups_visible_messages",
    "lakequeue_queue_quiet_groups_oldest_message_age_seconds",
)


class Seconds:
    """Monotonic seconds that move when a test says so, or a sum is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float = 0.0) -> None:
        self.now, self.read = 0.0, list[str]()
        sums = group_depths.group_sums

        def read(queue: Queue) -> pa.Table:
            self.read.append(queue.name)
            self.now += cost
            return sums(queue)

        monkeypatch.setattr(group_depths, "group_sums", read)

    def __call__(self) -> float:
        return self.now


def fill(queue: Queue, clock: ManualClock) -> None:
    queue.send_batch([SendEntry("a", group_id="quiet"), SendEntry("b", group_id="other"), SendEntry("c")])
    clock.advance(5)
    for _ in range(3):
        queue.send_batch([SendEntry("x", group_id="noisy")] * 10)


@pytest.mark.spec("FAI-3")
def test_metrics_show_noisy_groups_and_the_age_of_messages_of_quiet_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seconds = ManualClock(), Seconds(monkeypatch)
    lake = LakeQueue(str(tmp_path / "root"), clock=clock)
    fill(lake.create_queue("orders"), clock)
    fill(lake.create_queue("off", fair_groups=False), clock)
    fill(lake.create_queue("limited", fair_groups=False, group_in_flight_limit=3), clock)
    lake.create_queue("untold").send("no group")
    lake.create_queue("orders.fifo", fifo=True).send("a", group_id="a", dedup_id="1")
    found = {
        (family.name, *sample.labels.values()): sample.value
        for family in QueueMetrics(lake, now=seconds).collect()
        for sample in family.samples
        if family.name in METRICS
    }
    assert found == {
        (name, queue): value
        for queue, age in (("orders", 15), ("limited", 5))
        for name, value in zip(METRICS, (1, 3, age), strict=True)
    }
    assert sorted(seconds.read) == ["limited", "orders", "untold"]


def test_a_sum_is_kept_and_sums_take_a_small_part_of_the_time(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = Seconds(monkeypatch, cost=2.0)
    depths = GroupDepths(seconds)
    queues = [lq.create_queue(name) for name in "abc"]
    for queue in queues:
        fill(queue, clock)

    def scrape() -> None:
        for queue in depths.stalest(queues):
            depths.of(queue)

    scrape()
    assert seconds.read == ["a"] and depths.of(queues[1]) is None
    while seconds.now < 1_000:
        seconds.now += 5
        scrape()
    assert len(seconds.read) * 2.0 == pytest.approx(1 + 2 + group_depths.SHARE * 1_000, abs=3)
    assert seconds.read[:6] == [*"abcabc"], "they take turns"
    kept = depths.of(queues[0])
    assert kept is not None and (kept.groups, kept.noisy, kept.quiet_visible) == (4, 1, 3)
    assert [group.group_id for group in kept.top] == ["noisy", "other", "quiet", None]


def test_a_small_queue_is_read_once_in_ten_seconds(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = Seconds(monkeypatch)
    depths = GroupDepths(seconds)
    queue = lq.create_queue("orders")
    for _ in range(30):
        depths.of(queue)
        seconds.now += 1
    assert len(seconds.read) == 3
