"""Erasing a message: it is gone from the queue, from the rewind history and from every file of a local root."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from concurrency.harness import apart, check_log, drain, small_segments
from concurrency.steps import meanwhile
from lakequeue import (
    LakeQueue,
    Queue,
    QueueClientError,
    RedrivePolicy,
    SendEntry,
)
from lakequeue.operations.claim import ClaimPlan
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.shard import admin, decide
from lakequeue.shard.commands import Erase
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import layout
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.folder import Freed
from lakequeue.storage.messages import erase, find_message, read
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace

SECRET = "Ada Lovelace, 12 St James's Square"
FIELDS = {"attributes": {"name": SECRET}, "system_attributes": {"AWSTraceHeader": SECRET}}
pytestmark = pytest.mark.spec("DUR-42")


@pytest.fixture
def lq(tmp_path: Path, clock: ManualClock) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"), clock=clock)


def holders(root: str) -> list[str]:
    """Files of a root that hold the secret, in a Parquet file or as it is."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            text = path.read_bytes().decode(errors="replace")
            if name.endswith(".parquet"):
                text += str(pq.ParquetFile(path).read().to_pylist())
            if SECRET in text:
                found.append(str(path))
    return found


@contextmanager
def stopped_process(table: str) -> Iterator[None]:
    """A thread in a commit to a table, for as long as the block takes."""
    inside, done = threading.Event(), threading.Event()

    def commit() -> None:
        with committing(table, exclusive=False):
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=commit)
    thread.start()
    inside.wait(60)
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("state", ["visible", "in_flight", "delayed", "deleted"])
def test_a_message_of_any_state_is_erased_for_good(lq: LakeQueue, clock: ManualClock, state: str) -> None:
    queue = lq.create_queue("orders", rewind_range=3600)
    queue.send_batch([SendEntry(body) for body in "abc"])
    id = queue.send(SECRET, delay=60 if state == "delayed" else None, **FIELDS).message_id
    queue.send_batch([SendEntry(body) for body in "de"])
    held = queue.receive(4) if state in ("in_flight", "deleted") else []
    if state == "deleted":
        queue.delete_batch(held)
    assert holders(lq.root)
    assert queue.erase(id)
    assert holders(lq.root) == []
    assert queue.erase(id) is False
    if state == "deleted":
        clock.advance(1)
        assert queue.rewind(queue.created_at) == 3
    for message in held:
        queue.delete(message)  # a late one is no error
    clock.advance(100)
    [other] = apart(lq.root, clock, 1)
    left = {"visible": "abcde", "delayed": "abcde", "in_flight": "de", "deleted": "abcde"}[state]
    assert sorted(drain(other.queue("orders"))) == list(left)
    rows = check_log(queue)
    assert [row.body for row in rows] == ["a", "b", "c", "", "d", "e"]
    assert rows[3].message_id == id


