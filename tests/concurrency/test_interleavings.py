"""Interleavings: one process acts between two steps of another, both in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.harness import (
    apart,
    application_id,
    at_once,
    drain,
    keep_to,
    log_rows,
    sent_bodies,
    small_segments,
    spread,
    without_merging,
)
from concurrency.steps import at
from concurrency.stopping import short_logs, without_turns
from insides import shard_of
from lakequeue import LakeQueue, LakeQueueError, Queue, RequestThrottled
from lakequeue.operations import create_queue
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.storage import layout
from lakequeue.storage.catalog import Catalog
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.point import Table
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages import merge_segments
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace

Two = tuple[LakeQueue, LakeQueue]
"""Two processes on one root."""


@pytest.fixture
def two(tmp_path: Path, clock: ManualClock) -> Two:
    here, there = apart(tmp_path / "root", clock)
    return here, there


class TestAttributes:
    @pytest.mark.spec("QUE-25")
    def test_a_sender_to_any_shard_notices_a_change(self, two: Two) -> None:
        queue = two[0].create_queue("orders", shards=2)
        other = two[1].queue("orders")
        for body in "abc":  # so that the next one goes to the second shard
            other.send(body)
        queue.set_attributes(delay=100)
        for body in "de":
            other.send(body)
        counts = queue.counts()
        assert (counts.visible, counts.delayed) == (3, 2)

    @pytest.mark.spec("QUE-25")
    def test_the_newer_of_two_changes_is_the_one_that_stays(self, two: Two, monkeypatch: Patch) -> None:
        queue, other = two[0].create_queue("orders"), two[1].create_queue("orders")
        queue.send("a")
        at(monkeypatch, Table, "add", lambda: other.set_attributes(delay=20))
        queue.set_attributes(delay=10)
        assert application_id(queue, layout.ATTRIBUTES_ID) == 2
        assert at_once([lambda: queue.send("b") and None, lambda: other.send("c") and None], 20) == [None] * 2
        assert queue.attributes()["delay"] == 20
        assert queue.counts().delayed == 2

    @pytest.mark.spec("QUE-25")
    @pytest.mark.parametrize("how", ["attributes", "list_queues", "create_queue", "tags"])
    def test_a_process_that_learns_of_an_unfinished_change_can_send(
        self, two: Two, monkeypatch: Patch, how: str
    ) -> None:
        queue, other = two[0].create_queue("orders"), two[1].create_queue("orders")
        monkeypatch.setattr(queue._runtime, "announce_attributes", lambda: None)  # killed in between
        queue.set_attributes(delay=10)
        if how == "attributes":
            other.attributes(wire=True)
        elif how == "tags":
            other.set_tags({"a": "b"})
        elif how == "list_queues":
            other = two[1].list_queues()[0]
        else:
            other = two[1].create_queue("orders")
        assert at_once([lambda: other.send("b") and None], 20) == [None]
        assert other.counts().delayed == 1

    @pytest.mark.spec("QUE-25")
    def test_tags_do_not_hide_a_change_of_attributes(self, two: Two) -> None:
        queue, other = two[0].create_queue("orders"), two[1].create_queue("orders")
        queue.set_attributes(delay=10)
        other.set_tags({"a": "b"})
        other.send("a")
        assert queue.counts().delayed == 1


class TestCatalog:
    @pytest.mark.spec("QUE-15")
    def test_one_of_two_creations_at_once_wins(self, two: Two, monkeypatch: Patch) -> None:
        two[0].create_queue("before")
        at(monkeypatch, create_queue, "check_cooldown", lambda: two[1].create_queue("orders"))
        queue = two[0].create_queue("orders")
        assert [other.key for other in two[0].list_queues("orders")] == [queue.key]

    @pytest.mark.spec("QUE-15")
    def test_no_thread_reads_the_catalog_while_another_commits_to_it(self, two: Two, monkeypatch: Patch) -> None:
        held = list[bool]()
        lock: Any = two[0]._runtime.lock
        at(monkeypatch, Catalog, "rows", lambda: held.append(lock._is_owned()), times=1_000)
        queue = two[0].create_queue("orders", delay=1)
        two[0].create_queue("orders", delay=2, update=True)
        queue.set_tags({"a": "b"})
        two[0].list_queues()
        two[0].delete_queue("orders")
        assert held and all(held)


class TestMerging:
    def test_a_claimed_body_that_was_dropped_meanwhile_is_passed_over(self, two: Two, monkeypatch: Patch) -> None:
        small_segments(monkeypatch)
        queue, other = two[0].create_queue("orders"), two[1].create_queue("orders")
        with without_merging(monkeypatch):
            for number in range(7):
                queue.send(str(number))
        shard = shard_of(other)

        def overtake() -> None:
            queue.purge()
            queue.send("7")
            queue.send("8")
            shard.ledger.log()  # a reader that looks at the newest files finds the messages gone

        at(monkeypatch, shard.reader, "messages", overtake)
        assert [message.body for message in other.receive(max_messages=2)] == []
        assert log_rows(queue)[0].offset > 1
        assert drain(other) == ["7", "8"]


@contextmanager
def second_shard_is_busy() -> Iterator[None]:
    change = Ledger.change

    def changed(self: Ledger, *args: Any) -> Any:
        made = change(self, *args)
        return made if "/0/" in self.table.path else attrs.evolve(made, fence={layout.RECEIPTS_ID: -1})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakequeue.storage.engines.transaction.ATTEMPTS", 2)
        patch.setattr("lakequeue.storage.engines.transaction.back_off", lambda _: None)
        patch.setattr(Ledger, "change", changed)
        yield


class TestManyShards:
    @pytest.fixture
    def queue(self, two: Two) -> Queue:
        """Two shards with a message each."""
        queue = two[0].create_queue("orders", shards=2)
        spread(queue, "ab")
        return queue

    @pytest.mark.spec("ERR-9")
    def test_a_receive_returns_what_one_shard_gave_although_the_next_is_too_busy(self, queue: Queue) -> None:
        outcomes = []
        with second_shard_is_busy():
            for shard in range(2):
                keep_to(queue, shard)
                try:
                    outcomes.append([message.body for message in queue.receive(max_messages=2)])
                except RequestThrottled:
                    outcomes.append("throttled")
        assert sorted(outcomes, key=str) == [["a"], "throttled"]

    @pytest.mark.spec("ERR-9", "BAT-4")
    def test_a_batch_says_which_of_its_shards_was_too_busy(self, queue: Queue) -> None:
        received = sorted(queue.receive(max_messages=2), key=lambda message: message.body)
        handles = [message.receipt_handle for message in received]
        with second_shard_is_busy():
            result = queue.delete_batch(handles)
        assert [entry.receipt_handle for entry in result.successful] == handles[:1]  # of the first shard
        assert [entry.code for entry in result.failed] == ["RequestThrottled"]
        assert queue.counts().in_flight == 1


# --- mutations that no schedule of tests/simulation comes by


def a_late_send_into_an_idle_segment_survives(two: Two, clock: ManualClock, patch: Patch) -> None:
    queue = two[0].create_queue("orders")
    late = apart(two[0].root, ManualClock(), 1)[0].queue("orders")
    for number in range(3):
        late.send(str(number))
    clock.advance(2 * 3600)

    def overtake() -> None:
        late.send("late")
        raise LostRace("conflict")

    at(patch, Table, "replace", overtake)
    queue.compact()
    assert sent_bodies(queue) == ["0", "1", "2", "late"]


def a_message_whose_file_was_joined_and_removed_is_read(two: Two, clock: ManualClock, patch: Patch) -> None:
    queue, other = two[0].create_queue("orders"), two[1].create_queue("orders")
    small_segments(patch)
    for number in range(9):
        other.send(str(number))
    shard_of(queue).ledger.query(lambda machine: machine)  # knows the files as they are now
    for _ in range(9):
        other.send("more")
    other.compact(now=0)
    rows = shard_of(queue).reader.messages(0, 8)
    assert [row and row["body"] for row in rows] == [str(number) for number in range(9)]


def join_the_open_segment_without_its_fence(patch: Patch) -> None:
    step = merge_segments._open_step

    def unfenced(*args: Any) -> Any:
        found = step(*args)
        return found and attrs.evolve(found, with_send=False)

    patch.setattr(merge_segments, "_open_step", unfenced)


MUTATIONS = [
    Mutation(
        "join the open segment without its fence",
        join_the_open_segment_without_its_fence,
        {a_late_send_into_an_idle_segment_survives: "1"},
    ),
    Mutation(
        "read in the log as it was known",
        replace(ShardReader, "rows", lambda self, first, last: (first, self._known(first, last))),
        {a_message_whose_file_was_joined_and_removed_is_read: "1"},
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, two: Two, clock: ManualClock) -> None:
    def prepare(patch: Patch) -> tuple[Two, ManualClock, Patch]:
        short_logs(patch)
        without_turns(patch)
        return two, clock, patch

    case.run(prepare, (LakeQueueError, OSError, pytest.fail.Exception))
