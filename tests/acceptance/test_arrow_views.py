"""Relations for DuckDB, polars and pandas: what they open, and what they tell."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakequeue import LakeQueue, RedrivePolicy, SendEntry, errors
from lakequeue.operations import judged_log, message_states
from lakequeue.storage import cleaning, layout
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.messages import append, merge_segments
from lakequeue.testing import ManualClock

NINE = datetime(2026, 1, 1, 0, 0, 9, tzinfo=timezone.utc)
"""Nine seconds after the first message."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files of messages that are opened."""
    paths: list[str] = []
    real = LocalFolder.parquet

    @contextmanager
    def parquet(self: LocalFolder, name: str, size: int) -> Iterator[pq.ParquetFile]:
        if self.uri.endswith("/messages"):
            paths.append(f"{self.uri}/{name}")
        with real(self, name, size) as file:
            yield file

    monkeypatch.setattr(LocalFolder, "parquet", parquet)
    return paths


@pytest.fixture
def filled(lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> LakeQueue:
    """Twelve messages of ``orders``, each sent a second after the one before, and four of ``other``."""
    # a segment for each send, so that its file tells when it was sent
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 100)
    other = lq.create_queue("other", shards=2)
    for index in range(4):
        other.send_batch([SendEntry(body=f"other {index}")])
    orders = lq.create_queue("orders")
    for index in range(12):
        orders.send(str(index))
        clock.advance(1)
    orders.delete_batch([m.receipt_handle for m in orders.receive(max_messages=4)])
    orders.receive(max_messages=3)
    return lq


def bodies(lq: LakeQueue, condition: pc.Expression | None, name: str = "messages") -> list[str]:
    return lq.arrow_views()[name].to_table(columns=["body"], filter=condition)["body"].to_pylist()


@pytest.mark.parametrize(
    ("condition", "wanted", "files"),
    [
        (None, 16, 16),
        (pc.field("queue") == "orders", 12, 12),
        (pc.field("queue").isin(["other", "nowhere"]), 4, 4),
        (pc.field("region") == "elsewhere", 0, 0),
        ((pc.field("queue") == "orders") & (pc.field("shard") == 1), 0, 0),
        ((pc.field("queue") == "orders") & (pc.field("log_offset") >= 9), 3, 3),
        (pc.field("log_offset").isin([7]), 1, 1),
        ((pc.field("queue") == "orders") & (pc.field("state") == "in_flight"), 3, 3),
        ((pc.field("queue") == "orders") & (pc.field("state") == "deleted"), 4, 4),
        ((pc.field("queue") == "orders") & (pc.field("state") != "deleted"), 8, 8),
        (pc.field("state") == "delayed", 0, 0),
        (pc.field("state") == "expired", 0, 0),
        ((pc.field("queue") == "orders") & (pc.field("sent_at") > NINE), 2, 3),
        (pc.field("sent_at") < NINE - timedelta(seconds=9), 0, 0),
        (pc.field("body") == "7", 1, 16),
    ],
)
def test_a_filter_leaves_files_closed(
    filled: LakeQueue, opened: list[str], condition: Any, wanted: int, files: int
) -> None:
    found = bodies(filled, condition)
    assert (len(found), len(opened)) == (wanted, files)


def test_row_groups_of_a_large_file_are_left_unread(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    queue.send_batch([SendEntry(body=str(index)) for index in range(3_000)])
    queue.delete_batch([m.receipt_handle for m in queue.receive(max_messages=100)])
    [path] = Path(lq.root).rglob("messages/**/*.parquet")
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows, path, row_group_size=500)  # as bulk sends write it
    read: list[int] = []
    real = message_states.Judge.judge

    def counted(self: Any, offsets: Any, *rest: Any) -> Any:
        read.append(len(offsets))
        return real(self, offsets, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_states.Judge, "judge", counted)
        assert len(bodies(lq, pc.field("state") == "deleted")) == 100
        assert read == [500]
        read.clear()
        assert bodies(lq, pc.field("log_offset") == 1_234) == ["1234"]
        assert read == [500]
        read.clear()
        batches = lq.arrow_views()["messages"].to_batches(columns=["body"])
        assert (len(next(batches)), read) == (500, [500])  # no more than asked for
        assert lq.arrow_views()["messages"].head(3, columns=["body"]).to_pylist() == [{"body": b} for b in "012"]


