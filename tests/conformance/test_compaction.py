"""The compactor frees space and changes no answer."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from concurrency import worker
from concurrency.faults import exit_code
from concurrency.harness import apart, check_log, drain, small_segments
from concurrency.steps import meanwhile
from concurrency.stopping import older, time_flies
from conformance.harness import Harness, batch, local_only, long_on_s3
from insides import engine_of, forget, messages_of, place_of, receipts_of, shard_of
from lakequeue import (
    InvalidParameterValue,
    LakeQueue,
    LakeQueueError,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    SendEntry,
)
from lakequeue.operations import chosen_messages, compact, depth
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.shard.commands import Rewrite
from lakequeue.storage import cleaning, compaction_notes, layout, ledger
from lakequeue.storage.bulk import manifests
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.folder import Folder, LocalFolder
from lakequeue.storage.messages import append, merge_segments
from lakequeue.storage.stores import Store
from lakequeue.storage.table_version import TableVersion
from lakequeue.testing import ManualClock
from model.command_sequences import random_commands
from model.queue_sequences import QueueCalls
from mutations import Case, Mutation, Patch, each_case, replace, shown_by

DAY = 24 * 3600


def keep_nothing(patch: Patch) -> None:
    """Makes a pass remove files without a delay, and merge and cut small segments too."""
    small_segments(patch)
    for name in ("MESSAGES", "RECEIPTS", "QUEUES", "STATS"):
        patch.setattr(layout, f"{name}_RETENTION", layout.Retention(0, 0, remote_file_hours=0))
    patch.setattr(merge_segments, "CUT_BYTES", 0)
    patch.setattr("lakequeue.storage.ledger._SPARE_FILES", 0)


def copy_root(source: str, target: str) -> None:
    old, new = Store(source).folder(source), Store(target).folder(target)
    for file in old.files():
        new.write(file.name, old.read(file.name))


def files_of(queue: Queue, name: str) -> list[str]:
    """Data files in the directory of a table, live or not."""
    names = [entry.name for entry in tables_of(queue).files(f"0/{name}")]
    return sorted(each for each in names if each.endswith(".parquet") and "/_delta_log/" not in each)


def live_files(queue: Queue, name: str = "messages") -> int:
    return len(DeltaTable(f"{place_of(queue)}/q/{queue.key}/0/{name}").file_uris())


def log_files_of(queue: Queue, name: str) -> list[str]:
    return sorted(entry.name for entry in tables_of(queue).files(f"0/{name}/_delta_log"))


def tables_of(queue: Queue) -> Folder:
    path = place_of(queue)
    return Store(path).folder(layout.tables_path(path, queue.key))


def numbered_queue(harness: Harness, count: int, deletes: bool = False, **attributes: Any) -> Queue:
    """A queue with messages, a commit each; with ``deletes`` each is received and deleted at once."""
    queue = harness.create(**attributes)
    for number in range(count):
        queue.send(str(number))
        if deletes:
            queue.delete(queue.receive()[0].receipt_handle)
    return queue


def succeeded(summaries: Any) -> Any:
    for summary in summaries if isinstance(summaries, list) else [summaries]:
        assert summary.failures == []
    return summaries


# --- nothing is answered otherwise


def compare(root: str, seed: int, kind: str, steps: int) -> None:
    """Compares a sequence of calls with the model, with a pass by a separate entry after each."""

    def open(clock: ManualClock) -> LakeQueue:
        forget()
        return LakeQueue(root, clock=clock)

    codes, *queue = random_commands(seed, kind, steps)
    compacted = 0
    with pytest.MonkeyPatch.context() as patch:
        keep_nothing(patch)
        calls = QueueCalls(*queue, open)
        for code in codes:
            calls.step(code)
            for summary in succeeded(open(calls.manual).compact()):
                compacted += summary.segments_dropped + summary.segments_merged + summary.files_freed
        calls.end()
    assert compacted > 0, "no pass had anything to do"
    shutil.rmtree(root)


LONG = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.spec("DLT-7", "RET-9", "RET-8", "RET-11")
@pytest.mark.parametrize(
    ("seeds", "steps", "kind"),
    [
        pytest.param([0], 50, "standard", id="standard"),
        pytest.param([0], 50, "fifo", id="fifo"),
        pytest.param([1], 50, "standard", id="another", marks=pytest.mark.slow),
        pytest.param([1, 2], 50, "fifo", id="others of fifo", marks=pytest.mark.slow),
        pytest.param([0, 1], 50, "fair", id="groups", marks=pytest.mark.slow),
        pytest.param(range(1_000, 1_050), 80, "standard", id="fifty", marks=LONG),
        pytest.param(range(1_000, 1_050), 80, "fifo", id="fifty of fifo", marks=LONG),
        pytest.param(range(1_000, 1_050), 80, "fair", id="fifty of groups", marks=LONG),
    ],
)
def test_a_pass_after_each_step_changes_no_answer(tmp_path, seeds, steps, kind):
    for seed in seeds:
        compare(str(tmp_path / "root"), seed, kind, steps)


@pytest.mark.spark
@pytest.mark.spec("DLT-7", "RET-8")
def test_a_lease_that_is_being_read_keeps_its_messages(tmp_path, spark, clock, monkeypatch):
    small_segments(monkeypatch)
    monkeypatch.setattr(merge_segments, "CUT_BYTES", 0)
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=clock)
    queue = lq.create_queue("orders", message_retention_period=600)
    queue.send_dataframe(spark.range(100).selectExpr("concat('bulk ', id) AS body").coalesce(1))
    for number in range(9):
        queue.send(f"small {number}")
    lease = queue.lease(visibility_timeout=3_600)
    rows = lease.messages  # lazy
    clock.advance(601)  # all of it expires; the pass drops the segments, their files stay
    summaries = succeeded(apart(lq.root, clock, 1)[0].compact())
    assert summaries[0].expired == 109 and summaries[0].segments_dropped > 1
    assert live_files(queue) == 0
    bodies = [f"bulk {number}" for number in range(100)] + [f"small {number}" for number in range(9)]
    assert sorted(row.body for row in rows.collect()) == sorted(bodies)


# --- what a pass does


@local_only
@pytest.mark.spec("DUR-61")
@pytest.mark.parametrize(
    "content", [b"[", b"[[1]]", b"5", b"[" * 100_000], ids=["torn", "lists", "number", "deep"]
)
def test_an_unreadable_list_of_needed_files_costs_no_file(harness: Harness, clock, monkeypatch, content):
    keep_nothing(monkeypatch)
    queue = harness.create()
    queue.send("a")
    succeeded(queue.compact())
    for torn in Path(messages_of(queue), "_needed").iterdir():
        torn.write_bytes(content)
    older(place_of(queue), 60)
    for _ in range(2):
        succeeded(queue.compact())
    assert drain(harness.queue()) == ["a"]


@local_only
def test_an_empty_directory_that_another_pass_removes_first_is_no_failure(harness: Harness, monkeypatch):
    """That is between its listing and the look at its age."""
    queue, walk = harness.create(), os.walk
    for name in ("first", "second"):
        Path(messages_of(queue), name).mkdir()

    def walked(top: str) -> Iterator[Any]:
        for found in walk(top):
            if found[0].endswith("first"):
                os.rmdir(found[0])
            yield found

    monkeypatch.setattr(compact, "FOLDERS_KEPT", -60)
    monkeypatch.setattr(os, "walk", walked)
    succeeded(queue.compact())
    assert not [each for each in Path(messages_of(queue)).iterdir() if each.name in ("first", "second")]


@pytest.mark.spec("DUR-63")
def test_a_checkpoint_does_not_list_removed_files(harness: Harness, clock):
    queue = numbered_queue(harness, 40, deletes=True)
    path = receipts_of(queue)
    queue._runtime.root.engine.open(path).checkpoint()
    [name] = [name for name in log_files_of(queue, "receipts") if name.endswith(".checkpoint.parquet")]
    folder = Store(place_of(queue)).folder(layout.tables_path(place_of(queue), queue.key))
    rows = pq.read_table(pa.BufferReader(folder.read(name)))
    assert rows["remove"].null_count == len(rows) < 20


@pytest.mark.spec("JOB-12")
def test_a_message_that_a_pass_drops_after_it_was_found_is_reported_as_gone(harness: Harness, clock, monkeypatch):
    keep_nothing(monkeypatch)
    queue, places = harness.create(), chosen_messages._places
    sent = [queue.send(f"{number}") for number in range(6)]
    queue.delete_batch([message.receipt_handle for message in queue.receive(10)])

    def found(*given: Any) -> Any:
        known = places(*given)
        succeeded(harness.queue().compact())
        return known

    monkeypatch.setattr(chosen_messages, "_places", found)
    with pytest.raises(InvalidParameterValue, match="none any more"):
        queue.reschedule(sent[0].message_id, clock.now())
    assert files_of(queue, "messages") == []


@pytest.mark.spec("RET-8")
@long_on_s3
def test_the_history_holds_its_messages_until_they_are_past_rewinding(harness: Harness, clock, monkeypatch):
    keep_nothing(monkeypatch)
    queue = numbered_queue(harness, 6, deletes=True, message_retention_period=600, rewind_range=300)
    clock.advance(200)
    assert succeeded(harness.queue().compact()).segments_dropped == 0
    assert queue.rewind(clock.now() - timedelta(seconds=250)) == 6
    queue.delete_batch([message.receipt_handle for message in queue.receive(10)])
    clock.advance(150)
    summary = succeeded(harness.queue().compact())
    assert summary.expired == 6 and summary.segments_dropped > 0
    assert files_of(queue, "messages") == []


@pytest.mark.spec("RET-11", "DDP-3")
@long_on_s3
def test_a_fifo_queue_keeps_what_deduplication_looks_at(harness: Harness, clock, monkeypatch):
    keep_nothing(monkeypatch)
    queue = harness.create("orders.fifo", fifo=True)
    sent = [queue.send(str(number), group_id="A", dedup_id=str(number)) for number in range(5)]
    for _ in range(5):
        queue.delete(queue.receive()[0].receipt_handle)
    clock.advance(299)
    assert succeeded(harness.queue("orders.fifo").compact()).segments_dropped == 0
    again = harness.queue("orders.fifo").send("3", group_id="A", dedup_id="3")
    assert again.message_id == sent[3].message_id and drain(queue) == []
    clock.advance(2)
    assert succeeded(harness.queue("orders.fifo").compact()).segments_dropped > 0
    assert harness.queue("orders.fifo").send("3", group_id="A", dedup_id="3").message_id != sent[3].message_id
    assert drain(queue) == ["3"]


def test_an_open_segment_is_joined_once_it_is_idle_and_the_next_send_opens_another(harness: Harness, clock):
    queue = numbered_queue(harness, 5)
    assert succeeded(harness.queue().compact()).segments_merged == 0
    clock.advance(3_601)
    assert succeeded(harness.queue().compact()).segments_merged == 1
    assert live_files(queue) == 1
    queue.send("5")  # through a handle that knows nothing of it
    assert len({row.offset for row in check_log(queue)}) == 6
    assert drain(harness.queue()) == list("012345")


@local_only  # on a store it reads its files again, which shows that a backup was put back
def test_a_sender_merges_the_segment_that_it_has_sent_without_reading_it(harness: Harness, clock, monkeypatch):
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 4)
    opened, read = list[str](), TableVersion._opened_file

    def noted(table: TableVersion, file: LiveFile) -> Any:
        opened.append(table.path.rpartition("/")[2])
        return read(table, file)

    queue = harness.create()
    with monkeypatch.context() as scope:
        scope.setattr(TableVersion, "_opened_file", noted)
        for number in range(5):
            queue.send(str(number), attributes={"n": number}, delay=number % 2)
    assert live_files(queue) == 2 and "messages" not in opened
    check_log(harness.queue())
    found = harness.queue().receive(10)
    assert [(each.body, each.message_attributes["n"].value) for each in found] == [(n, n) for n in "024"]
    clock.advance(1)
    assert [each.body for each in harness.queue().receive(10)] == ["1", "3"]


def bulk_segment(queue: Queue, bodies: list[str], at: str) -> None:
    """Commits a file as a bulk send does: base and instant are partition values."""
    path = messages_of(queue)
    table = Engine(Store()).open(path)
    end = table.transaction(layout.SEND_ID) or 0
    rows = pa.Table.from_pylist(
        [{"position": n, "message_id": f"{end + n}", "body": body} for n, body in enumerate(bodies)],
        schema=pa.schema([f for f in layout.MESSAGES if f.name not in layout.MESSAGE_PARTITIONS]),
    )
    name, data = f"bulk/{end}/part.parquet", pa.BufferOutputStream()
    pq.write_table(rows, data)
    Store().folder(path).write(name, data.getvalue())
    count, size = len(bodies), data.getvalue().size
    partition = {"base_offset": str(end), "opened_at": at}
    nulls = {"sent_at": count, "position": 0, "delay_seconds": count}
    file = DataFile(name, size, count, partition, {"position": 0}, {"position": count - 1}, nulls)
    instant = pa.scalar(at).cast(pa.timestamp("us")).cast(pa.int64()).as_py()
    table.add([file], {layout.SEND_ID: end + count, layout.CLOCK_ID: instant}, f"bulk {end}")


def test_small_bulk_segments_are_joined_and_keep_their_instants(harness: Harness, clock, monkeypatch):
    keep_nothing(monkeypatch)
    queue = harness.create(message_retention_period=60)
    for number in range(4):
        bulk_segment(queue, [f"{number}a", f"{number}b"], f"2026-01-01 00:00:{number:02}.000001")
    queue.send("last")
    before = check_log(queue)
    assert succeeded(harness.queue().compact()).segments_merged == 4
    assert check_log(queue) == before and live_files(queue) == 2
    clock.advance(61.5)  # 62 s after the start: what was sent at second 0 and 1 is gone
    assert [m.body for m in harness.queue().peek()] == ["2a", "2b", "3a", "3b", "last"]


def test_the_gone_half_of_a_segment_is_cut_off(harness: Harness, clock, monkeypatch):
    keep_nothing(monkeypatch)
    monkeypatch.setattr(merge_segments, "CUT_ROWS", 3)
    queue = harness.create()
    for number in range(2):  # a closed segment of twenty
        queue.send_batch([SendEntry(body=str(number * 10 + n)) for n in range(10)])
        clock.advance(1)
    queue.send("open")
    held = queue.receive(20)
    queue.delete_batch([message.receipt_handle for message in held[:9]])
    assert succeeded(harness.queue().compact()).segments_cut == 0
    queue.delete_batch([message.receipt_handle for message in held[9:12]])
    assert succeeded(harness.queue().compact()).segments_cut == 1
    rows = check_log(queue, from_start=False)
    assert [row.body for row in rows] == [*map(str, range(12, 20)), "open"]
    queue.delete(held[12].receipt_handle)  # through a snapshot from before
    clock.advance(31)
    assert drain(queue) == [*map(str, range(13, 20)), "open"]


@long_on_s3
def test_a_ledger_with_many_files_is_rewritten(harness: Harness, clock, monkeypatch):
    queue = harness.create()
    queue.send_batch([SendEntry(body=str(number)) for number in range(20)])
    held = [queue.receive(2) for _ in range(10)]
    for first, _ in held:
        queue.delete(first.receipt_handle)
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "RANGE_ROWS", 2)
        shard_of(queue).ledger.command([Rewrite()], queue._runtime.now)
    assert live_files(queue, "receipts") == 6
    before = queue.counts()
    assert succeeded(harness.queue().compact()).ledgers_rewritten == 1
    assert live_files(queue, "receipts") == 2
    assert succeeded(harness.queue().compact()).ledgers_rewritten == 0
    assert harness.queue().counts() == queue.counts() == before
    queue.delete(held[3][1].receipt_handle)
    assert harness.queue().counts().in_flight == 9


@local_only
def test_the_log_is_trimmed_below_a_checkpoint_that_is_old_enough(harness: Harness, clock):
    queue = numbered_queue(harness, 5)
    succeeded(queue.compact())
    whole = log_files_of(queue, "messages")
    assert any("checkpoint" in name for name in whole)
    reader = DeltaTable(f"{place_of(queue)}/q/{queue.key}/0/messages")  # loads its log lazily, by that checkpoint
    older(place_of(queue), 300)
    for number in range(5, 9):
        queue.send(str(number))
    succeeded(queue.compact())
    assert set(whole) <= set(log_files_of(queue, "messages"))  # the old checkpoint may still be read by
    older(place_of(queue), 301)
    succeeded(queue.compact())
    assert len(log_files_of(queue, "messages")) < len(whole) + 4
    assert reader.to_pyarrow_table().num_rows == 5
    older(place_of(queue), 301)
    succeeded(queue.compact())
    assert [m.body for m in harness.queue().receive(10)] == list("012345678")
    assert len(queue.receive(10)) == 0


@pytest.mark.spec("QUE-13")
def test_a_deleted_queue_is_emptied_a_day_later_and_refuses_handles_from_before(
    harness: Harness, clock, monkeypatch
):
    queue, sleeper = harness.create(), harness.queue()
    sleeper.send("a")
    sleeper.receive()
    harness.create("others")
    for number in range(20):
        queue.send(str(number))
    harness.open().delete_queue("orders")
    for summary in succeeded(harness.open().compact()):
        assert not summary.deleted
    assert len(files_of(queue, "messages")) == 21
    clock.advance(DAY - 1)
    assert not [each for each in succeeded(harness.open().compact()) if each.deleted]
    clock.advance(2)
    deleted, *_ = [each for each in succeeded(harness.open().compact()) if each.deleted]
    assert deleted.queue == "orders" and deleted.files_freed > 21
    assert queue.key not in harness.folder.folders("q")
    time_flies(monkeypatch, DAY)
    for call in (lambda: sleeper.send("lost?"), sleeper.receive, sleeper.counts):
        with pytest.raises(QueueDoesNotExist):
            call()
    assert not [each for each in succeeded(harness.open().compact()) if each.deleted]
    again = harness.create()
    again.send("new")
    assert drain(again) == ["new"]


@local_only
def test_manifests_and_files_of_a_bulk_send_that_was_never_committed_go_after_a_day(harness: Harness, clock):
    queue = harness.create()
    queue.send("a")
    table = Path(messages_of(queue))
    (table / "bulk" / "load-1" / "x").mkdir(parents=True)
    (table / "bulk" / "load-1" / "x" / "part-0.parquet").write_bytes(b"rows")
    file = DataFile("bulk/load-1/x/part-0.parquet", 4, 1, {})
    manifest = manifests.Manifest("load-1", "bulk-load-1", 1, [manifests.WaitingFile(0, file)])
    manifests.write_manifest(LocalFolder(layout.tables_path(place_of(queue), queue.key)), manifest)
    waiting = table.parents[1] / "manifests"
    for hours in (11, 12.9):
        clock.advance(hours * 3600)
        older(place_of(queue), hours * 3600)
        assert (table / "bulk" / "load-1" / "x" / "part-0.parquet").exists()
        assert (waiting / "load-1.json").exists()
        succeeded(queue.compact())
    clock.advance(3_700)
    older(place_of(queue), 3_700)
    succeeded(queue.compact())
    assert not (waiting / "load-1.json").exists()
    older(place_of(queue), 3_700)
    succeeded(queue.compact())
    assert not (table / "bulk").exists()
    assert drain(queue) == ["a"]


@pytest.mark.spec("NAM-6")
@long_on_s3
def test_stats_have_a_row_per_queue_and_minute(harness: Harness, clock):
    first, other = harness.create(), harness.open(region="north").create_queue("orders")
    first.send_batch([SendEntry(body=body) for body in "abc"])
    first.receive(2)
    for _ in range(2):
        succeeded(harness.open().compact())
    clock.advance(60)
    succeeded(harness.open(region="north").compact())
    rows = DeltaTable(f"{harness.root}/stats").to_pyarrow_table().to_pylist()
    told = {(row["region"], row["minute"].minute): row for row in rows}
    assert len(rows) == len(told) == 4
    here = told["local", 0]
    assert (here["queue"], here["key"], here["sent"], here["oldest_age"]) == ("orders", first.key, 3, 0)
    assert (here["visible"], here["in_flight"], here["delayed"], here["rewindable"]) == (1, 2, 0, 0)
    assert (told["local", 1]["visible"], told["north", 1]["sent"], other.region) == (3, 0, "north")


@long_on_s3
def test_the_stats_of_a_day_stay_in_few_files(harness: Harness, clock):
    harness.create()
    for _ in range(40):
        succeeded(harness.open().compact())
        clock.advance(60)
    table = DeltaTable(f"{harness.root}/stats")
    assert table.to_pyarrow_table().num_rows == 40
    assert len(table.file_uris()) <= 18


def test_a_failed_step_is_reported_and_the_others_go_on(harness: Harness, clock, caplog):
    broken, whole = harness.create("broken"), harness.create("whole", message_retention_period=60)
    whole.send("a")
    clock.advance(61)
    harness.wipe(f"q/{broken.key}/0/messages")
    told: list[Any] = []
    summaries = {each.queue: each for each in harness.open().compact(lambda *step: told.append(step))}
    assert summaries["broken"].failures and summaries["whole"].expired == 1
    assert summaries["whole"].failures == summaries[None].failures == []
    assert told == [(0, 2, "broken"), (1, 2, "whole"), (2, 2, "")]
    assert any("compaction of broken" in record.message for record in caplog.records)


@local_only
def test_a_root_without_queues_and_a_queue_that_is_not_there_are_refused(harness: Harness, tmp_path):
    for root in (tmp_path / "nothing", tmp_path):
        with pytest.raises(QueueClientError) as refused:
            LakeQueue(str(root)).compact()
        assert "\n" not in str(refused.value)
    queue = harness.create()
    harness.open().delete_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        queue.compact()


def test_a_pass_finishes_interrupted_work(harness: Harness, clock):
    set_, deleted = harness.create("set"), harness.create("deleted")

    def with_delay(row: Any) -> Any:
        changed = dict(row.attributes) | {"DelaySeconds": "50"}
        return attrs.evolve(row, attributes=changed, attributes_version=row.attributes_version + 1)

    harness.open()._runtime.update(set_._runtime.row, with_delay)  # the catalog knows, the shards do not
    shard_of(harness.open().queue("deleted")).sender.close()
    succeeded(harness.open().compact())
    assert [queue.name for queue in harness.open().list_queues()] == ["set"]
    ledger = shard_of(harness.queue("set")).ledger
    assert ledger.query(lambda machine: machine.head.attributes["DelaySeconds"]) == "50"
    assert deleted.name == "deleted"


# --- beside others, killed, twice


@pytest.mark.slow
@long_on_s3
@pytest.mark.spec("DLT-7")
def test_a_pass_that_is_killed_anywhere_leaves_a_queue_that_goes_on(harness: Harness):
    prepared = f"{harness.root}-prepared"
    queue = LakeQueue(prepared).create_queue("orders", message_retention_period=600, rewind_range=300)
    LakeQueue(prepared).create_queue("gone")
    LakeQueue(prepared).delete_queue("gone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakequeue.storage.messages.append.SEGMENT_COMMITS", 2)
        for number in range(12):
            queue.send(str(number))
    kept = queue.receive(6, visibility_timeout=600)
    for message in kept[:4]:
        queue.delete(message.receipt_handle)
    for before in range(1, 40):
        root = f"{harness.root}-killed-{before}"
        copy_root(prepared, root)
        status = exit_code(worker.crash, root, "compact", before)
        assert status in (0, -signal.SIGKILL), before
        forget()
        after = LakeQueue(root).queue("orders")
        counts = after.counts()
        assert (counts.visible, counts.in_flight, counts.rewindable) == (6, 2, 4), before
        after.delete(kept[4].receipt_handle)
        assert after.rewind(after.clock.now() - timedelta(seconds=200)) == 5, before
        assert drain(after) == [*map(str, range(5)), *map(str, range(6, 12))], before
        succeeded(LakeQueue(root).compact())
        if status == 0:
            break
    assert before > 8


def steady_flow(harness: Harness, minutes: int, rounds: int) -> list[dict[str, int]]:
    """A queue in use with a pass a minute; the files get older too, as removal uses the machine's time."""
    clock, queue = harness.clock, harness.create(visibility_timeout=90, rewind_range=600)
    stays = queue.send("stays")  # received again and again, never deleted: it holds the floor
    curve: list[dict[str, int]] = []
    for _ in range(minutes):
        for _ in range(rounds):
            for _ in range(3):
                queue.send("flows")
            messages = [m for m in queue.receive(10) if m.message_id != stays.message_id]
            queue.delete_batch([m.receipt_handle for m in messages])
            clock.advance(60 / rounds)
        older(harness.root, 60)
        succeeded(harness.open().compact())
        curve.append(
            {
                "live files": live_files(queue),
                "ledger files": live_files(queue, "receipts"),
                "log": len(log_files_of(queue, "messages")),
                "ledger log": len(log_files_of(queue, "receipts")),
                "ledger rows": DeltaTable(layout.receipts_path(harness.root, queue.key, 0))
                .to_pyarrow_table()
                .num_rows,
            }
        )
    return curve


