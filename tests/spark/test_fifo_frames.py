"""DataFrames sent to FIFO queues: order within groups, deduplication, and rows that are refused."""

from __future__ import annotations

import random
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from concurrency.harness import apart, application_id, check_log, small_segments
from insides import messages_of, place_of, shard_of
from lakequeue import InvalidParameterValue, LakeQueue, Queue, QueueClientError
from lakequeue.runtime.shard_sender import ShardSender
from lakequeue.storage import layout
from lakequeue.storage.bulk import commit_files, dedup, manifests, staged_files, write_files
from lakequeue.storage.bulk.arrow_files import Written
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import LocalFolder
from lakequeue.testing import ManualClock
from mutations import Patch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    return lq.create_queue("orders.fifo", fifo=True)


def frame(spark: SparkSession, *rows: tuple[str, str, str]) -> DataFrame:
    """Messages as (group, deduplication id, body), in this order."""
    return spark.createDataFrame(list(rows), "group_id string, dedup_id string, body string").coalesce(1)


def stored(queue: Queue) -> list[dict[str, Any]]:
    """Rows of the logs by shard and offset, after a look at whether the logs are sound."""
    check_log(queue)
    rows = []
    for shard in range(len(queue._runtime.shards)):
        table = DeltaTable(messages_of(queue, shard)).to_pyarrow_table()
        rows += [row | {"shard": shard} for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["shard"], row["base_offset"] + row["position"]))


def bodies(queue: Queue) -> list[str]:
    return [row["body"] for row in stored(queue)]


def by_group(queue: Queue) -> dict[str, list[str]]:
    groups = defaultdict(list)
    for row in stored(queue):
        groups[row["group_id"]].append(row["body"])
    return groups


def table_files(queue: Queue) -> set[str]:
    root = messages_of(queue)
    return {str(Path(path).relative_to(root)) for path in DeltaTable(root).file_uris()}


def files_of_manifest(queue: Queue) -> dict[str, int]:
    """Files of the only manifest, with their rows."""
    (manifest,) = manifests.manifests(LocalFolder(layout.tables_path(place_of(queue), queue.key)))
    return {file.path: file.rows for file in manifest.of(0)}


# -- order -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("FIF-1", "FIF-12", "SND-7")
@pytest.mark.parametrize("shards", [1, 3])
def test_messages_of_a_group_follow_the_column_and_share_a_shard(
    spark: SparkSession, lq: LakeQueue, shards: int
) -> None:
    queue = lq.create_queue("many.fifo", fifo=True, shards=shards, deduplication_scope="message_group")
    df = spark.range(0, 3_000, 1, 4).selectExpr(
        "concat('group ', id % 40) AS name",
        "cast(id AS string) AS dedup_id",
        "struct(id * 7919 % 3001 AS n) AS at",
    )
    df = df.selectExpr("replace(name, ' ', '-') AS group_id", "dedup_id", "at", "cast(at.n AS string) AS body")
    assert queue.send_dataframe(df, order_by="at") == 3_000
    groups = by_group(queue)
    assert len(groups) == 40
    for sent in groups.values():
        assert sent == sorted(sent, key=int) and len(sent) == 75
    rows = stored(queue)
    assert {row["shard"] for row in rows} == set(range(shards))
    assert all(row["shard"] == zlib.crc32(row["group_id"].encode()) % shards for row in rows)
    assert {row["delay_seconds"] for row in rows} == {None}


@pytest.mark.spec("FIF-1", "FIF-11")
@pytest.mark.parametrize("order_by", [None, "rank", "group_id"])
def test_ties_stay_in_the_order_of_the_dataframe(spark: SparkSession, queue: Queue, order_by: str | None) -> None:
    df = spark.range(0, 1_000, 1, 5).selectExpr(
        "'g' AS group_id", "cast(id AS string) AS body", "body AS dedup_id", "1 AS rank"
    )
    df = df if order_by == "rank" else df.drop("rank")
    assert queue.send_dataframe(df, order_by=order_by) == 1_000
    assert by_group(queue) == {"g": [str(i) for i in range(1_000)]}