def test_duckdb_and_polars_hand_down_what_they_need(filled: LakeQueue, opened: list[str]) -> None:
    messages, queues = (filled.arrow_views()[name] for name in ("messages", "queues"))
    query = "SELECT state, count(*) AS n FROM messages WHERE queue = 'orders' GROUP BY state ORDER BY state"
    counted = [{"state": "deleted", "n": 4}, {"state": "in_flight", "n": 3}, {"state": "visible", "n": 5}]
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        connection.register("queues", queues)
        assert connection.sql(query).to_arrow_table().to_pylist() == counted
        assert len(opened) == 12
        joined = "SELECT body FROM messages JOIN queues USING (queue) WHERE delayed = 0 AND body = '7'"
        assert connection.sql(joined).to_arrow_table().to_pylist() == [{"body": "7"}]
        connection.sql("SELECT count(*) FROM messages").to_arrow_table()
    opened.clear()
    frame = pl.scan_pyarrow_dataset(messages)
    found = frame.filter((pl.col("queue") == "orders") & (pl.col("state") == "in_flight")).select("body").collect()
    assert found["body"].to_list() == ["4", "5", "6"]
    assert len(opened) == 3
    assert frame.select(pl.len()).collect().item() == 16
    assert messages.count_rows(filter=pc.field("queue") == "other") == 4
    assert messages.to_table(columns=["body", "sent_at"]).to_pandas()["sent_at"].dt.tz is not None