def most(curve: list[dict[str, int]], name: str) -> int:
    return max(each[name] for each in curve)


@local_only
@pytest.mark.parametrize(
    ("minutes", "rounds", "warm", "growth", "largest"),
    [
        pytest.param(60, 1, 30, 1.2, 70, id="an hour", marks=[pytest.mark.slow, pytest.mark.timeout(200)]),
        pytest.param(180, 4, 130, 1.1, float("inf"), id="three hours, steadier", marks=LONG),
    ],
)
def test_steady_flow_stays_small(
    harness: Harness, minutes: int, rounds: int, warm: int, growth: float, largest: float
):
    curve = steady_flow(harness, minutes, rounds)
    print(*curve[::10], sep="\n")
    assert most(curve, "live files") <= 64 + 3 * merge_segments.TIER_SEGMENTS
    # what is deleted at one instant is a run with its time, for the ten minutes in which it can be rewound
    assert most(curve, "ledger files") <= 8 and most(curve, "ledger rows") <= 5 + 10 * rounds
    # ten minutes of it, the time between two checkpoints, and the checkpoints
    for name in ("log", "ledger log"):
        assert most(curve[warm:], name) <= growth * most(curve[:warm], name)
    assert growth * most(curve[:warm], "ledger log") <= largest


# --- what holds it together


