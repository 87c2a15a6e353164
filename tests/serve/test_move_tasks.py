"""Message move tasks: their speed, their end, and what becomes of them when their server dies."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lakequeue import LakeQueue, Queue, RedrivePolicy, SendEntry
from lakequeue.errors import InvalidParameterValue, QueueClientError, ResourceNotFoundException
from lakequeue.operations import attributes
from lakequeue.serve.sqs import move_tasks
from lakequeue.serve.sqs.move_tasks import MAX_RATE, MAX_TASKS, STALE_MILLIS, MoveTasks
from lakequeue.testing import ManualClock
from serve.serving import ACCOUNT, ServerProcess, client_of, wait_until


class Harness:
    """A queue with dead letters, and the servers that move them."""

    def __init__(self, lake: LakeQueue, letters: int = 0) -> None:
        self.lake = lake
        self.dead = lake.create_queue("dead")
        policy = RedrivePolicy("dead", 1)
        self.orders = lake.create_queue("orders", redrive_policy=policy, allow_zero_visibility=True)
        self.servers: list[MoveTasks] = []
        if letters:
            self.fail(letters)

    def fail(self, letters: int) -> None:
        """Sends messages and receives each too often."""
        self.orders.send_batch([SendEntry(str(number)) for number in range(letters)])
        self.orders.receive(letters, visibility_timeout=0)
        assert self.orders.receive(letters) == []

    def server(self) -> MoveTasks:
        self.servers.append(MoveTasks(self.lake, ACCOUNT))
        return self.servers[-1]

    def task(self, number: int = 0) -> dict[str, Any]:
        """The newest task, as its clients see it."""
        return self.server().listed(self.dead.arn, MAX_TASKS)[number]

    def ends(self) -> dict[str, Any]:
        wait_until(lambda: self.task()["Status"] not in ("RUNNING", "CANCELLING"), "the end of the task")
        return self.task()

    def rests_after(self, moved: int) -> None:
        """Waits for a task with a speed to have moved so many."""
        wait_until(lambda: self.task()["ApproximateNumberOfMessagesMoved"] == moved, f"{moved} messages")
        self.lake.clock.wait_for_waiters()

    def written(self) -> dict[str, Any]:
        """The newest task as it stands in the catalog."""
        first: dict[str, Any] = json.loads(attributes.move_tasks(self.dead._runtime) or "")[0]
        return first

    def edited(self, **changes: Any) -> None:
        """Changes the newest task, as another server would have written it."""

        def update(text: str | None) -> str:
            first, *others = json.loads(text or "[]")
            return json.dumps([first | changes, *others])

        attributes.update_move_tasks(self.dead._runtime, update)


@pytest.fixture
def harness(lake: LakeQueue) -> Iterator[Harness]:
    harness = Harness(lake, letters=5)
    yield harness
    for server in harness.servers:
        server.stop()


def sizes(*queues: Queue) -> list[int]:
    return [queue.counts().visible for queue in queues]


@pytest.mark.spec("DLQ-8")
def test_a_task_moves_all_messages_back_and_counts_them(harness: Harness, clock: ManualClock) -> None:
    handle = harness.server().start(harness.dead.arn, None, None)
    assert handle
    assert harness.ends() == {
        "Status": "COMPLETED",
        "SourceArn": harness.dead.arn.replace("lakequeue", "aws", 1),
        "ApproximateNumberOfMessagesMoved": 5,
        "ApproximateNumberOfMessagesToMove": 5,
        "StartedTimestamp": int(clock.now().timestamp() * 1_000),
    }
    assert sizes(harness.dead, harness.orders) == [0, 5]


@pytest.mark.spec("DLQ-8")
@pytest.mark.parametrize("source", [None, "gone"])
def test_messages_that_have_no_way_back_fail_the_task(harness: Harness, source: str | None) -> None:
    if source is None:
        harness.dead.send("sent here")
    else:
        harness.lake.create_queue("kept", redrive_policy=RedrivePolicy(harness.dead.arn, 1))
        harness.lake.delete_queue("orders")
    harness.server().start(harness.dead.arn, None, None)
    ended = harness.ends()
    reason = "CouldNotDetermineMessageSource" if source is None else "AWS.SimpleQueueService.NonExistentQueue"
    assert (ended["Status"], ended["FailureReason"]) == ("FAILED", reason)
    assert ended["ApproximateNumberOfMessagesMoved"] == (5 if source is None else 0)


def test_a_task_moves_all_to_its_destination(harness: Harness) -> None:
    other = harness.lake.create_queue("other")
    harness.server().start(harness.dead.arn, other.arn, 500)
    assert harness.ends()["DestinationArn"] == other.arn
    assert sizes(harness.dead, harness.orders, other) == [0, 0, 5]


@pytest.mark.spec("DLQ-8")
def test_a_speed_is_held_second_by_second(harness: Harness, clock: ManualClock) -> None:
    harness.server().start(harness.dead.arn, None, 2)
    for moved in 2, 4:
        harness.rests_after(moved)
        assert sizes(harness.dead, harness.orders) == [5 - moved, moved]
        assert harness.task()["Status"] == "RUNNING"
        clock.advance(0.999)
        assert sizes(harness.dead) == [5 - moved]
        clock.advance(0.001)
    assert harness.ends()["ApproximateNumberOfMessagesMoved"] == 5


@pytest.mark.spec("DLQ-8")
def test_a_cancelled_task_moves_nothing_more(harness: Harness, clock: ManualClock) -> None:
    handle = harness.server().start(harness.dead.arn, None, 2)
    assert json.loads(base64.urlsafe_b64decode(handle))["sourceArn"] == harness.task()["SourceArn"]
    harness.rests_after(2)
    assert harness.server().cancel(handle) == 2, "any server cancels it"
    assert harness.task()["Status"] == "CANCELLING"
    with pytest.raises(InvalidParameterValue) as refused:
        harness.server().start(harness.dead.arn, None, None)
    assert str(refused.value).endswith(
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    )
    clock.advance(1)
    assert harness.ends()["Status"] == "CANCELLED"
    assert sizes(harness.dead, harness.orders) == [3, 2]
    with pytest.raises(ResourceNotFoundException, match=r"Task does not exist\.$"):
        harness.server().cancel(handle)


@pytest.mark.spec("DLQ-8")
def test_a_queue_has_one_active_task(harness: Harness, clock: ManualClock) -> None:
    harness.server().start(harness.dead.arn, None, 1)
    harness.rests_after(1)
    for server in harness.server(), harness.servers[0]:
        with pytest.raises(InvalidParameterValue, match="already a task running"):
            server.start(harness.dead.arn, None, None)
    assert len(harness.server().listed(harness.dead.arn, MAX_TASKS)) == 1


@pytest.mark.spec("DLQ-8")
def test_the_latest_tasks_are_listed_newest_first(harness: Harness, clock: ManualClock) -> None:
    for _ in range(MAX_TASKS + 2):
        harness.server().start(harness.dead.arn, None, None)
        harness.ends()
        clock.advance(1)
    listed = harness.server().listed(harness.dead.arn, MAX_TASKS)
    started = [task["StartedTimestamp"] for task in listed]
    assert len(listed) == MAX_TASKS and started == sorted(started, reverse=True)
    assert harness.server().listed(harness.dead.arn, 1) == listed[:1]


@pytest.mark.spec("DLQ-8")
def test_wrong_tasks_are_refused_and_leave_no_trace(harness: Harness) -> None:
    other, fifo = harness.lake.create_queue("other"), harness.lake.create_queue("x.fifo", fifo=True)
    missing = other.arn + "2"
    start = harness.server().start
    for source, destination, rate, error in (
        (other.arn, None, None, "configured as a Dead Letter Queue"),
        (harness.dead.arn, fifo.arn, None, "DestinationArn"),
        (harness.dead.arn, harness.dead.arn, None, "DestinationArn"),
        (harness.dead.arn, None, 0, "MaxNumberOfMessagesPerSecond"),
        (harness.dead.arn, None, MAX_RATE + 1, "MaxNumberOfMessagesPerSecond"),
    ):
        with pytest.raises(InvalidParameterValue, match=error):
            start(source, destination, rate)
    for source, destination in (missing, None), (harness.dead.arn, missing), ("dead", None):
        with pytest.raises(ResourceNotFoundException):
            start(source, destination, None)
    for handle in "", "é", "e30=", "bnVsbA==", harness.dead.arn:
        with pytest.raises(InvalidParameterValue, match="TaskHandle"):
            harness.server().cancel(handle)
    for most in 0, MAX_TASKS + 1:
        with pytest.raises(InvalidParameterValue, match="MaxResults"):
            harness.server().listed(harness.dead.arn, most)
    assert attributes.move_tasks(harness.dead._runtime) is None and sizes(harness.dead) == [5]


@pytest.mark.spec("DLQ-8")
def test_a_destination_that_goes_away_fails_the_task_with_the_reason(harness: Harness, clock: ManualClock) -> None:
    other = harness.lake.create_queue("other")
    harness.server().start(harness.dead.arn, other.arn, 2)
    harness.rests_after(2)
    harness.lake.delete_queue("other")
    clock.advance(1)
    task = harness.ends()
    assert task["Status"] == "FAILED" and "TaskHandle" not in task
    assert task["FailureReason"].startswith("The resource that you specified for the DestinationArn parameter")
    assert sizes(harness.dead) == [3], "messages went with the destination"


def test_storage_that_fails_ends_a_task_without_telling_more(
    lake: LakeQueue, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> int:
        raise QueueClientError("/secret/place is full")

    monkeypatch.setattr(move_tasks, "redrive_checked", failing)
    harness.server().start(harness.dead.arn, None, None)
    assert harness.ends()["FailureReason"] == "The storage of the queues failed."


@pytest.mark.spec("DLQ-8")
def test_another_server_goes_on_at_once_after_a_stop(harness: Harness, clock: ManualClock) -> None:
    first = harness.server()
    first.start(harness.dead.arn, None, 2)
    harness.rests_after(2)
    first.stop()
    assert harness.task()["Status"] == "RUNNING" and sizes(harness.dead) == [3]
    harness.server().adopt()
    harness.rests_after(4)
    clock.advance(1)
    task = harness.ends()
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 5)
    assert sizes(harness.dead, harness.orders) == [0, 5]


def test_a_task_begun_while_its_server_stops_is_left_to_others(harness: Harness) -> None:
    first = harness.server()
    first.stop()
    first.start(harness.dead.arn, None, None)
    assert sizes(harness.dead) == [5] and harness.task()["Status"] == "RUNNING"
    harness.server().adopt()
    assert harness.ends()["ApproximateNumberOfMessagesMoved"] == 5


@pytest.mark.spec("DLQ-8")
def test_the_task_of_a_silent_server_is_taken_up_by_one_other(harness: Harness, clock: ManualClock) -> None:
    harness.server().stop()
    harness.servers[0].start(harness.dead.arn, None, 2)
    now = int(clock.now().timestamp() * 1_000)
    harness.edited(server="dead", written=now)
    second, third = harness.server(), harness.server()
    clock.advance(STALE_MILLIS / 1_000)
    second.adopt()
    assert harness.written()["server"] == "dead", "it is not silent for long enough"
    clock.advance(0.001)
    for server in second, third:
        server.adopt()
    harness.rests_after(2)
    assert clock.waiting == 1, "both carry it out"


def test_a_server_that_was_silent_leaves_its_task_to_the_next(harness: Harness, clock: ManualClock) -> None:
    harness.server().start(harness.dead.arn, None, 2)
    harness.rests_after(2)
    harness.edited(server="another")
    clock.advance(1)
    assert sizes(harness.dead) == [3] and harness.task()["Status"] == "RUNNING"
    harness.servers[0].stop()
    assert harness.written()["written"] > 0


@pytest.mark.spec("DLQ-8")
def test_a_task_cancelled_after_its_server_died_ends_without_a_move(harness: Harness, clock: ManualClock) -> None:
    harness.server().stop()
    handle = harness.servers[0].start(harness.dead.arn, None, None)
    harness.server().cancel(handle)
    clock.advance(STALE_MILLIS / 1_000 + 1)
    harness.server().adopt()
    assert harness.ends()["Status"] == "CANCELLED"
    assert sizes(harness.dead, harness.orders) == [5, 0]


def test_tasks_that_cannot_be_read_keep_no_others_waiting(lake: LakeQueue) -> None:
    before = lake.create_queue("before")
    harness = Harness(lake, letters=5)
    for broken in before, lake.create_queue("behind"):
        attributes.update_move_tasks(broken._runtime, lambda text: json.dumps([{"of": "a newer version"}]))
    harness.server().stop()
    harness.servers[0].start(harness.dead.arn, None, None)
    second = harness.server()
    second.adopt()
    assert harness.ends()["Status"] == "COMPLETED"
    second.stop()


@pytest.mark.spec("DLQ-8", "DLT-4")
def test_a_task_survives_its_server(tmp_path: Path) -> None:
    root, letters = tmp_path / "queues", 12
    real = Harness(LakeQueue(str(root)), letters)
    with ServerProcess(root) as server, client_of(server.url) as client:
        client("StartMessageMoveTask", SourceArn=real.dead.arn, MaxNumberOfMessagesPerSecond=4)
        wait_until(lambda: real.task().get("ApproximateNumberOfMessagesMoved", 0) >= 4, "the first messages")
        server.process.kill()
        server.wait()
    assert real.task()["Status"] == "RUNNING" and real.dead.counts().visible > 0

    clock = ManualClock(datetime.now(timezone.utc) + timedelta(milliseconds=STALE_MILLIS + 1_000))
    later = MoveTasks(LakeQueue(str(root), clock=clock), ACCOUNT)
    later.adopt()

    def ended() -> bool:
        clock.advance(1)
        return real.task()["Status"] != "RUNNING"

    wait_until(ended, "the end of the task")
    later.stop()
    assert real.task()["Status"] == "COMPLETED"
    bodies = Counter(message.body for message in real.orders.receive(1_000))
    assert bodies == Counter(str(number) for number in range(letters))