def test_a_column_without_order_or_on_a_standard_queue_is_refused(
    spark: SparkSession, lq: LakeQueue, queue: Queue
) -> None:
    df = frame(spark, ("g", "d", "b")).selectExpr("*", "map('k', 1) AS at")
    with pytest.raises(InvalidParameterValue, match="at is map<string,int>"):
        queue.send_dataframe(df, order_by="at")
    with pytest.raises(InvalidParameterValue, match="column when"):
        queue.send_dataframe(df.drop("at"), order_by="when")
    with pytest.raises(InvalidParameterValue, match="at are not known"):
        queue.send_dataframe(df, order_by="body")
    with pytest.raises(InvalidParameterValue, match="order_by"):
        lq.create_queue("plain").send_dataframe(spark.sql("SELECT 'a' AS body"), order_by="body")
    assert stored(queue) == []


# -- rules of rows ---------------------------------------------------------------------------------------------


@pytest.mark.spec("SND-4", "SND-5", "SND-6", "SND-13", "SND-16", "DLY-7")
def test_rows_that_break_rules_are_counted_and_nothing_is_sent(spark: SparkSession, queue: Queue) -> None:
    df = spark.createDataFrame(
        [
            ("fine", "g", "d1", None, 1),
            ("fine too", "g", "d2", 0.0, 2),
            ("no group", None, "d3", None, 3),
            ("bad group", "two words", "d4", None, 4),
            ("no id", "g", None, None, 5),
            ("bad id", "g", "x" * 129, None, 6),
            ("late", "g", "d7", 2.0, 7),
            ("anywhere", "g", "d8", None, None),
        ],
        "body string, group_id string, dedup_id string, delay_seconds double, at int",
    )
    with pytest.raises(InvalidParameterValue) as caught:
        queue.send_dataframe(df, order_by="at")
    for part in (
        "2 rows have no valid group_id (SND-4)",
        "1 row has no dedup_id (SND-5)",
        "1 row has an invalid dedup_id (SND-13)",
        "1 row has a delay, which FIFO queues refuse (SND-6)",
        "1 row has no at to order by",
    ):
        assert part in str(caught.value)
    assert stored(queue) == []
    assert not list(Path(messages_of(queue)).rglob("*.parquet"))
    assert queue.send_dataframe(df.where("at < 3"), order_by="at") == 2
    assert bodies(queue) == ["fine", "fine too"]


@pytest.mark.spec("DDP-4", "DDP-6", "DDP-7", "DDP-12", "SND-5")
def test_ids_are_made_of_the_body_where_the_queue_does_so(spark: SparkSession, lq: LakeQueue) -> None:
    queue = lq.create_queue("content.fifo", fifo=True, content_based_deduplication=True)
    digest = "92b3693fce932bbbff0f6795ab3cc33a9c0a51c264160e90507fd8ea8ba2e598"
    text = "This is my message text."
    df = spark.createDataFrame(
        [("a", text, None), ("b", text, None), ("a", text, "own"), ("a", "other", digest), ("a", "é漢😀", None)],
        "group_id string, body string, dedup_id string",
    )
    assert queue.send_dataframe(df.coalesce(1)) == 3
    assert sorted(row["dedup_id"] for row in stored(queue))[1] == digest
    # what small sends make of a body is the same
    for body in (text, "é漢😀"):
        queue.send(body, group_id="c")
    assert len(bodies(queue)) == 3


# -- deduplication ---------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("DDP-1", "DDP-2", "DDP-9", "DDP-11", "DDP-13", "SND-10")
def test_a_live_id_is_not_added_again_by_any_sender(spark: SparkSession, queue: Queue, clock: ManualClock) -> None:
    queue.send("small", group_id="g", dedup_id="s")
    clock.advance(100)
    df = frame(spark, ("g", "s", "late"), ("g", "b", "bulk"), ("g", "b", "again"), ("other", "b", "elsewhere"))
    assert queue.send_dataframe(df) == 1
    assert bodies(queue) == ["small", "bulk"]
    queue.send("no", group_id="g", dedup_id="b")
    clock.advance(199.999)
    assert queue.send_dataframe(df) == 0
    clock.advance(0.001)
    assert queue.send_dataframe(df) == 1  # the small send is 300 s old, the bulk send is not
    clock.advance(100)
    assert queue.send_dataframe(df) == 1
    assert bodies(queue) == ["small", "bulk", "late", "bulk"]
    queue.purge()
    assert queue.send_dataframe(df) == 2
    assert bodies(queue)[4:] == ["late", "bulk"]


