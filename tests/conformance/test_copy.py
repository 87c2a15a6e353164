"""Copies of roots and queues: their content, refusals, and the remains of a killed copy."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from concurrency.harness import check_log, drain, small_segments
from concurrency.steps import Killed, at, meanwhile
from conformance.damage import send_to_one_shard
from insides import compact, reopen
from lakequeue import (
    DamagedTable,
    InvalidParameterValue,
    LakeQueue,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    RedrivePolicy,
    RootDoesNotExist,
    SendEntry,
)
from lakequeue.cli import app
from lakequeue.operations import copy as copying
from lakequeue.operations.copy import ShardCopies
from lakequeue.storage import layout
from lakequeue.storage.bulk import bulk_send, commit_files, manifests
from lakequeue.storage.copying import Copier
from lakequeue.storage.delta_log import Listing
from lakequeue.storage.folder import LocalFolder
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace


@pytest.fixture
def lq(tmp_path: Path, clock: ManualClock) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"), clock=clock)


@pytest.fixture
def to(tmp_path: Path, clock: ManualClock) -> LakeQueue:
    """Another root, which does not exist yet."""
    return LakeQueue(str(tmp_path / "copy"), clock=clock)


def test_a_copy_with_messages_in_flight_prints_what_frees_them(tmp_path: Path, to: LakeQueue) -> None:
    lq = LakeQueue(str(tmp_path / "root"))  # with the clock of the command
    lq.create_queue("calm").send("a")
    orders = lq.create_queue("orders")
    orders.send_batch([SendEntry("a"), SendEntry("b")])
    orders.receive(2)
    ran = CliRunner().invoke(app, ["copy", lq.root, to.root])
    command = f"lakequeue --root {to.root} reschedule orders --in-flight"
    said = f"the copy has 2 messages of orders in flight, and no consumer: {command} frees them\n"
    assert (ran.exit_code, ran.stderr) == (0, said)
    assert lq.copy(LakeQueue(str(tmp_path / "other")))[1].in_flight == 2


def with_dead_letters(lq: LakeQueue) -> tuple[Queue, Queue]:
    dead = lq.create_queue("dead")
    return lq.create_queue("orders", redrive_policy=RedrivePolicy("dead", 1)), dead


def receive_twice(queue: Queue) -> None:
    """Makes dead letters of all visible messages."""
    for _ in range(2):
        queue.receive(10, visibility_timeout=0)


@pytest.mark.spec("DUR-40")
def test_a_copy_has_the_messages_of_all_states_and_the_receipts(
    lq: LakeQueue, to: LakeQueue, clock: ManualClock
) -> None:
    queue = lq.create_queue("orders", shards=2, rewind_range=3600, tags={"team": "a"}, visibility_timeout=60)
    lq.create_queue("empty")
    queue.send_batch([SendEntry(body, attributes={"n": 1}) for body in "abcdef"])
    queue.send("later", delay=300)
    first, second = queue.receive(2)
    queue.delete(first)
    lq.compact()
    before, files = queue.counts(), {name: os.stat(name).st_mtime_ns for name in every_file(lq.root)}
    copied = lq.copy(to)
    assert {name: os.stat(name).st_mtime_ns for name in every_file(lq.root)} == files
    assert [(each.queue, each.messages) for each in copied] == [("empty", 0), ("orders", 6)]
    twin = reopen(to).queue("orders")
    assert (twin.counts(), twin.tags(), twin.attributes(wire=True)) == (
        before,
        queue.tags(),
        queue.attributes(wire=True),
    )
    check_log(twin)
    twin.change_visibility(second, 30)
    twin.delete(second)
    clock.advance(1)
    assert twin.rewind(queue.created_at) == 2
    clock.advance(301)
    received = twin.receive(10)
    assert sorted(message.body for message in received) == ["a", "b", "c", "d", "e", "f", "later"]
    assert queue.counts().visible == 6 and queue.receive(1), "the original knows nothing of it"
    assert to.queue("empty").send("x")


BULK = pa.table({"body": [str(n) for n in range(400)]})


def drained(queue: Queue) -> list[int]:
    return sorted(map(int, drain(queue)))


def every_file(root: str) -> Iterator[str]:
    return (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)


@pytest.mark.spec("DUR-40", "DDP-1", "FIF-1")
def test_a_duplicate_sent_to_the_copy_adds_nothing(lq: LakeQueue, to: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True)
    sent = [queue.send(str(number), group_id="g", dedup_id=str(number)) for number in range(5)]
    lq.copy(to)
    twin = reopen(to).queue("orders.fifo")
    clock.advance(299)
    assert twin.send("again", group_id="g", dedup_id="3").message_id == sent[3].message_id
    assert [message.body for message in twin.receive(10)] == ["0", "1", "2", "3", "4"]
    clock.advance(2)
    assert twin.send("again", group_id="g", dedup_id="3").message_id != sent[3].message_id


@pytest.mark.spec("DUR-40", "DUR-41")
@pytest.mark.parametrize("again", ["sent", "compacted"])
def test_a_bulk_send_that_was_killed_between_two_shards_is_completed_in_the_copy(
    lq: LakeQueue, to: LakeQueue, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    queue = lq.create_queue("orders", shards=3)
    send_to_one_shard(queue, BULK)
    there = queue.counts().visible
    assert 0 < there < 400
    lq.copy(to)
    twin = reopen(to).queue("orders")
    assert twin.counts().visible == there
    if again == "compacted":
        monkeypatch.setattr(bulk_send, "UNFINISHED", 0.0)
        twin.compact()
    assert twin.send_arrow(BULK, send_id="s1") == (400 - there if again == "sent" else 0)
    assert drained(twin) == [*range(400)]
    assert [finding for finding in to.check() if finding.damage] == []


@pytest.mark.spec("DUR-40", "DUR-41")
@pytest.mark.parametrize("ends", ["_changed", "_copy_files"])
def test_a_bulk_send_that_ends_while_it_is_copied_is_whole_in_the_copy(
    lq: LakeQueue, to: LakeQueue, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It has no id, so that its manifest goes at once; another shard is taken anew after that."""
    queue, other = lq.create_queue("orders", shards=2), lq.create_queue("other")
    first, last = threading.Event(), threading.Event()
    commit, step = commit_files.ShardCommit.commit, getattr(ShardCopies, ends)

    def paused(*given: Any, **more: Any) -> int:
        rows = commit(*given, **more)
        if not first.is_set():
            first.set()
            last.wait(60)
        return rows

    sender = threading.Thread(target=lambda: queue.send_arrow(BULK))

    def ended(copies: ShardCopies) -> Any:
        found = step(copies)
        if not last.is_set():
            last.set()
            sender.join()
            return [*found, (other.key, 0)]
        return found

    monkeypatch.setattr(commit_files.ShardCommit, "commit", paused)
    monkeypatch.setattr(ShardCopies, ends, ended)
    sender.start()
    first.wait(60)
    lq.copy(to)
    assert drained(reopen(to).queue("orders")) == [*range(400)]


