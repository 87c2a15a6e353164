"""Bulk sends over several shards: cut off between two of them, repeated, completed, and never doubled.

Files of Arrow and of Spark are committed by the same code; `test_bulk_shards.py` and `test_source_write.py` in
`tests/spark` have Spark's forms.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from concurrency.cut_off import ROWS, SHARDS, bodies, cut_off
from concurrency.harness import apart, check_log, keep_to
from concurrency.steps import at
from concurrency.stopping import older, time_flies
from insides import place_of
from lakequeue import InvalidOptions, LakeQueue, Queue, QueueClientError, RequestThrottled, SystemClock
from lakequeue.frame_verbs import complete_send, plan_send
from lakequeue.operations import send_dataframe
from lakequeue.storage import layout
from lakequeue.storage.bulk import arrow_files, bulk_send, commit_files, manifests, staging
from lakequeue.storage.bulk.arrow_rows import columns_of
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.point import Table

pytestmark = pytest.mark.spec("SND-17", "DLT-3")


@pytest.fixture(params=["standard", "fifo", "priorities"])
def queue(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setattr("lakequeue.storage.bulk.arrow_rows.ROW_GROUP", 200)
    monkeypatch.setattr(arrow_files, "FILE", 600)
    lq = LakeQueue(str(tmp_path / "root"))
    if request.param == "fifo":
        return lq.create_queue("orders.fifo", fifo=True, shards=SHARDS, deduplication_scope="message_group")
    priorities = SHARDS if request.param == "priorities" else None
    return lq.create_queue("orders", shards=SHARDS, priorities=priorities)


def rows_of(queue: Queue) -> pa.Table:
    """Enough bytes for several files, so that they reach every shard."""
    bodies = [f"{number:060}" for number in range(ROWS)]
    columns: dict[str, Any] = dict.fromkeys(("body", *(("group_id", "dedup_id") if queue.fifo else ())), bodies)
    if queue.priorities is not None:
        columns["priority"] = [number % SHARDS for number in range(ROWS)]
    return pa.table(columns)


def send_batch(queue: Queue, number: int, rows: pa.Table, stream: str = "s") -> int:
    """Sends a micro-batch as the data source does; as many tasks write it as there are shards."""
    send = plan_send(queue, columns_of(rows.schema), None).of_batch(stream, number)
    staging, tables = send.writer.staging, send.writer.store.folder(send.writer.tables)
    part = -(-len(rows) // SHARDS)
    written = [
        arrow_files.write_partition(
            staging.messages(tables), staging, task, rows[task * part : (task + 1) * part].to_batches()
        )
        for task in range(SHARDS)
    ]
    return complete_send(queue, send, written)


def manifests_of(queue: Queue) -> list[Path]:
    return [*Path(layout.tables_path(place_of(queue), queue.key), "manifests").iterdir()]


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_repeated_send_adds_what_its_first_attempt_left_out(queue: Queue, commits: int) -> None:
    df = rows_of(queue)
    cut_off(queue, lambda: queue.send_arrow(df, "load 1"), commits)
    left = ROWS - len(bodies(queue))
    other = apart(place_of(queue), SystemClock(), 1)[0].queue(queue.name)
    assert other.send_arrow(df, "load 1") == left
    assert queue.send_arrow(df, "load 1") == 0
    assert bodies(queue) == [*range(ROWS)]


def test_a_send_without_a_name_says_how_to_repeat_it(queue: Queue) -> None:
    df = rows_of(queue)
    error = cut_off(queue, lambda: queue.send_arrow(df), 1)
    _, _, name = str(error).partition("send_id=")
    queue.send_arrow(df, name.split("'")[1])
    assert bodies(queue) == [*range(ROWS)]


@pytest.mark.parametrize("hours", [1, 30])
def test_the_compactor_completes_what_reached_some_shards(queue: Queue, hours: float) -> None:
    cut_off(queue, lambda: queue.send_arrow(rows_of(queue)), 1)
    begun = bodies(queue)
    assert not queue.compact().failures
    assert bodies(queue) == begun  # its process may be at it
    older(place_of(queue), hours * 3600)
    for _ in range(2):
        assert not queue.compact().failures
    assert bodies(queue) == [*range(ROWS)]
    assert len(queue.receive(1_000)) == ROWS


def test_files_of_a_send_that_reached_some_shards_are_kept_however_old(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = rows_of(queue)
    cut_off(queue, lambda: queue.send_arrow(df, "load"), 1)
    older(place_of(queue), 30 * 3600)
    with monkeypatch.context() as patch:
        patch.setattr(send_dataframe, "complete_bulk_sends", lambda queue: None)
        assert not queue.compact().failures
    queue.send_arrow(df, "load")
    assert bodies(queue) == [*range(ROWS)]


def test_files_of_a_send_that_reached_no_shard_go_when_they_are_old(queue: Queue) -> None:
    cut_off(queue, lambda: queue.send_arrow(rows_of(queue), "load"), 0)
    folder = Path(layout.tables_path(place_of(queue), queue.key))
    assert [*folder.glob("*/messages/bulk/*/*/*.parquet")]
    for _ in range(2):  # the second pass removes what the first found unneeded
        older(place_of(queue), 30 * 3600)
        assert not queue.compact().failures
    assert not [*folder.glob("*/messages/bulk/*/*/*.parquet")] and not [*folder.glob("manifests/*")]
    assert bodies(queue) == []


def test_the_check_of_what_was_reached_can_fail(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 5: without it, a repeated send adds again what reached a shard."""
    df = rows_of(queue)
    cut_off(queue, lambda: queue.send_arrow(df, "load"), 2)
    for kind in manifests.SendKey, manifests.Manifest:
        monkeypatch.setattr(kind, "reached", lambda *_: False)
    monkeypatch.setattr(commit_files, "Duplicates", lambda *_: None)  # a FIFO queue would notice
    monkeypatch.setattr(manifests.Manifest, "too_old", False)
    queue.send_arrow(df, "load")
    with pytest.raises(AssertionError):
        check_log(queue)