def test_files_that_held_it_before_a_merge_go_too(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    queue = lq.create_queue("orders")
    id = queue.send(SECRET).message_id
    for number in range(20):
        queue.send(str(number))
    assert len(holders(lq.root)) > 1
    queue.erase(id)
    assert holders(lq.root) == []
    assert sorted(drain(queue), key=int) == [str(number) for number in range(20)]


def test_a_message_of_a_bulk_send(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakequeue.storage.messages.merge_segments.CUT_ROWS", 40)
    queue = lq.create_queue("orders")
    queue.send_arrow(pa.table({"body": [*map(str, range(100)), SECRET, "100"]}))
    [id] = [message.message_id for message in queue.peek(f"body = '{SECRET.replace(chr(39), 2 * chr(39))}'")]
    queue.erase(id)
    assert holders(lq.root) == []
    queue.send("101")
    check_log(queue)
    assert sorted(drain(queue), key=int) == [str(number) for number in range(102)]


@pytest.mark.spec("DDP-1", "DDP-14")
@pytest.mark.parametrize("settings", [{}, {"shards": 2, "deduplication_scope": "message_group"}])
def test_a_deduplication_id_stays_while_it_counts(
    lq: LakeQueue, clock: ManualClock, settings: dict[str, Any]
) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, **settings)
    sent = queue.send(SECRET, group_id="Ada", dedup_id="d")
    queue.send("after", group_id="Ada", dedup_id="e")
    queue.send("other", group_id="g", dedup_id="f")
    queue.erase(sent.message_id)
    for root in (lq, *apart(lq.root, clock, 1)):  # one of them reads the log first
        repeated = root.queue("orders.fifo").send(SECRET, group_id="Ada", dedup_id="d")
        assert repeated.message_id == sent.message_id
    assert queue.erase(sent.message_id) is False
    clock.advance(301)
    assert queue.erase(sent.message_id), "now it goes, too"
    assert [message.body for message in queue.receive(10)] == ["after", "other"]
    assert not holders(lq.root)


def test_a_dead_letter_is_erased_in_each_queue(lq: LakeQueue) -> None:
    dead = lq.create_queue("dead")
    queue = lq.create_queue("orders", redrive_policy=RedrivePolicy("dead", 1))
    id = queue.send(SECRET).message_id
    for _ in range(2):
        queue.receive(visibility_timeout=0)
    dead.redrive()
    assert queue.erase(id) and holders(lq.root)
    assert dead.erase(id) and not holders(lq.root)


def test_an_erasure_that_was_cut_off_is_repeated(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = lq.create_queue("orders")
    id = queue.send(SECRET).message_id
    with monkeypatch.context() as patch:
        patch.setattr(erase, "PATIENCE", 0.1)
        path = layout.messages_path(lq.root, queue.key, 0)
        with (
            stopped_process(path),
            pytest.raises(QueueClientError, match="done in part.*held by another process") as refused,
        ):
            queue.erase(id)
    assert refused.value.outcome_unknown
    assert queue.receive() == [] and holders(lq.root)
    assert queue.erase(id) and not holders(lq.root)


def test_an_erasure_reads_again_after_another_erasure_removed_files(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders")
    id = queue.send(SECRET).message_id
    queue.send("a")
    [other] = apart(lq.root, clock, 1)
    with meanwhile(find_message, "log_files", lambda *_: other.queue("orders").erase(id), landed=True):
        assert queue.erase(id) is False
    assert drain(queue) == ["a"]


def test_a_count_reads_the_log_again_during_an_erasure(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = lq.create_queue("orders")
    id = queue.send(SECRET).message_id
    [other] = apart(lq.root, clock, 1)
    seen = other.queue("orders")
    erased: list[bool] = []

    def sent_at(machine: ShardMachine) -> int:
        if not erased:
            erased.append(queue.erase(id))
            monkeypatch.setattr(read, "_known", {})  # two processes would not share what was read
        return machine.log.sent_at(0)

    assert seen._runtime.shards[0].ledger.query(sent_at) > 0 and erased == [True]


def leased_bodies(queue: Queue) -> list[str]:
    return queue.lease().arrow(["receive_count", "body"])["body"].to_pylist()


def received_bodies(queue: Queue) -> list[str]:
    return [message.body for message in queue.receive(10)]


@pytest.mark.spec("SND-1")
@pytest.mark.parametrize("erased", ["abc", "b"])
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("verb", [received_bodies, leased_bodies])
def test_what_is_erased_between_claim_and_read_does_not_come(
    lq: LakeQueue, verb: Any, fifo: bool, erased: str
) -> None:
    queue = lq.create_queue("orders.fifo" if fifo else "orders", fifo=fifo)
    ids = {}
    for body in "abc":
        ids[body] = queue.send(body, **({"group_id": "g", "dedup_id": body} if fifo else {})).message_id
    erasures = []
    with meanwhile(
        ClaimPlan, "run", lambda *_: erasures.extend(queue.erase(ids[each]) for each in erased), landed=True
    ):
        assert verb(queue) == [body for body in "abc" if body not in erased]
    assert all(erasures)


# --- the safeguards


def it_is_never_received_again(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders", rewind_range=3600)
    first, second = (queue.send(SECRET).message_id for _ in range(2))
    queue.delete(queue.receive()[0])
    queue.receive(visibility_timeout=10)
    for id in (first, second):
        queue.erase(id)
    clock.advance(11)
    queue.rewind(queue.created_at)
    assert queue.receive() == [] and queue.counts().in_flight == 0


def no_file_holds_it(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders")
    queue.erase(queue.send(SECRET).message_id)
    assert not holders(lq.root)


def a_repeated_send_does_not_bring_it_back(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True)
    queue.erase(queue.send(SECRET, group_id="a", dedup_id="a").message_id)
    [other] = apart(lq.root, clock, 1)
    other.queue("orders.fifo").send(SECRET, group_id="a", dedup_id="a")
    assert queue.receive() == []


MUTATIONS = [
    Mutation(
        "only what is visible is deleted",
        lambda patch: patch.setitem(decide._RULES, Erase, lambda *given: ((0, False), admin.discard(*given)[1])),
        {it_is_never_received_again: "DUR-42"},
    ),
    Mutation(
        "former files stay", replace(erase, "remove_former", lambda *_: Freed()), {no_file_holds_it: "DUR-42"}
    ),
    Mutation("rows stay", replace(erase, "rewrite", lambda *_: False), {no_file_holds_it: "DUR-42"}),
    Mutation(
        "deduplication ids go at once",
        replace(OpenShard, "_window_start", lambda self, table, now, dedup: now),
        {a_repeated_send_does_not_bring_it_back: "DUR-42"},
    ),
]


@each_case(MUTATIONS)
def test_safeguards_of_an_erasure(case: Case, lq: LakeQueue, clock: ManualClock) -> None:
    impatient = replace("lakequeue.storage.engines.transaction.ATTEMPTS", 2)
    case.run(lambda patch: (impatient(patch), (lq, clock))[1], failures=(QueueClientError,))