def _history_is_kept(harness: Harness, patch: Patch) -> None:
    queue = numbered_queue(harness, 6, deletes=True, rewind_range=300)
    succeeded(harness.queue().compact())
    assert queue.rewind(harness.clock.now() - timedelta(seconds=200)) == 6
    assert drain(harness.queue()) == list("012345")


def _what_waits_is_kept(harness: Harness, patch: Patch) -> None:
    numbered_queue(harness, 6)
    succeeded(harness.queue().compact())
    assert drain(harness.queue()) == list("012345")


def _two_at_once_join_once(harness: Harness, patch: Patch) -> None:
    queue = harness.create()
    with patch.context() as scope:
        scope.setattr("lakequeue.runtime.shard_sender.merge_recent", lambda *_: None)
        for number in range(7):
            queue.send(str(number))
    mine, theirs = (Engine(Store()).open(messages_of(queue)) for _ in range(2))
    others = lambda *_: merge_segments.merge_all(theirs, 0, 0, 0)  # noqa: E731
    with meanwhile(Table, "replace", others, when=lambda table, *_: table is mine):
        merge_segments.merge_all(mine, 0, 0, 0)
    assert [row.body for row in check_log(queue)] == list("0123456")


def _removed_files_go_a_minute_after_the_log_has_forgotten_them(harness: Harness, patch: Patch) -> None:
    for name in ("MESSAGES", "RECEIPTS"):
        patch.setattr(layout, f"{name}_RETENTION", layout.Retention(1))
    queue = harness.create()
    for number in range(7):
        queue.send(str(number))
        queue.receive(visibility_timeout=600)
    before = {name: files_of(queue, name) for name in ("messages", "receipts")}
    assert all(live_files(queue, name) < len(files) for name, files in before.items())
    # the log is trimmed once its checkpoint is ten minutes old, and who had read it by then has another minute
    for seconds in (0, 590, 20, 50):
        older(harness.root, seconds)
        succeeded(queue.compact())
        for name, files in before.items():
            assert set(files) <= set(files_of(queue, name))
    older(harness.root, 20)
    freed = succeeded(queue.compact())
    for name in before:
        assert len(files_of(queue, name)) == live_files(queue, name)
    assert freed.files_freed > 7 and freed.bytes_freed > 1_000