@pytest.mark.spec("DDP-14")
def test_in_groups_of_their_own_the_same_ids_are_different(spark: SparkSession, lq: LakeQueue) -> None:
    queue = lq.create_queue("scoped.fifo", fifo=True, deduplication_scope="message_group", shards=2)
    queue.send("small", group_id="a", dedup_id="1")
    df = frame(
        spark, ("a", "1", "a1"), ("b", "1", "b1"), ("b", "1", "b1 again"), ("a", "11", "a11"), ("aa", "1", "aa1")
    )
    assert queue.send_dataframe(df) == 3
    assert by_group(queue) == {"a": ["small", "a11"], "b": ["b1"], "aa": ["aa1"]}


@pytest.mark.spec("DDP-1", "SND-17")
def test_ids_in_merged_segments_are_found(
    spark: SparkSession, queue: Queue, clock: ManualClock, monkeypatch: Patch
) -> None:
    small_segments(monkeypatch)
    for number in range(14):  # one each 30 s: at 390 s, those of 90 s and before are forgotten
        queue.send(f"s{number}", group_id="g", dedup_id=str(number))
        clock.advance(30 if number < 13 else 0)
    df = frame(spark, *(("g", str(number), f"b{number}") for number in range(15)))
    assert queue.send_dataframe(df) == 5
    assert bodies(queue)[14:] == ["b0", "b1", "b2", "b3", "b14"]


@pytest.mark.spec("DDP-16")
def test_messages_that_were_moved_here_hold_no_id(spark: SparkSession, queue: Queue) -> None:
    queue.send("small", group_id="g", dedup_id="s")
    table = queue._runtime.root.engine.open(messages_of(queue))
    now = queue.clock.now()
    row = table.read(table.files())[0].to_pylist()[0] | {
        "base_offset": 1, "opened_at": now, "message_id": "moved", "dedup_id": "m",
        "source_queue": "q",
    }  # fmt: skip
    table.append(pa.Table.from_pylist([row], schema=layout.MESSAGES), {layout.SEND_ID: 2}, "move")
    assert queue.send_dataframe(frame(spark, ("g", "s", "no"), ("g", "m", "yes"))) == 1
    assert bodies(queue)[2:] == ["yes"]


@pytest.mark.spec("DDP-1", "DDP-9", "SND-17")
@pytest.mark.parametrize("scope", ["queue", "message_group"])
def test_what_is_accepted_agrees_with_a_plain_memory(
    spark: SparkSession, lq: LakeQueue, clock: ManualClock, scope: str
) -> None:
    shards = 1 if scope == "queue" else 2
    queue = lq.create_queue("model.fifo", fifo=True, deduplication_scope=scope, shards=shards)
    chance = random.Random(7)
    memory: dict[Any, float] = {}
    now = 0.0
    for _ in range(8):
        drawn = [(f"g{chance.randrange(3)}", str(chance.randrange(60))) for _ in range(40)]
        keys = {pair if scope == "message_group" else pair[1] for pair in drawn}
        fresh = {key for key in keys if key not in memory or now - memory[key] >= 300}
        if chance.random() < 0.4:
            for group, dedup in drawn:
                queue.send("s", group_id=group, dedup_id=dedup)
        else:
            df = spark.createDataFrame(
                [(g, d, "b") for g, d in drawn], "group_id string, dedup_id string, body string"
            )
            assert queue.send_dataframe(df) == len(fresh)
        memory |= dict.fromkeys(fresh, now)
        step = chance.choice([0, 90, 150, 300])
        clock.advance(step)
        now += step
    rows = stored(queue)
    last: dict[Any, Any] = {}
    for row in sorted(rows, key=lambda row: row["sent_at"] or row["opened_at"]):
        key = (row["group_id"], row["dedup_id"]) if scope == "message_group" else row["dedup_id"]
        sent_at = row["sent_at"] or row["opened_at"]
        assert key not in last or (sent_at - last[key]).total_seconds() >= 300
        last[key] = sent_at
    assert len(last) == len(memory)


# -- races, repeats and files ----------------------------------------------------------------------------------


