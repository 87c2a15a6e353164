"""Faults at every write: before it, after it, without an answer, repeatedly, and by SIGKILL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from concurrency.faults import killed
from concurrency.harness import (
    PLACES,
    apart,
    application_id,
    check_log,
    drain,
    elsewhere,
    log_versions,
    small_segments,
)
from concurrency.steps import LANDED, at, cut_off
from lakequeue import (
    LakeQueue,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    RequestThrottled,
    SendEntry,
)
from lakequeue.model.clock import SystemClock
from lakequeue.operations import queues
from lakequeue.storage import layout
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.point import Table
from lakequeue.storage.ledger import Ledger

Verb = Callable[[Queue], Any]


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    """Three messages: one in flight, two visible."""
    queue = lq.create_queue("orders")
    queue.send_batch([SendEntry(body=body) for body in "abc"])
    queue.held = queue.receive()[0].receipt_handle  # type: ignore[attr-defined]
    return queue


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakequeue.storage.engines.transaction.back_off", lambda _: None)
    for name in ("transaction.REPEATS", "transaction.ATTEMPTS"):
        monkeypatch.setattr(f"lakequeue.storage.engines.{name}", 3)


VERBS: dict[str, tuple[str, Verb]] = {
    "send": ("append", lambda queue: queue.send("d")),
    "send_batch": ("append", lambda queue: queue.send_batch([SendEntry(body="d"), SendEntry(body="e")])),
    "receive": ("merge", lambda queue: queue.receive()),
    "delete": ("merge", lambda queue: queue.delete(queue.held)),
    "change": ("merge", lambda queue: queue.change_visibility(queue.held, 0)),
    "purge": ("merge", lambda queue: queue.purge()),
    "set_attributes": ("merge", lambda queue: queue.set_attributes(visibility_timeout=77)),
    "set_attributes, at the log": ("add", lambda queue: queue.set_attributes(visibility_timeout=77)),
    "set_tags": ("merge", lambda queue: queue.set_tags({"k": "v"})),
    "delete_queue": ("add", lambda queue: queues.delete(queue._runtime.root, "orders")),
}
AFTER: dict[str, Any] = {
    # bodies in the log, visible, in flight
    "send": (list("abcd"), 3, 1),
    "send_batch": (list("abcde"), 4, 1),
    "receive": (list("abc"), 1, 2),
    "delete": (list("abc"), 2, 0),
    "change": (list("abc"), 3, 0),
    "purge": (list("abc"), 0, 0),
    "set_attributes": (list("abc"), 2, 1),
    "set_attributes, at the log": (list("abc"), 2, 1),
    "set_tags": (list("abc"), 2, 1),
}
BEFORE = (list("abc"), 2, 1)


def state(queue: Queue) -> tuple[list[str], int, int]:
    """As a new process sees it."""
    fresh = elsewhere(queue)
    counts = fresh.counts()
    return [row.body for row in check_log(fresh)], counts.visible, counts.in_flight


@pytest.mark.spec("SND-17", "ERR-9")
@pytest.mark.parametrize("error", LANDED, ids=type)
@pytest.mark.parametrize("verb", AFTER)
def test_a_write_that_landed_and_raised_counts_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, verb: str, error: Exception
) -> None:
    method, call = VERBS[verb]
    step = at(monkeypatch, Table, method, error, landed=True)
    call(queue)
    assert step.seen
    monkeypatch.undo()
    assert state(queue) == AFTER[verb]
    queue.send("next")
    assert drain(queue)[-1] == "next"


@pytest.mark.spec("ERR-8", "ERR-9")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("verb", VERBS)
def test_a_storm_of_conflicts_changes_nothing_and_the_next_write_works(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Errors of storage are those of `conformance/test_failing_steps.py`."""
    method, call = VERBS[verb]
    versions = log_versions(queue)
    in_part = verb == "set_attributes, at the log"  # its first step is done, and is finished by the next
    with monkeypatch.context() as patch:
        step = at(patch, Table, method, LostRace("conflict"), times=10_000)
        with pytest.raises(QueueClientError if in_part else RequestThrottled) as caught:
            call(queue)
    assert step.seen >= 3
    if in_part:
        assert caught.value.outcome_unknown
    else:
        assert not getattr(caught.value, "outcome_unknown", False)
        assert log_versions(queue) == versions
    assert state(queue) == BEFORE
    call(queue)
    if verb in AFTER:
        assert state(queue) == AFTER[verb]


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("verb", ["send", "receive", "delete", "change"])
def test_a_write_whose_outcome_cannot_be_learned_says_so(queue: Queue, verb: str, landed: bool) -> None:
    method, call = VERBS[verb]
    with cut_off(method, landed):
        call(queue)
    assert state(queue) == (AFTER[verb] if landed else BEFORE)
    if verb in ("delete", "change"):
        try:
            call(queue)
        except QueueClientError:
            pytest.fail("repeating is safe")
        except Exception as refused:
            assert landed and verb == "change", refused  # it was handed back already
        assert state(queue) == AFTER[verb]
    elif verb == "send":
        call(queue)
        assert [row.body for row in check_log(queue)] == [*"abc", *("dd" if landed else "d")]
    else:
        assert len(drain(queue)) == (1 if landed else 2)