def _a_lease_is_read_for_a_day(harness: Harness, patch: Patch) -> None:
    _is_read_for_a_day(harness, lambda queue: queue.lease(7, 3600).batches())


def _a_view_is_read_for_a_day(harness: Harness, patch: Patch) -> None:
    def view(queue: Queue) -> Iterator[pa.RecordBatch]:
        batches = harness.open().arrow_views()["messages"].to_batches(columns=["body"])
        return chain([next(batches)], batches)

    _is_read_for_a_day(harness, view)


def _is_read_for_a_day(harness: Harness, reading: Callable[[Queue], Iterator[pa.RecordBatch]]) -> None:
    queue = numbered_queue(harness, 7)
    batches, before = reading(queue), files_of(queue, "messages")
    queue.send_batch([SendEntry("more")] * 2)
    for hours in (0, 11, 12):
        older(harness.root, hours * 3600)
        succeeded(queue.compact())
        assert set(before) <= set(files_of(queue, "messages"))
    assert sorted(row["body"] for batch in batches for row in batch.to_pylist()) == list("0123456")
    older(harness.root, 2 * 3600)
    for _ in range(2):
        succeeded(queue.compact())
    assert len(files_of(queue, "messages")) == live_files(queue)


def no_history_in_the_floor(patch: Patch) -> None:
    def floor(state: Any) -> Any:
        first = state.runs.first
        head = state.head.head_offset
        return attrs.evolve(state.head, floor_offset=head if first is None else min(first, head))

    patch.setattr("lakequeue.shard.state.ShardState.current_head", floor)