def test_a_send_whose_parts_are_completed_meanwhile_is_not_disturbed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:

    def an_hour_passes() -> None:
        with pytest.MonkeyPatch.context() as patch:  # it takes so long that it seems to be gone
            time_flies(patch, 3_600)
            assert not queue.compact().failures

    at(monkeypatch, commit_files.ShardCommit, "commit", an_hour_passes, landed=True)
    queue.send_arrow(rows_of(queue))
    assert bodies(queue) == [*range(ROWS)]


def test_a_send_whose_parts_were_all_committed_by_others_keeps_their_files(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = bulk_send.complete
    monkeypatch.setattr(bulk_send, "complete", lambda *args: complete(*args) * 0)  # the answer of who was late
    assert queue.send_arrow(rows_of(queue)) == 0
    assert bodies(queue) == [*range(ROWS)]
    assert len(queue.receive(1_000)) == ROWS


def test_a_lost_race_gives_the_same_files_new_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = apart(tmp_path / "root", SystemClock())
    queue, other, rows = here.create_queue("orders"), there.create_queue("orders"), pa.table({"body": ["1", "2"]})
    add, offered = Table.add, []

    def overtaken(self: Table, files: Any, *args: Any) -> None:
        offered.append([file.path for file in files])
        if len(offered) == 1:
            other.send("0")
        add(self, files, *args)

    monkeypatch.setattr(Table, "add", overtaken)
    assert queue.send_arrow(rows) == 2
    assert len(offered) == 2 and offered[0] == offered[1]
    assert [row.body for row in check_log(queue)] == ["0", "1", "2"]
    at(monkeypatch, Table, "add", LostRace("conflict"), times=1_000)
    monkeypatch.setattr("lakequeue.storage.engines.transaction.back_off", lambda _: None)
    monkeypatch.setattr("lakequeue.storage.engines.transaction.ATTEMPTS", 2)
    with pytest.raises(RequestThrottled, match="nothing was sent"):
        queue.send_arrow(rows)
    assert bodies(queue) == [0, 1, 2]


# --- micro-batches of streams


def test_a_batch_is_sent_once_and_earlier_batches_are_not_sent_again(queue: Queue) -> None:
    df = rows_of(queue)
    sent = [send_batch(queue, number, df[first:last]) for number, first, last in [(0, 0, 2), (0, 0, 2), (3, 2, 3)]]
    assert sent == [2, 0, 1]
    with pytest.raises(InvalidOptions, match="has later batches than 2 of this query"):
        send_batch(queue, 2, df[3:4])
    assert [send_batch(queue, 3, df[2:3]), send_batch(queue, 0, df[4:5], "t")] == [0, 1]
    assert bodies(queue) == [0, 1, 2, 4]
    assert [send_dataframe.last_version(queue._runtime, layout.stream_id(stream)) for stream in "stu"] == [4, 1, 0]
    assert manifests_of(queue) == []  # of streams there are too many to leave them to the compactor


def test_an_empty_batch_commits_nothing(queue: Queue) -> None:
    assert send_batch(queue, 0, rows_of(queue)[:0]) == 0
    assert send_dataframe.last_version(queue._runtime, layout.stream_id("s")) == 0
    assert manifests_of(queue) == []


def test_a_repeated_batch_adds_what_its_first_attempt_left_out(queue: Queue) -> None:
    df = rows_of(queue)
    cut_off(queue, lambda: send_batch(queue, 0, df), 1)
    left = ROWS - len(bodies(queue))
    assert [send_batch(queue, 0, df) for _ in range(2)] == [left, 0]
    assert bodies(queue) == [*range(ROWS)]


def test_files_that_waited_too_long_are_rewritten_only_for_a_batch(queue: Queue) -> None:
    df = rows_of(queue)
    cut_off(queue, lambda: send_batch(queue, 0, df), 0)
    cut_off(queue, lambda: queue.send_arrow(df, "load"), 0)
    for manifest in manifests_of(queue):
        written = manifest.stat().st_mtime - 12 * 3600 - 1
        os.utime(manifest, (written, written))
    new = df[:3]
    assert send_batch(queue, 0, new) == 3
    with pytest.raises(QueueClientError, match="more than 12 h ago"):
        queue.send_arrow(new, "load")
    assert bodies(queue) == [0, 1, 2]


def repeated_while_attributes_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns how many messages there are after two processes have sent a message with the same send id.

    The second process knows older attributes, and sends between the first one's decision and its commit.
    """
    lake, other = apart(root, SystemClock())
    queue = lake.create_queue("orders", shards=SHARDS)
    late, rows, add = other.queue("orders"), pa.table({"body": ["a"]}), commit_files.ShardCommit._add
    keep_to(queue, 0)
    keep_to(late, 1)
    queue.set_attributes(visibility_timeout=40)

    def held_up(*given: Any) -> None:
        monkeypatch.setattr(commit_files.ShardCommit, "_add", add)
        late.send_arrow(rows, "load")
        add(*given)

    monkeypatch.setattr(commit_files.ShardCommit, "_add", held_up)
    queue.send_arrow(rows, "load")
    return queue.counts().visible


def test_a_send_that_is_repeated_while_attributes_change_adds_its_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repeated_while_attributes_change(tmp_path / "root", monkeypatch) == 1
    monkeypatch.setattr(staging, "_in_order_of", lambda key, shards: [*shards])
    assert repeated_while_attributes_change(tmp_path / "doubled", monkeypatch) == 2


@pytest.mark.parametrize("queue", ["standard", "priorities"], indirect=True)  # else deduplication would help
def test_the_check_of_repeated_batches_can_fail(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 5: without the number of the batch in the log, a repeated one is sent again."""
    assert [send_batch(queue, 0, rows_of(queue)) for _ in range(2)] == [ROWS, 0]
    check_log(queue)
    for kind in manifests.SendKey, manifests.Manifest:
        monkeypatch.setattr(kind, "reached", lambda *_: False)
    send_batch(queue, 0, rows_of(queue))
    with pytest.raises(AssertionError):
        check_log(queue)