@pytest.mark.spec("DUR-40")
def test_a_bulk_send_without_its_files_stops_no_copy(
    lq: LakeQueue, to: LakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue = lq.create_queue("orders", shards=2)
    send_to_one_shard(queue, BULK)
    [manifest] = manifests.manifests(lq._runtime.engine.store.folder(layout.tables_path(lq.root, queue.key)))
    for shard in manifest.shards:
        table = lq._runtime.engine.open(layout.messages_path(lq.root, queue.key, shard))
        if not manifest.reached(table):
            table.folder.remove(file.path for file in manifest.of(shard))
    there = queue.counts().visible
    lq.copy(to)
    assert reopen(to).queue("orders").counts().visible == there and "lacks files" in caplog.text


@pytest.mark.spec("DUR-40", "JOB-7")
def test_schedules_go_on_in_the_copy_and_lose_no_message(lq: LakeQueue, to: LakeQueue, clock: ManualClock) -> None:
    lq.create_queue("orders")
    lq.schedules.add("hourly", "orders", "x", cron="0 * * * *", missed="all")
    clock.advance(3_600)
    # between the snapshots of schedules and queues
    with meanwhile(ShardCopies, "_take", lambda *_: lq.schedules.run_due()):
        lq.copy(to)
    clock.advance(3_600)
    reopen(to).schedules.run_due()
    assert len(to.queue("orders").peek()) == 2
    assert [row.name for row in to.schedules.list()] == ["hourly"] and to.check() == []


def test_one_queue_comes_to_those_that_are_there(lq: LakeQueue, to: LakeQueue) -> None:
    for name in "ab":
        lq.create_queue(name).send(name)
    to.create_queue("c").send("c")
    assert [each.queue for each in lq.copy(to, "a")] == ["a"]
    assert [queue.name for queue in reopen(to).list_queues()] == ["a", "c"]
    assert [each.queue for each in lq.copy(to, queue="b")] == ["b"]
    assert [drain(queue) for queue in reopen(to).list_queues()] == [["a"], ["b"], ["c"]]


@pytest.mark.spec("DUR-40")
def test_what_a_copy_refuses(lq: LakeQueue, to: LakeQueue, tmp_path: Path) -> None:
    with pytest.raises(RootDoesNotExist, match="does not exist.*; there is nothing to copy"):
        lq.copy(to)
    lq.create_queue("a")
    with pytest.raises(QueueDoesNotExist):
        lq.copy(to, "b")
    for root in (lq.root, f"{lq.root}/q/inside", str(tmp_path)):
        with pytest.raises(InvalidParameterValue, match="another root"):
            lq.copy(LakeQueue(root))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(QueueClientError, match="something else"):
        lq.copy(LakeQueue(str(tmp_path / "full")))
    to.create_queue("a").send("mine")
    with pytest.raises(QueueClientError, match="has the queue a already"):
        lq.copy(to)
    assert drain(reopen(to).queue("a")) == ["mine"]
    other = LakeQueue(str(tmp_path / "third"))
    other.create_queue("z")
    orphan = Path(other.root, "q", lq.queue("a").key, "0", "messages")
    orphan.mkdir(parents=True)
    (orphan / "lost.parquet").touch()
    with pytest.raises(QueueClientError, match="holds something else"):
        lq.copy(other)
    assert (orphan / "lost.parquet").exists()


@pytest.mark.spec("DUR-40", "DUR-2")
@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 100)])
def test_a_damaged_original_is_named(lq: LakeQueue, to: LakeQueue, damage: Callable[[str], None]) -> None:
    lq.create_queue("a").send("x")
    [path] = [name for name in every_file(lq.root) if "messages" in name and name.endswith(".parquet")]
    damage(path)
    with pytest.raises(DamagedTable, match=Path(path).name):
        lq.copy(to)
    assert reopen(to).list_queues() == []