def no_floor(patch: Patch) -> None:
    head = ShardLedger.head
    patch.setattr(
        ShardLedger, "head", lambda self: (attrs.evolve(head(self)[0], floor_offset=2**40), lambda: None)
    )


def no_fence(patch: Patch) -> None:
    change = merge_segments.Change
    patch.setattr(merge_segments, "Change", lambda _, *given, **more: change({}, *given, **more))
    replace = Table.replace
    patch.setattr(
        Table,
        "replace",
        lambda self, parts, rows, ids, token: replace(self, parts, rows, {}, token),
    )


def pin_nothing(patch: Patch) -> None:
    for reader in ("lease", "relations"):
        patch.setattr(f"lakequeue.operations.{reader}.pin_files", lambda _: None)


def need_only_what_is_live(patch: Patch) -> None:
    patch.setattr(cleaning, "_needed_now", lambda table, patience: {file.name for file in table.files()})


def _what_changed_is_counted_anew(harness: Harness, patch: Patch) -> None:
    """The depth of many queues, after a commit and after a timeout."""
    patch.setattr(depth, "LEAST_NOTED", 1)
    for name in ("sent-to", "received"):
        harness.create(name, visibility_timeout=100).send("a")
    harness.queue("received").receive()
    for _ in range(2):
        succeeded(harness.open().compact())
        harness.clock.advance(10)

    def counts() -> dict[str, tuple[int, int]]:
        rows = harness.open().arrow_views()["queues"].to_table(["queue", "visible", "in_flight"]).to_pylist()
        return {row["queue"]: (row["visible"], row["in_flight"]) for row in rows}

    assert counts() == {"sent-to": (1, 0), "received": (0, 1)}
    harness.queue("sent-to").send("b")
    assert counts() == {"sent-to": (2, 0), "received": (0, 1)}
    harness.clock.advance(100)
    assert counts() == {"sent-to": (2, 0), "received": (1, 0)}