def wide(spark: SparkSession, groups: int = 20, each: int = 10) -> DataFrame:
    return spark.range(0, groups * each, 1, 3).selectExpr(
        f"concat('g', id % {groups}) AS group_id", "concat('d', id) AS dedup_id", "cast(id AS string) AS body"
    )


@pytest.mark.core
@pytest.mark.spec("DDP-1")
def test_only_files_with_duplicates_are_rewritten(spark: SparkSession, queue: Queue) -> None:
    queue.send("first", group_id="x", dedup_id="d7")
    before = table_files(queue)
    df = wide(spark).selectExpr("*", "map('k', body) AS message_attributes")
    assert queue.send_dataframe(df, send_id="load") == 199
    staged, added = files_of_manifest(queue), table_files(queue) - before
    assert len(staged) == len(added) == 2 and sum(staged.values()) == 200
    assert len(staged.keys() & added) == 1
    sent = [row["body"] for row in stored(queue) if row["send_id"] == "load"]
    assert sorted(sent, key=int) == [str(n) for n in range(200) if n != 7]
    lease = queue.lease()
    assert lease is not None
    leased = {row.body: row.message_attributes for row in lease.messages.where("group_id <> 'x'").collect()}
    assert {body: value["k"].string_value for body, value in leased.items()} == {body: body for body in sent}
    # a repeat is a no-op for good, also if its ids are forgotten by then
    queue.purge()
    assert queue.send_dataframe(wide(spark), send_id="load") == 0
    assert len(stored(queue)) == 200


@pytest.mark.spec("DDP-1")
def test_a_file_without_a_message_left_is_left_out(spark: SparkSession, queue: Queue, clock: ManualClock) -> None:
    assert queue.send_dataframe(wide(spark)) == 200
    before = table_files(queue)
    one = stored(queue)[0]["group_id"]
    queue.purge()
    assert queue.send_dataframe(wide(spark).where(f"group_id <> '{one}'")) == 190
    end = application_id(queue, layout.SEND_ID)
    assert queue.send_dataframe(wide(spark), send_id="rest") == 10
    files = table_files(queue) - before
    assert len(files) == 3
    assert queue.send_dataframe(wide(spark)) == 0
    waits = Path(messages_of(queue), "bulk").rglob("*.parquet")
    assert len(list(waits)) == len(before) + 2 + 2 + 1  # the send of the rest: two staged, one written anew
    assert queue.send_dataframe(wide(spark), send_id="nothing") == 0
    assert application_id(queue, layout.SEND_ID) == end + 10
    assert application_id(queue, layout.bulk_id("nothing")) == 1
    clock.advance(300)
    assert queue.send_dataframe(wide(spark), send_id="nothing") == 0


@pytest.mark.spec("DDP-1", "DDP-10", "SND-17")
def test_a_lost_race_looks_only_at_what_was_sent_since(
    tmp_path: Path, spark: SparkSession, queue: Queue, clock: ManualClock, monkeypatch: Patch
) -> None:
    other = apart(tmp_path / "root", clock, 1)[0].queue("orders.fifo")
    queue.send("first", group_id="x", dedup_id="d3")

    add, offered = Table.add, []

    def overtaken(self: Table, files: Any, *args: Any) -> None:
        offered.append(sum(file.rows for file in files))
        if len(offered) < 3:
            other.send(f"quicker {len(offered)}", group_id="y", dedup_id=f"d{len(offered)}")
        add(self, files, *args)

    sent_after, looked = dedup._sent_after, []

    def spied(table: Any, first: int, *args: Any) -> Any:
        looked.append(first)
        return sent_after(table, first, *args)

    monkeypatch.setattr(dedup, "_sent_after", spied)
    monkeypatch.setattr(Table, "add", overtaken)
    assert queue.send_dataframe(wide(spark)) == 197
    assert offered == [199, 198, 197]
    assert looked == [0, 1, 2]
    found = bodies(queue)
    assert found[:3] == ["first", "quicker 1", "quicker 2"]
    assert not {"1", "2", "3"} & set(found)


