"""Interleavings on a FIFO queue: one process acts between two steps of another, both in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import apart, check_log, drain, elsewhere, log_rows, sent_bodies
from concurrency.steps import LANDED, Killed, at, cut_off
from conformance.fifo import bodies, send
from lakequeue import Message, Queue, SendEntry
from lakequeue.errors import InvalidParameterValue
from lakequeue.storage.engines.point import Table
from lakequeue.testing import ManualClock
from mutations import Patch

Two = tuple[Queue, Queue]


@pytest.fixture
def two(tmp_path: Path, clock: ManualClock) -> Two:
    here, there = apart(tmp_path / "root", clock)
    return here.create_queue("orders.fifo", fifo=True), there.create_queue("orders.fifo", fifo=True)


Interrupted = Callable[[], AbstractContextManager[None]]


def interruptions(method: str) -> list[Any]:
    """What keeps a process from the answer of its next commit, which may have landed."""

    @contextmanager
    def raising(error: BaseException) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            step = at(patch, Table, method, error, landed=True)
            yield
        assert step.seen

    return [
        *(pytest.param(partial(raising, error), id=type(error).__name__) for error in (*LANDED, Killed())),
        *(pytest.param(partial(cut_off, method, landed), id=f"{landed=}") for landed in (False, True)),
    ]


class TestDeduplication:
    @pytest.mark.spec("DDP-10", "DDP-8", "SND-17")
    def test_an_id_that_another_process_sends_meanwhile_is_a_duplicate_and_the_rest_is_sent(
        self, two: Two, monkeypatch: Patch
    ) -> None:
        queue, other = two
        theirs = []
        meanwhile = lambda: theirs.append(other.send("theirs", group_id="g", dedup_id="d"))  # noqa: E731
        step = at(monkeypatch, Table, "append", meanwhile)
        batch = [
            SendEntry("mine", group_id="h", dedup_id="d"),
            SendEntry("more", group_id="h", dedup_id="e"),
            SendEntry("again", group_id="h", dedup_id="d"),
        ]
        mine = queue.send_batch(batch).successful
        assert step.seen
        assert [(row.body, row.message_id) for row in log_rows(queue)] == [
            ("theirs", theirs[0].message_id),
            ("more", mine[1].message_id),
        ]
        for answer in (mine[0], mine[2]):
            assert (answer.message_id, answer.sequence_number) == (theirs[0].message_id, theirs[0].sequence_number)
        check_log(queue)

    @pytest.mark.spec("DDP-9", "DDP-11")
    def test_a_send_that_lost_a_race_is_judged_at_the_later_instant(
        self, two: Two, clock: ManualClock, monkeypatch: Patch
    ) -> None:
        queue, other = two
        send(queue, "a")
        clock.advance(299)

        def overtake() -> None:
            clock.advance(1)
            send(other, "b")

        at(monkeypatch, Table, "append", overtake)
        send(queue, "a", "c")  # a duplicate when it was begun, but no more when it was stamped
        assert [row.body for row in log_rows(queue)] == ["a", "b", "a", "c"]

    @pytest.mark.spec("DDP-13", "PUR-5")
    def test_an_id_that_was_sent_and_purged_meanwhile_is_free(self, two: Two, monkeypatch: Patch) -> None:
        queue, other = two

        def overtake() -> None:
            other.send("theirs", group_id="g", dedup_id="d")
            other.purge()

        at(monkeypatch, Table, "append", overtake)
        mine = queue.send("mine", group_id="g", dedup_id="d")
        assert other.send("again", group_id="g", dedup_id="d").message_id == mine.message_id
        assert drain(other) == ["mine"]

    @pytest.mark.spec("DDP-10", "SND-10", "SND-17", "EXM-9")
    @pytest.mark.parametrize("interrupted", interruptions("append"))
    def test_a_repeated_send_without_an_answer_returns_the_first_message(
        self, two: Two, interrupted: Interrupted
    ) -> None:
        queue, other = two
        send(queue, "a")
        with interrupted():
            queue.send("b", group_id="g", dedup_id="d")
        answers = {one.send("b", group_id="g", dedup_id="d") for one in (queue, other, elsewhere(queue))}
        assert len(answers) == 1
        assert sent_bodies(queue) == ["a", "b"]
        assert log_rows(queue)[1].message_id == answers.pop().message_id
        assert bodies(other.receive(max_messages=10)) == ["a", "b"]


class TestAttempts:
    @pytest.mark.spec("ATT-1", "ATT-3", "ATT-8")
    @pytest.mark.parametrize("shards", [1, 2])
    def test_one_id_used_by_two_processes_at_once_gives_both_the_same_receipts(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: Patch, shards: int
    ) -> None:
        here, there = apart(tmp_path / "root", clock)
        attributes = {"deduplication_scope": "message_group", "shards": shards} if shards > 1 else {}
        queue = here.create_queue("orders.fifo", fifo=True, **attributes)
        other = there.queue("orders.fifo")
        send(queue, "a1", "b1", "a2", "c1", "d1", "e1")
        theirs: list[Message] = []
        meanwhile = lambda: theirs.extend(other.receive(max_messages=4, attempt_id="x"))  # noqa: E731
        step = at(monkeypatch, Table, "merge", meanwhile)
        mine = queue.receive(max_messages=2, attempt_id="x")
        assert step.seen and mine == theirs
        assert {message.receive_count for message in mine} == {1}

    @pytest.mark.spec("ATT-1", "ATT-3", "ATT-9", "ATT-10")
    @pytest.mark.parametrize("interrupted", interruptions("merge"))
    def test_a_receive_without_an_answer_can_be_repeated_anywhere(
        self, two: Two, clock: ManualClock, interrupted: Interrupted
    ) -> None:
        queue, other = two
        send(queue, "b1", "a1", "b2", "a2")
        with interrupted():
            queue.receive(max_messages=3, attempt_id="x")
        first = other.receive(max_messages=3, attempt_id="x")
        assert [(message.body, message.receive_count) for message in first] == [("b1", 1), ("b2", 1), ("a1", 1)]
        clock.advance(20)
        for one in (other, elsewhere(queue), queue):
            assert one.receive(max_messages=9, attempt_id="x") == first
        clock.advance(29)  # hidden anew by the retries
        assert queue.receive(max_messages=10) == []
        other.delete_batch([message.receipt_handle for message in first])
        clock.advance(30)
        assert drain(elsewhere(queue)) == ["a2"]


class TestGroups:
    @pytest.mark.spec("FIF-4", "FIF-14", "DEL-5")
    def test_a_claim_that_was_overtaken_by_a_delete_takes_what_that_set_free(
        self, two: Two, clock: ManualClock, monkeypatch: Patch
    ) -> None:
        queue, other = two
        send(queue, "a1", "a2", "b1", "a3")
        held = other.receive()[0].receipt_handle
        clock.advance(1)
        step = at(monkeypatch, Table, "merge", lambda: other.delete(held))
        assert bodies(queue.receive(max_messages=3)) == ["b1", "a2", "a3"]
        assert step.seen

    @pytest.mark.spec("RCP-7", "FIF-3")
    def test_a_delete_that_was_overtaken_by_the_end_of_its_receipt_is_refused(
        self, two: Two, clock: ManualClock, monkeypatch: Patch
    ) -> None:
        queue, other = two
        send(queue, "a1", "a2")
        late = queue.receive()[0].receipt_handle
        theirs: list[Message] = []

        def overtake() -> None:
            clock.advance(30)
            theirs.extend(other.receive())

        at(monkeypatch, Table, "merge", overtake)
        with pytest.raises(InvalidParameterValue):
            queue.delete(late)
        assert bodies(theirs) == ["a1"] and queue.receive(max_messages=10) == []
        other.delete(theirs[0].receipt_handle)
        assert bodies(queue.receive(max_messages=10)) == ["a2"]