MUTATIONS = [
    Mutation(
        "overlook commits",
        replace("lakequeue.storage.compaction_notes.is_unchanged", lambda *_: True),
        {_what_changed_is_counted_anew: "DLT-5"},
    ),
    Mutation(
        "notes have no end",
        replace("lakequeue.storage.compaction_notes.Note.stands", lambda *_: True),
        {_what_changed_is_counted_anew: "DLT-5"},
    ),
    Mutation("no history in the floor", no_history_in_the_floor, {_history_is_kept: "RWD-4"}),
    Mutation(
        "no floor",
        no_floor,
        {
            _history_is_kept: "RWD-4",
            _what_waits_is_kept: "DLT-6",
            shown_by(
                test_a_pass_after_each_step_changes_no_answer,
                lambda harness, _: (Path(harness.root), [0], 50, "standard"),
            ): "DLT-7",
        },
    ),
    Mutation("no fence", no_fence, {_two_at_once_join_once: "DLT-1"}),
    Mutation("no pins", pin_nothing, {_a_lease_is_read_for_a_day: "DUR-62", _a_view_is_read_for_a_day: "DUR-62"}),
    Mutation(
        "no versions",
        need_only_what_is_live,
        {_removed_files_go_a_minute_after_the_log_has_forgotten_them: "DUR-61"},
    ),
    Mutation(
        "no minute",
        replace("lakequeue.storage.cleaning._kept_seconds", lambda *_: 0.0),
        {_removed_files_go_a_minute_after_the_log_has_forgotten_them: "DUR-61"},
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path):
    def prepare(patch: Patch) -> tuple[Harness, pytest.MonkeyPatch]:
        keep_nothing(patch)
        return Harness(str(tmp_path), ManualClock(), "point"), patch

    case.run(prepare, (LakeQueueError, pytest.fail.Exception))


def test_dropping_the_open_segment_and_a_send_refuse_each_other(harness: Harness):
    queue = harness.create()
    queue.send("0")
    queue.delete(queue.receive()[0].receipt_handle)
    table = engine_of(harness.open()).open(messages_of(queue))
    with meanwhile(Table, "replace", lambda *_: harness.queue().send("1")):
        merge_segments.merge_all(table, 1, 0)
    assert [row.body for row in check_log(queue, from_start=False)][-1] == "1"
    assert drain(harness.queue()) == ["1"]


# --- without a compactor, and with nothing for it to do


@local_only
@pytest.mark.spec("DUR-61")
def test_a_busy_shard_removes_the_files_that_it_no_longer_needs(harness: Harness, clock, monkeypatch):
    monkeypatch.setattr(cleaning, "VACUUM_EVERY", 1)
    removers, vacuum = set(), cleaning.vacuum
    queue = harness.create()

    def noted(*args: Any, **options: Any) -> Any:
        removers.add(threading.current_thread().name)
        return vacuum(*args, **options)

    def cleaned() -> None:
        for thread in threading.enumerate():
            if thread.name == cleaning.VACUUMING:
                thread.join()

    def use(body: str) -> None:
        queue.send(body)
        queue.receive(visibility_timeout=0)
        cleaned()

    for _ in range(3):
        queue.send("a")
        queue.delete(queue.receive()[0].receipt_handle)
    cleaned()
    queue.compact()  # trims the log once it is old
    older(harness.root, 700)
    queue.compact()
    monkeypatch.setattr(cleaning, "vacuum", noted)
    before = {name: set(files_of(queue, name)) for name in ("messages", "receipts")}
    for name, files in before.items():
        assert len(files) > live_files(queue, name)
    for _ in range(2):  # the first lists what is needed, the second finds that list old enough
        use("b")
        older(harness.root, 70)
    use("c")
    assert len(before["receipts"] & set(files_of(queue, "receipts"))) <= 1  # the one that was live
    assert removers == {cleaning.VACUUMING}  # no call waits for it
    assert set(drain(queue)) == {"b", "c"}


@local_only
def test_files_of_few_rows_fit_into_few_blocks_of_the_disk(harness: Harness):
    queue = harness.create()
    queue.send("a")
    queue.receive()
    folder = tables_of(queue)
    messages, receipts = (
        max(file.size for file in folder.files() if file.name.endswith(".parquet") and f"/{table}/" in file.name)
        for table in ("messages", "receipts")
    )
    # a column costs some 130 bytes in a file, whatever it holds; receipts have 50 with the fields of their structs
    assert messages <= 4096 and receipts <= 2 * 4096


def whole_passes(harness: Harness, patch: Patch) -> list[str | None]:
    """The queues that get a whole pass, as it goes on."""
    done: list[str | None] = []
    whole = compact.compact_queue
    patch.setattr(compact, "compact_queue", lambda queue, *given: done.append(queue.name) or whole(queue, *given))
    return done


def let_rest(harness: Harness, seconds: float = 140) -> None:
    """Passes at an interval, until a queue that does not change is only looked at."""
    for _ in range(4):
        succeeded(harness.open().compact())
        harness.clock.advance(seconds)


def test_an_unchanged_queue_costs_one_read_until_it_was_idle_twice_as_long(harness: Harness, clock, monkeypatch):
    queue = harness.create()
    queue.send("a")
    done, minutes = whole_passes(harness, monkeypatch), []
    for minute in range(16):
        succeeded(harness.open().compact())
        if done:
            minutes.append(minute)
        done.clear()
        clock.advance(60)
    assert minutes[:1] == [0] and minutes[-1] >= 8 and len(minutes) <= 7
    rows = DeltaTable(f"{harness.root}/stats").to_pyarrow_table().sort_by("minute").to_pylist()
    assert [(row["visible"], row["oldest_age"]) for row in rows] == [(1, 60.0 * minute) for minute in range(16)]


def test_a_look_that_fails_ends_no_pass(harness: Harness, monkeypatch):
    harness.create("a"), harness.create("b")
    let_rest(harness)
    unchanged = compaction_notes.is_unchanged

    def fails(store, root, row, note):
        if row.name == "a":
            raise OSError(5, "Input/output error")
        return unchanged(store, root, row, note)

    with monkeypatch.context() as patch:
        patch.setattr(compaction_notes, "is_unchanged", fails)
        done = whole_passes(harness, patch)
        assert succeeded(harness.open().compact()) and done == ["a"]


@pytest.mark.spec("DLT-5")
def test_the_depth_of_many_queues_opens_those_that_changed(harness: Harness, clock, monkeypatch):
    """Through SQL and through commands; changes nobody committed count as well."""
    monkeypatch.setattr(depth, "LEAST_NOTED", 1)
    lake = harness.open()
    queues = [harness.create(f"queue-{number}", visibility_timeout=7200) for number in range(8)]
    for number, queue in enumerate(queues):
        queue.send_batch(batch(*"abc"))
        queue.receive(1 + number % 2)
    queues[5].receive(1, visibility_timeout=1_000)
    queues[6].send("late", delay=1_000)
    harness.create("kept", rewind_range=3600)  # its history may shrink at any time
    let_rest(harness)
    opened: list[str] = []
    open_ = Engine.open

    def noted(engine, path):
        opened.extend(queue.name for queue in queues if f"/{queue.key}/" in path)
        return open_(engine, path)

    def depths(now=None) -> dict[str, tuple[object, ...]]:
        columns = ["queue", "visible", "in_flight", "delayed", "held", "rewindable", "oldest_age"]
        rows = harness.open().arrow_views(now)["queues"].to_table(columns).to_pylist()
        return {row["queue"]: tuple(row.values()) for row in rows}

    def agree(changed: set[str], now=None) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(depth, "LEAST_NOTED", 1_000)
            truth = depths(now)
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "open", noted)
            opened.clear()
            assert depths(now) == truth
            assert set(opened) == changed
        if now is None:
            opens = [queue._runtime for queue in harness.open().list_queues()]
            for queue, found in zip(opens, depth.depths(opens), strict=True):
                assert (found.stored, found.sent) == (sum(truth[queue.name][1:5]), depth.depth(queue).sent)

    agree(set())
    agree({queue.name for queue in queues}, now=clock.now() - timedelta(hours=1))
    queues[0].send("d")
    queues[1].receive(1)
    queues[2].purge()
    queues[3].set_attributes(delay=5)
    lake.delete_queue("queue-4")
    changed = {queue.name for queue in queues[:4]}
    agree(changed)
    agree(changed | {"queue-5", "queue-6"}, now=clock.now() + timedelta(seconds=900))
    clock.advance(1_000)  # a timeout and a delay end
    agree(changed | {"queue-5", "queue-6"})
    clock.advance(24 * 3600)
    agree({queue.name for queue in queues} - {"queue-4"})