@pytest.mark.spec("DUR-40")
def test_a_copy_that_is_killed_leaves_nothing_that_is_used_and_can_be_repeated(
    lq: LakeQueue, to: LakeQueue
) -> None:
    queue, dead = with_dead_letters(lq)
    queue.send_batch([SendEntry(body) for body in "abc"])
    receive_twice(queue)
    queue.send("d")
    lq.compact()

    def is_of_the_copy(folder: LocalFolder, *_: object) -> bool:
        return folder.uri.startswith(to.root)

    for dying in count(1):
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            at(patch, LocalFolder, ("create", "write", "writer"), Killed(), number=dying, when=is_of_the_copy)
            lq.copy(reopen(to))
            break
        if Path(to.root, "queues", "_delta_log").exists():
            assert reopen(to).list_queues() == []
    assert dying > 10
    assert [drain(each) for each in reopen(to).list_queues()] == [["a", "b", "c"], ["d"]]


@pytest.mark.spec("DUR-40", "DUR-7")
def test_compaction_removes_the_files_of_a_killed_copy(
    lq: LakeQueue, to: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    lq.create_queue("a").send("x")
    to.create_queue("b")
    key = lq.queue("a").key
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("lakequeue.storage.catalog.Catalog.put", Mock(side_effect=Killed))
        lq.copy(to)
    assert Path(to.root, "q", key, "0", "messages", "_delta_log").exists()
    reopen(to).compact()
    assert not Path(to.root, "q", key).exists()
    lq.copy(to)
    reopen(to).compact()
    assert drain(reopen(to).queue("a")) == ["x"]
    assert not Path(to.root, "q", key, layout.COPYING).exists()


def copy_that_leaves_its_marker(lq: LakeQueue, to: LakeQueue, error: BaseException) -> Path:
    """Copies; once the catalog has the queue ``a``, the copy fails or dies. Returns the marker."""
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        at(patch, LocalFolder, "remove", error, times=1_000, when=lambda _, names: names == [layout.COPYING])
        lq.copy(to)
    return Path(to.root, "q", lq.queue("a").key, layout.COPYING)


def compacted_without_its_row(lq: LakeQueue) -> list[str]:
    """The catalog loses the queue ``a``, and a pass of the compactor follows; what a check then says."""
    lq = reopen(lq)
    lq._runtime.remove(lq.queue("a")._runtime.row)
    lq.create_queue("other")
    compact(lq)
    return [each.problem for each in lq.check() if each.damage]


@pytest.mark.spec("DUR-40", "DUR-7")
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), Killed()], ids=["fails", "dies"])
def test_a_copy_that_leaves_its_marker_is_complete(
    lq: LakeQueue, to: LakeQueue, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    lq.create_queue("a").send("x")
    marker = copy_that_leaves_its_marker(lq, to, error)
    assert marker.exists() and ("the copy is complete" in caplog.text) == isinstance(error, OSError)
    with pytest.raises(QueueClientError, match="has the queue a already; nothing was changed"):
        lq.copy(reopen(to))
    compact(reopen(to))
    assert not marker.exists()
    assert compacted_without_its_row(to) == ["has messages, and no row in the catalog"]
    to.repair("a", apply=True)
    assert drain(reopen(to).queue("a")) == ["x"]


def a_queue_in_use_is_no_leftover_of_a_copy(patch: Patch, lq: LakeQueue, to: LakeQueue) -> None:
    """No pass of the compactor has removed the marker yet; a receive commits only to the ledger."""
    lq.create_queue("a").send("x")
    copy_that_leaves_its_marker(lq, to, Killed())
    assert reopen(to).queue("a").receive(visibility_timeout=0)
    assert compacted_without_its_row(to) == ["has messages, and no row in the catalog"]
    with pytest.raises(QueueClientError, match="holds something else; nothing was changed"):
        lq.copy(reopen(to))
    to.repair("a", apply=True)
    assert drain(reopen(to).queue("a")) == ["x"]


@pytest.mark.spec("DUR-41", "DLT-7")
def test_a_shard_whose_files_vanish_during_a_copy_is_copied_again(
    lq: LakeQueue, to: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = lq.create_queue("a")
    for number in range(6):
        queue.send(str(number))
    small_segments(monkeypatch)

    def act(*_: Any) -> None:
        for number in range(6, 20):
            queue.send(str(number))
        queue.delete_batch(queue.receive(5))
        queue.compact(now=0)

    with meanwhile(Copier, "copy", act):
        lq.copy(to)
    assert drained(reopen(to).queue("a")) == [*range(5, 20)]


@pytest.mark.spec("DUR-41")
def test_a_queue_that_is_deleted_meanwhile_stays_out(lq: LakeQueue, to: LakeQueue) -> None:
    lq.create_queue("a").send("x")
    lq.create_queue("b").send("y")
    with meanwhile(ShardCopies, "_copy_files", lambda *_: lq.delete_queue("a")):
        assert [each.queue for each in lq.copy(to)] == ["b"]
    assert [queue.name for queue in reopen(to).list_queues()] == ["b"]


@pytest.mark.spec("DUR-40")
def test_the_command_copies_and_lists_the_queues(lq: LakeQueue, to: LakeQueue) -> None:
    LakeQueue(lq.root).create_queue("a").send("x")
    done = CliRunner().invoke(app, ["copy", lq.root, to.root, "--queue", "a", "--json"])
    assert done.exit_code == 0, done.output
    [told] = json.loads(done.stdout)
    assert (told["queue"], told["messages"]) == ("a", 1)
    again = CliRunner().invoke(app, ["copy", lq.root, to.root])
    assert again.exit_code == 3 and "has the queue a already" in again.output


# --- moves between queues, and what keeps them


def between_snapshots(patch: Patch, lq: LakeQueue, first: str, meanwhile: Callable[[], Any]) -> None:
    """Takes the snapshot of a queue first, then does something, then takes the others."""
    original, done = copying._each, []

    def each(engine: Any, call: Any, items: Any) -> Any:
        if not done and items and isinstance(items[0], tuple):
            done.append(True)
            mine = [item for item in items if item[0] == lq.queue(first).key]
            results = dict(zip(mine, original(engine, call, mine), strict=True))
            meanwhile()
            others = [item for item in items if item not in mine]
            results |= dict(zip(others, original(engine, call, others), strict=True))
            return [results[item] for item in items]
        return original(engine, call, items)

    patch.setattr(copying, "_each", each)


def a_move_that_the_source_does_not_know_of_is_made_again(patch: Patch, lq: LakeQueue, to: LakeQueue) -> None:
    queue, _ = with_dead_letters(lq)
    queue.send("a")
    between_snapshots(patch, lq, "orders", lambda: receive_twice(queue))
    lq.copy(to)
    twin, dead = reopen(to).queue("orders"), to.queue("dead")
    twin.send("b")
    receive_twice(twin)
    assert {"a", "b"} == set(drain(dead)), "a move took the number of one that the copy has made"


def a_move_that_the_source_knows_of_has_arrived(patch: Patch, lq: LakeQueue, to: LakeQueue) -> None:
    queue, _ = with_dead_letters(lq)
    queue.send("a")
    between_snapshots(patch, lq, "dead", lambda: receive_twice(queue))
    lq.copy(to)
    lq = reopen(to)
    assert [*drain(lq.queue("orders")), *drain(lq.queue("dead"))] == ["a"]


def a_log_that_moved_on_is_not_taken_with_an_older_ledger(patch: Patch, lq: LakeQueue, to: LakeQueue) -> None:
    small_segments(patch)
    queue = lq.create_queue("a")
    for body in "abc":
        queue.send(body)

    def act(table: Any) -> None:
        queue.delete_batch(queue.receive(3))
        for body in "defgh":
            queue.send(body)
        queue.compact()
        table.refresh()

    with meanwhile(copying, "LogReader", act):
        lq.copy(to)
    assert sorted(drain(reopen(to).queue("a"))) == list("defgh")


MUTATIONS = [
    Mutation(
        "moves that the source does not know of stay",
        replace(copying, "min", lambda version, _: version, False),
        {a_move_that_the_source_does_not_know_of_is_made_again: "DUR-41"},
    ),
    Mutation(
        "logs are not looked at again",
        replace(ShardCopies, "_changed", lambda copies: []),
        {a_move_that_the_source_knows_of_has_arrived: "DUR-41"},
    ),
    Mutation(
        "any log fits a ledger",
        replace("lakequeue.storage.messages.read.ShardLog.begin", 0),
        {a_log_that_moved_on_is_not_taken_with_an_older_ledger: "DUR-41"},
    ),
    Mutation(
        "whatever has a marker is a leftover",
        replace("lakequeue.storage.catalog.listed", lambda table: Listing({}, {})),
        {a_queue_in_use_is_no_leftover_of_a_copy: "DUR-7, DUR-40"},
    ),
]


@each_case(MUTATIONS)
def test_safeguards_of_a_copy(case: Case, lq: LakeQueue, to: LakeQueue) -> None:
    case.run(lambda patch: (patch, lq, to), failures=(QueueClientError,))


@pytest.mark.spec("DUR-41")
def test_attributes_and_shards_that_change_meanwhile_are_those_of_the_copy(lq: LakeQueue, to: LakeQueue) -> None:
    queue = lq.create_queue("a")
    queue.send("x")
    with meanwhile(ShardCopies, "_snapshot", lambda *_: queue.set_attributes(visibility_timeout=77, shards=2)):
        lq.copy(to)
    twin = reopen(to).queue("a")
    twin.send("y")
    assert twin.attributes()["visibility_timeout"] == 77 and sorted(drain(twin)) == ["x", "y"]
    assert len(twin._runtime.shards) == 2 and check_log(twin)


# --- backups that are restored


@pytest.mark.spec("DUR-80")
def test_its_delays_begin_when_it_is_sent(tmp_path: Path, clock: ManualClock) -> None:
    root, backup = tmp_path / "root", tmp_path / "backup"
    queue = LakeQueue(str(root), clock=clock).create_queue("orders", shards=2)
    rows = pa.table({"body": [str(n) for n in range(400)], "delay_seconds": [100.0] * 400})
    send_to_one_shard(queue, rows)
    shutil.copytree(root, backup)
    queue.send_arrow(rows, send_id="s1")  # completes it
    assert queue.counts().delayed == 400 and not queue.receive(10)
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    clock.advance(90)
    with suppress(QueueClientError):  # told once
        queue.send_arrow(rows, send_id="s1")
    queue.send_arrow(rows, send_id="s1")
    clock.advance(20)  # the first half was sent before the backup
    assert queue.counts().visible == 200 and queue.counts().delayed == 200