def test_each_read_sees_the_newest_state_and_an_instant_stays(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders", delay=5)
    views, fixed = lq.arrow_views(), lq.arrow_views(now=clock.now())
    queue.send("a")
    lq.create_queue("later").send("b")

    def states(views: dict[str, Any]) -> list[tuple[str, str]]:
        return [(row["body"], row["state"]) for row in views["messages"].to_table().to_pylist()]

    assert sorted(states(views)) == [("a", "delayed"), ("b", "visible")]
    clock.advance(6)
    assert sorted(states(views)) == [("a", "visible"), ("b", "visible")]
    assert sorted(states(fixed)) == [("a", "delayed"), ("b", "visible")]
    lq.delete_queue("orders")
    assert states(views) == [("b", "visible")]
    assert views["queues"].to_table()["queue"].to_pylist() == ["later"]


def test_views_show_the_tables_as_of_an_instant(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    queue = lq.create_queue("orders")
    queue.send("a")
    [message] = queue.receive()
    before = datetime.now(timezone.utc)
    queue.delete(message.receipt_handle)
    queue.send("b")
    lq.create_queue("later")
    lq.delete_queue("orders")
    then = lq.arrow_views(as_of=before)
    assert [(row["body"], row["state"]) for row in then["messages"].to_table().to_pylist()] == [("a", "in_flight")]
    [row] = then["queues"].to_table().to_pylist()
    assert (row["queue"], row["in_flight"], row["visible"]) == ("orders", 1, 0)
    assert lq.arrow_views()["messages"].count_rows() == 0
    nothing = lq.arrow_views(as_of=before - timedelta(days=1))
    assert all(nothing[name].count_rows() == 0 for name in ("queues", "messages", "receipts", "history"))


def test_of_a_past_instant_only_the_logs_that_a_filter_leaves_need_to_reach_back(tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    for name in ("orders", "busy"):
        lq.create_queue(name).send("a")
    before = datetime.now(timezone.utc)
    busy = lq.queue("busy")
    for _ in range(2):
        busy.receive(visibility_timeout=0)
    receipts = lq._runtime.engine.open(layout.receipts_path(lq.root, busy.key, 0))
    cleaning.trim(receipts, layout.Retention(0, 0, 0, 0))
    then = lq.arrow_views(as_of=before)
    for name in ("queues", "messages"):
        assert len(then[name].to_table(filter=pc.field("queue") == "orders")) == 1
        assert len(then[name].to_table(filter=~(pc.field("queue") == "busy"))) == 1
        with pytest.raises(errors.QueueClientError, match="is known back to .*, and not as of"):
            then[name].to_table()


def test_what_cannot_be_answered_is_one_line(lq: LakeQueue, tmp_path: Path) -> None:
    with pytest.raises(errors.QueueClientError, match="does not exist"):
        lq.arrow_views()
    lq.create_queue("orders")
    views = lq.arrow_views()
    for when in ({"now": datetime(2026, 1, 1)}, {"as_of": "yesterday"}):
        with pytest.raises(errors.InvalidParameterValue, match=next(iter(when))):
            lq.arrow_views(**when)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="nosuch"):
        views["messages"].to_table(columns=["nosuch"])
    for refused in (views["messages"].get_fragments, lambda: views["messages"].filter(pc.field("shard") == 0)):
        with pytest.raises(NotImplementedError, match="to_table"):
            refused()
    assert views["messages"].to_table().schema == views["messages"].schema


@pytest.mark.parametrize("seed", range(2))
def test_a_filter_loses_no_row_and_the_states_are_those_of_peek(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 2)
    monkeypatch.setattr(judged_log, "ROWS", 3)
    chance = random.Random(seed)
    lq.create_queue("dead", message_retention_period=200)
    policy = RedrivePolicy(dead_letter_queue="dead", max_receive_count=2)
    queues = [
        lq.create_queue("plain", shards=2, rewind_range=80, message_retention_period=120, redrive_policy=policy),
        lq.create_queue("held", max_delayed_messages=3, message_retention_period=120),
        lq.create_queue("orders.fifo", fifo=True, delay=4, rewind_range=80, message_retention_period=120),
    ]
    for number in range(60):
        queue = chance.choice(queues)
        more = {"group_id": "AB"[number % 2], "dedup_id": str(number)} if queue.fifo else {}
        delay = None if queue.fifo else chance.choice([0, 0, 9, 40])
        queue.send_batch([SendEntry(f"{number}", delay=delay, **more)])
        for message in queue.receive(chance.randint(1, 3), visibility_timeout=chance.choice([5, 30])):
            if chance.random() < 0.6:
                queue.delete(message.receipt_handle)
        clock.advance(chance.randint(0, 5))
        if number == 40:
            queues[0].rewind(clock.now() - timedelta(seconds=30))
    messages = lq.arrow_views()["messages"]
    whole = messages.to_table().to_pylist()
    states = ["visible", "in_flight", "delayed", "held", "moving", "deleted", "expired"]
    assert {row["state"] for row in whole} >= {"visible", "in_flight", "delayed", "deleted", "expired"}
    for state in states:
        wanted = [row for row in whole if row["state"] == state]
        assert messages.to_table(filter=pc.field("state") == state).to_pylist() == wanted
    middle = sorted(row["sent_at"] for row in whole)[len(whole) // 2]
    for condition, chosen in (
        (pc.field("sent_at") >= middle, [row for row in whole if row["sent_at"] >= middle]),
        (pc.field("sent_at") < middle, [row for row in whole if row["sent_at"] < middle]),
        (
            (pc.field("log_offset") > 5) & (pc.field("shard") == 0),
            [r for r in whole if r["log_offset"] > 5 and not r["shard"]],
        ),
        (pc.field("visible_at").is_null(), [row for row in whole if row["visible_at"] is None]),
    ):
        assert messages.to_table(filter=condition).to_pylist() == chosen
    for queue in [*queues, lq.queue("dead")]:
        stored = {m.message_id: (m.state, m.visible_at, m.receive_count) for m in queue.peek(limit=1_000)}
        shown = [row for row in whole if row["queue"] == queue.name and row["state"] not in ("deleted", "expired")]
        assert {r["message_id"]: (r["state"], r["visible_at"], r["receive_count"]) for r in shown} == stored
        counts = queue.counts()
        [row] = lq.arrow_views()["queues"].to_table(filter=pc.field("queue") == queue.name).to_pylist()
        for name in ("visible", "in_flight", "delayed", "held", "rewindable", "oldest_age"):
            assert row[name] == getattr(counts, name)
        history = lq.arrow_views()["history"].to_table(filter=pc.field("queue") == queue.name)
        assert len(history) == counts.rewindable


def test_batches_of_large_bodies_have_few_rows(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged_log, "BYTES", 100_000)
    queue = lq.create_queue("orders")
    chance = random.Random(7)
    for size in (20_000, 20):
        queue.send_arrow(pa.table({"body": [chance.randbytes(size // 2).hex() for _ in range(40)]}))
    sizes = [len(batch) for batch in lq.arrow_views()["messages"].to_batches()]
    assert sum(sizes) == 80 and max(sizes[:-1]) <= 5 and sizes[-1] >= 40
    assert [len(batch) for batch in lq.arrow_views()["messages"].to_batches(columns=["state"])] == [40, 40]


def test_small_files_are_judged_together_and_a_reader_of_one_message_opens_few(
    lq: LakeQueue, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 1)
    monkeypatch.setattr(merge_segments, "TIER_SEGMENTS", 100)
    monkeypatch.setattr(judged_log, "FEW", 4)
    monkeypatch.setattr(judged_log, "ROWS", 7)
    queue = lq.create_queue("orders")
    for number in range(20):
        queue.send(str(number))
    queue.delete_batch([m.receipt_handle for m in queue.receive(max_messages=10)])
    messages, columns = lq.arrow_views()["messages"], ["body", "state", "log_offset"]
    read = [batch.to_pylist() for batch in messages.to_batches(columns=columns)]
    assert [len(rows) for rows in read] == [4, 7, 7, 2]
    rows = [row for part in read for row in part]
    assert [(int(row["body"]), row["state"]) for row in rows] == [
        (row["log_offset"], "deleted" if row["log_offset"] < 10 else "visible") for row in rows
    ]
    opened.clear()
    assert messages.head(1, columns=columns)["body"].to_pylist() == ["0"]
    assert len(opened) == 4