def change_notes(queue: Queue, old: bytes, new: bytes) -> None:
    folder = Store(place_of(queue)).folder(layout.stats_path(place_of(queue)))
    notes = folder.read("_passes.json")
    assert old in notes
    folder.replace("_passes.json", notes.replace(old, new))


CHANGES = {
    "a send": lambda queue, clock: queue.send("b"),
    "a receive": lambda queue, clock: queue.receive(),
    "new attributes": lambda queue, clock: queue.set_attributes(delay=3),
    "a timeout": lambda queue, clock: None,
    "retention": lambda queue, clock: clock.advance(3600),
    "notes of another version": lambda queue, clock: change_notes(queue, b'"depth": {', b'"depth": {"more": 1, '),
    "notes that are torn": lambda queue, clock: change_notes(queue, b"}", b""),
    "notes without end": lambda queue, clock: change_notes(queue, b'{"ended_at"', b"[" * 100_000),
    "an instant out of range": lambda queue, clock: change_notes(queue, b'"ended_at": ', b'"ended_at": 1e'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_queue_that_changed_gets_a_whole_pass(harness: Harness, clock, monkeypatch, change):
    queue = harness.create(message_retention_period=3600, visibility_timeout=600)
    queue.send("a")
    if change == "a timeout":
        queue.receive()
    let_rest(harness)
    done = whole_passes(harness, monkeypatch)
    succeeded(harness.open().compact())
    assert done == []
    clock.advance(60)
    CHANGES[change](queue, clock)
    succeeded(harness.open().compact())
    assert done == ["orders"]
