"""A verb by a wrong clock is refused before its first commit, or stores no instant of that clock (DUR-82)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from concurrency.harness import Wrong
from conformance.instants import stored
from conformance.verbs import VERBS as STEPS
from conformance.verbs import Given, prepared
from insides import forget
from lakequeue import LakeQueue, LakeQueueError, Queue, QueueClientError
from lakequeue.runtime import open_queue
from lakequeue.serve.sqs.move_tasks import MoveTasks
from lakequeue.storage import clock_guard
from lakequeue.testing import ManualClock

DAYS = timedelta(days=1)
Verb = Callable[[LakeQueue, Queue, Given], object]


def redriven(lake: LakeQueue) -> None:
    """A redrive as clients of SQS start it."""
    tasks = MoveTasks(lake, "000000000000")
    try:
        tasks.start(lake.queue("dead")._runtime.arn, None, None)
    finally:
        tasks.stop()


VERBS: dict[str, Verb] = STEPS | {
    "Queue.update_attributes": lambda lake, queue, given: queue.update_attributes(
        lambda known: {"visibility_timeout": 9}
    ),
    "Queue.resume": lambda lake, queue, given: queue.resume(),
    "Queue.remove_tags": lambda lake, queue, given: queue.remove_tags("team"),
    "LakeQueue.repair": lambda lake, queue, given: lake.repair(apply=True),
    "LakeQueue.repair of clocks": lambda lake, queue, given: lake.repair(apply=True, clock=True),
    "LakeQueue.upgrade": lambda lake, queue, given: lake.upgrade(),
    "Schedules.add": lambda lake, queue, given: lake.schedules.add("new", "orders", "x", cron="* * * * *"),
    "Schedules.add of one time": lambda lake, queue, given: lake.schedules.add(
        "new", "orders", "x", at=datetime.now(timezone.utc) + timedelta(minutes=10)
    ),
    "Schedules.pause": lambda lake, queue, given: lake.schedules.pause("due"),
    "Schedules.resume": lambda lake, queue, given: lake.schedules.resume("paused"),
    "Schedules.remove": lambda lake, queue, given: lake.schedules.remove("due"),
    "Schedules.run_now": lambda lake, queue, given: lake.schedules.run_now("due"),
    "Schedules.run_due": lambda lake, queue, given: lake.schedules.run_due(),
    "a move task": lambda lake, queue, given: redriven(lake),
    "the end of a deletion": lambda lake, queue, given: lake.queue("half").send("b"),
}
"""By the class and method of the interface, or what else calls make."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[LakeQueue, Given]:
    clock = ManualClock(datetime.now(timezone.utc) - timedelta(seconds=30))
    lake = LakeQueue(str(tmp_path_factory.mktemp("wrong") / "base"), clock=clock, engine="point")
    given = prepared(lake, clock)
    lake.queue("orders").set_tags(team="a")
    for name in ("due", "paused"):
        lake.schedules.add(name, "orders", "x", cron="* * * * *", missed="all")
    lake.schedules.pause("paused")
    lake.compact()
    lake.create_queue("half").send("a")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(open_queue.OpenQueue, "close_shards", _closed_and_killed)
        lake.delete_queue("half")
    by_the_right_clock(lake.root)
    return lake, given


def _closed_and_killed(queue: open_queue.OpenQueue) -> None:
    for shard in queue.shards:
        shard.sender.close()
    raise KeyboardInterrupt


def by_the_right_clock(root: str) -> None:
    now = datetime.now(timezone.utc)
    for name, instant in stored(root):
        assert now - DAYS < instant < now + DAYS, f"{name} is {instant}"


def logs(root: str) -> set[str]:
    return {str(path) for path in Path(root).rglob("_delta_log/*.json")}


@pytest.mark.spec("DUR-82")
@pytest.mark.parametrize("days", [10, -10])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_by_a_wrong_clock_is_refused_first_or_stores_no_instant_of_it(
    tmp_path: Path, base: tuple[LakeQueue, Given], monkeypatch: pytest.MonkeyPatch, verb: str, days: int
) -> None:
    own = SimpleNamespace(sleep=lambda _: None, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(clock_guard, "time", own)
    root = str(tmp_path / "root")
    shutil.copytree(base[0].root, root)
    forget()
    lake = LakeQueue(root, clock=Wrong(days * DAYS), engine="point")
    before, error = logs(root), None
    try:
        VERBS[verb](lake, lake.queue("orders"), base[1])
    except LakeQueueError as raised:
        error = raised
    if isinstance(error, QueueClientError):
        assert not error.outcome_unknown and "Nothing was changed" in str(error)
        assert logs(root) == before
    if logs(root) != before:  # else it stores what the base does
        by_the_right_clock(root)