@pytest.mark.spec("DDP-10")
def test_duplicates_that_keep_coming_before_the_commit_do_not_starve_it(
    tmp_path: Path, spark: SparkSession, queue: Queue, clock: ManualClock, monkeypatch: Patch
) -> None:
    other = apart(tmp_path / "root", clock, 1)[0].queue("orders.fifo")
    holding, rewritten = ShardSender.paused, staged_files.rewrite
    turns: list[str] = []
    held = threading.Event()
    written: list[bool] = []

    @contextmanager
    def hold(self: ShardSender) -> Iterator[None]:
        if self is shard_of(queue).sender:
            turns.append(f"d{len(turns)}")
            other.send("quicker", group_id="y", dedup_id=turns[-1])
        with holding(self):
            held.set()
            yield
            held.clear()

    def spied(*args: Any) -> Any:
        written.append(held.is_set())
        return rewritten(*args)

    monkeypatch.setattr(ShardSender, "paused", hold)
    monkeypatch.setattr(staged_files, "rewrite", spied)
    assert queue.send_dataframe(wide(spark)) == 200 - len(turns)
    assert len(turns) == commit_files.PATIENCE + 1
    assert written == [False] * commit_files.PATIENCE + [True]
    assert bodies(queue)[: len(turns)] == ["quicker"] * len(turns)
    assert not {str(n) for n in range(len(turns))} & set(bodies(queue))


@pytest.mark.spec("DDP-1")
def test_a_cut_off_send_is_judged_again_when_it_is_repeated(
    tmp_path: Path, spark: SparkSession, queue: Queue, clock: ManualClock, monkeypatch: Patch
) -> None:
    with monkeypatch.context() as patch:

        def cut_off(*_: Any) -> None:
            raise OSError("connection reset")

        patch.setattr(Table, "add", cut_off)
        with pytest.raises(QueueClientError):
            queue.send_dataframe(wide(spark), send_id="load")
    queue.send("in between", group_id="x", dedup_id="d9")
    other = LakeQueue(str(tmp_path / "root"), spark=spark, clock=clock).queue("orders.fifo")
    assert other.send_dataframe(wide(spark), send_id="load") == 199
    assert other.send_dataframe(wide(spark), send_id="load") == 0
    assert "9" not in bodies(queue) and len(stored(queue)) == 200


@pytest.mark.spec("FIF-1", "DDP-1")
def test_the_spark_engine_does_the_same(tmp_path: Path, spark: SparkSession, clock: ManualClock) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, engine="spark", clock=clock)
    queue = lq.create_queue("orders.fifo", fifo=True)
    queue.send("first", group_id="g7", dedup_id="d7")
    assert queue.send_dataframe(wide(spark), order_by="body") == 199
    assert queue.send_dataframe(wide(spark, 20, 11), order_by="body") == 20
    groups = by_group(queue)
    assert groups["g7"] == ["first", *sorted(str(7 + 20 * n) for n in range(1, 10)), "207"]
    assert len(groups) == 20


@pytest.mark.core
@pytest.mark.spec("SEQ-4", "DDP-12", "FIF-8")
def test_a_lease_shows_ids_and_sequence_numbers_and_blocks_its_groups(spark: SparkSession, queue: Queue) -> None:
    sent = [queue.send(body, group_id=body[0], dedup_id=body) for body in ("a1", "b1", "a2")]
    lease = queue.lease(2)
    assert lease is not None
    shown = {row.body: (row.dedup_id, row.sequence_number) for row in lease.messages.collect()}
    assert shown == {"a1": ("a1", sent[0].sequence_number), "a2": ("a2", sent[2].sequence_number)}
    queue.send("a3", group_id="a", dedup_id="a3")
    assert [message.body for message in queue.receive(10)] == ["b1"]
    lease.delete()
    assert [message.body for message in queue.receive(10)] == ["a3"]


@pytest.mark.spec("DDP-9", "RCV-4")
def test_the_window_begins_with_the_commit_however_long_the_writing_took(
    spark: SparkSession, queue: Queue, clock: ManualClock, monkeypatch: Patch
) -> None:
    write = write_files.write

    def slow(*args: Any) -> list[Written]:
        written = write(*args)
        clock.advance(400)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(write_files, "write", slow)
        assert queue.send_dataframe(frame(spark, ("a", "1", "first"))) == 1
    clock.advance(299)
    queue.send("again", group_id="a", dedup_id="1")
    assert bodies(queue) == ["first"]
    clock.advance(1)
    queue.send("later", group_id="a", dedup_id="1")
    assert bodies(queue) == ["first", "later"]