@pytest.mark.spec("ERR-9")
def test_a_short_storm_is_weathered(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("append", "merge"):
        at(monkeypatch, Table, method, LostRace("conflict"), times=4)
    queue.send("d")
    assert [message.body for message in queue.receive(max_messages=10)] == list("bcd")
    assert state(queue) == (list("abcd"), 0, 4)


class TestHousekeeping:
    """Merges and drops may fail in any way without an effect on sends."""

    @pytest.mark.parametrize("landed", [False, True])
    @pytest.mark.parametrize("error", [LostRace("conflict"), OSError("gone")], ids=type)
    def test_a_merge_that_fails_does_not_fail_the_send(
        self, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, error: Exception, landed: bool
    ) -> None:
        small_segments(monkeypatch)
        queue = lq.create_queue("orders")
        step = at(monkeypatch, Table, "replace", error, landed=landed, times=3)
        for number in range(12):
            queue.send(str(number))
        assert step.seen > 3
        assert [row.body for row in check_log(queue)] == [str(number) for number in range(12)]
        assert application_id(queue, layout.FILES_ID) > 0
        assert drain(queue) == [str(number) for number in range(12)]

    @pytest.mark.parametrize("landed", [False, True])
    def test_a_rewritten_ledger_that_raises_is_the_old_one_or_the_new_one(
        self, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, landed: bool
    ) -> None:
        monkeypatch.setattr(Ledger, "_wants_compaction", lambda *_: True)
        queue = lq.create_queue("orders")
        queue.send_batch([SendEntry(body=str(number)) for number in range(20)])
        step = at(monkeypatch, Table, "replace", OSError("gone"), landed=landed, times=2)
        taken, failed = [], 0
        for _ in range(10):
            try:
                taken += [message.body for message in queue.receive(max_messages=2)]
            except QueueClientError:
                failed += 1
        assert step.seen > 2 and failed == (0 if landed else 2)
        assert taken == [str(number) for number in range(20 - 2 * failed)]
        assert state(queue)[1:] == (2 * failed, 20 - 2 * failed)


class TestKilled:
    """SIGKILL before each write of a verb with several steps; then another process completes it."""

    @pytest.fixture(params=PLACES)
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        """A root that does not exist yet."""
        if request.param == "disk":
            return str(tmp_path / "root")
        found: str = request.getfixturevalue("s3_root")
        return found

    @pytest.mark.spec("QUE-15")
    @pytest.mark.parametrize("before", [1, 2, 3, 4])
    def test_creation(self, place: str, before: int) -> None:
        killed(place, "create", before)
        lq = LakeQueue(place, clock=SystemClock())
        if before > 1:
            assert lq.list_queues() == []
        queue = lq.create_queue("orders")
        queue.send("a")
        assert drain(queue) == ["a"]
        assert [queue.name for queue in lq.list_queues()] == ["orders"]

    @pytest.mark.spec("QUE-13")
    @pytest.mark.parametrize("before", [1, 2, 3])
    def test_deletion(self, place: str, before: int) -> None:
        here, there = apart(place, SystemClock())
        queue, other = here.create_queue("orders"), there.create_queue("orders")
        queue.send("a")
        other.send("b")
        killed(place, "delete", before)
        if before == 1:
            assert drain(other) == ["a", "b"]
            return
        with pytest.raises(QueueDoesNotExist):
            other.send("c")
        assert there.list_queues() == []
        for look in (queue.receive, other.receive, queue.counts):
            with pytest.raises(QueueDoesNotExist):
                look()
        assert drain(here.create_queue("orders")) == []
