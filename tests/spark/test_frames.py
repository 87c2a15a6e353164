"""DataFrames in and out of the log: staged files, their checks, and the messages of a lease."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from lakequeue import LakeQueue
from lakequeue.errors import InvalidMessageContents, InvalidParameterValue
from lakequeue.model import receipt_handles
from lakequeue.model.names import sequence_number
from lakequeue.spark.rows import as_messages
from lakequeue.storage import layout
from lakequeue.storage.bulk import arrow_files, lease_batches, manifests, message_rules, staging, write_files
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.folder import Folder, LocalFolder
from lakequeue.storage.messages import erase
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOW = 1_767_225_600_123_456  # 2026-01-01 00:00:00.123456
OPENED = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=timezone.utc)
LEASE = lease_batches.LeaseColumns(
    "0123456789abcdef-01234567", "f" * 32, receipt_handles.lease_key(b"secret", "f" * 32)
)


@pytest.fixture
def log(tmp_path: Path) -> Table:
    path = layout.messages_path(str(tmp_path / "a folder"), "k", 0)
    engine = Engine(Store())
    engine.create(path, layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES)
    return engine.open(path)


def staged(df: DataFrame, log: Table, **given: Any) -> manifests.Manifest:
    given = {"send_id": "s1", "max_bytes": 262_144} | given
    name = manifests.SendKey.of_send(given.pop("send_id"))
    rules = message_rules.RowRules(**given)
    attempt = staging.Staging.new(name, [0], rules)
    written = write_files.write(df, Store(), tables(log), attempt)
    return arrow_files.gather(tables(log), attempt, written, in_order=rules.fifo is not None)


def tables(log: Table) -> Folder:
    """The directory of the queue."""
    return LocalFolder(log.path.removesuffix("/0/messages"))


def place(log: Table, file: DataFile, base: int, shard: int = 0) -> lease_batches.LeasePlace:
    return lease_batches.LeasePlace(f"{log.path}/{file.path}", True, shard, base, NOW, 0, file.rows - 1)


def commit(log: Table, files: Sequence[DataFile]) -> list[lease_batches.LeasePlace]:
    """Adds staged files one segment after the other; returns where they lie."""
    end, added, places = 0, [], []
    for file in files:
        partition = {"base_offset": str(end), "opened_at": "2026-01-01 00:00:00.123456"}
        added.append(attrs.evolve(file, partition=partition))
        places.append(place(log, file, end))
        end += file.rows
    log.add(added, {"send": end}, "bulk")
    return places


@pytest.mark.core
@pytest.mark.spec("SND-3", "DLY-9", "DLT-6")
def test_a_staged_dataframe_is_leased_as_it_was(spark: SparkSession, log: Table) -> None:
    rows = [
        ("plain", None, None, None),
        ("\t é 漢 😀 \r\n", 0.5, "g", {"k": ("String", "v", None), "b": ("Binary", None, b"\x00")}),
        ("zero", 0.0, None, {}),
    ]
    attributes = "map<string,struct<type:string,string_value:string,binary_value:binary>>"
    df = spark.createDataFrame(
        rows, f"body string, delay_seconds double, group_id string, message_attributes {attributes}"
    )
    manifest = staged(df.coalesce(1), log, default_delay=7.0)
    (file,) = manifest.of(0)
    assert (file.rows, file.minimum, file.maximum) == (
        3,
        {"position": 0, "delay_seconds": 0.0, "group_id": "g"},
        {"position": 2, "delay_seconds": 7.0, "group_id": "g"},
    )
    assert file.nulls == {
        **{"sent_at": 3, "position": 0, "delay_seconds": 0},
        **{"source_receive_count": 3, "group_id": 2},
    }
    assert manifests.load_manifest(tables(log), "s1") == manifest
    assert manifests.load_manifest(tables(log), "s2") is None

    lease = lease_batches.lease_frame(spark, commit(log, manifest.of(0)), LEASE)
    assert lease.columns == [
        "message_id",
        "body",
        "receipt_handle",
        "sent_at",
        "message_attributes",
        "group_id",
        "delay_seconds",
        "receive_count",
        "shard",
        "offset",
        "dedup_id",
        "sequence_number",
    ]
    found = lease.orderBy("offset").collect()
    assert [(row.body, row.delay_seconds, row.group_id) for row in found] == [
        (body, 7.0 if delay is None else delay, group) for body, delay, group, _ in rows
    ]
    assert found[1].message_attributes["b"].binary_value == b"\x00"
    assert {row.sent_at.replace(tzinfo=None) for row in found} == {OPENED.replace(tzinfo=None)}
    assert len({uuid.UUID(row.message_id) for row in found}) == 3
    for row in found:
        handle = receipt_handles.ReceiptHandle(LEASE.key, 0, row.offset, LEASE.lease_id)
        assert row.receipt_handle == receipt_handles.encode(handle, b"secret")


def test_both_engines_read_what_a_session_of_old_habits_has_staged(spark: SparkSession, log: Table) -> None:
    from lakequeue.storage.engines.spark import SparkEngine

    other = spark.newSession()
    other.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    other.conf.set("spark.sql.files.maxRecordsPerFile", "2")
    manifest = staged(other.range(5).selectExpr("concat('b', id) AS body").coalesce(1), log)
    commit(log, manifest.of(0))
    (live,) = log.files()
    through_spark = SparkEngine(spark, Store()).open(log.path)
    for table in (log, through_spark):
        (rows,) = table.read([live], ["body", "sent_at", "position"])
        assert rows["body"].to_pylist() == [f"b{i}" for i in range(5)]
        assert rows["sent_at"].cast(layout.INSTANT).null_count == 5
    assert log.files()[0].nulls["sent_at"] == 5


@pytest.mark.core
@pytest.mark.spec("SND-1", "SND-2", "SND-12", "SND-13", "SND-14", "DLY-3", "MSA-3", "SND-16")
def test_rows_that_break_rules_are_counted_and_nothing_stays(spark: SparkSession, log: Table) -> None:
    df = spark.createDataFrame(
        [
            (None, None, None, None, None),
            ("", None, None, None, None),
            ("ü" * 8, None, None, None, None),  # 16 bytes
            ("x", 901.0, None, None, None),
            ("x", float("nan"), None, None, None),
            ("x", None, "two words", None, None),
            ("x", None, None, "d", None),
            ("x", None, None, None, {"AWS.no": "v"}),
            ("x", None, None, None, {"long": "0123456789"}),
            ("\x01", None, None, None, None),
            ("ok", 900.0, "g", None, {"k": "v"}),
        ],
        "body string, delay_seconds double, group_id string, dedup_id string, "
        "message_attributes map<string,string>",
    )
    with pytest.raises(InvalidParameterValue) as caught:
        staged(df, log, max_bytes=14, max_delay=900.0)
    for part in (
        "2 rows have no body",
        "2 rows are longer than 14 bytes",
        "2 rows have a delay_seconds outside 0..900",
        "1 row has an invalid group_id",
        "1 row has a dedup_id",
        "1 row breaks the rules for message attributes",
        "1 row has characters",
    ):
        assert part in str(caught.value)
    with pytest.raises(InvalidMessageContents, match="1 row has characters"):
        staged(spark.createDataFrame([("a\ufffe",), ("b",)], "body string"), log)
    assert manifests.load_manifest(tables(log), "s1") is None
    assert not list(Path(log.path).rglob("*.parquet"))


@pytest.mark.core
def test_a_second_staging_of_a_send_keeps_to_the_first(spark: SparkSession, log: Table) -> None:
    first = staged(spark.sql("SELECT 'first' AS body"), log, send_id="any / id")
    second = staged(spark.sql("SELECT 'second' AS body"), log, send_id="any / id")
    assert second == first
    assert len(list(Path(log.path).rglob("*.parquet"))) == 1
    manifests.discard(tables(log), "any / id")
    assert manifests.load_manifest(tables(log), "any / id") is None
    assert not list(Path(log.path).rglob("*.parquet"))


def test_an_empty_dataframe_stages_no_files(spark: SparkSession, log: Table) -> None:
    manifest = staged(spark.sql("SELECT 'x' AS body WHERE false"), log)
    assert (manifest.rows, list(manifest.files)) == (0, [])


@pytest.mark.core
def test_many_ranges_are_leased_exactly(spark: SparkSession, log: Table) -> None:
    manifest = staged(spark.range(0, 2000, 1, 2).selectExpr("cast(id AS string) AS body"), log)
    whole = commit(log, manifest.of(0))
    places, expected = [], {}
    for file in whole:
        for first in range(file.first_position, file.last_position, 10):
            part = file._replace(whole=False, first_position=first, last_position=first + 6)
            places.append(part._replace(receive_count=1 + first % 3))
            expected |= {file.base_offset + p: 1 + first % 3 for p in range(first, first + 7)}
    assert len(places) > 2 * lease_batches.MAX_PREDICATES
    for some in (places, places[:5], [whole[0], *places[-5:]]):
        lease = lease_batches.lease_frame(spark, some, LEASE)
        found = {row.offset: row.receive_count for row in lease.select("offset", "receive_count").collect()}
        wanted = [p.base_offset + at for p in some for at in range(p.first_position, p.last_position + 1)]
        first_file = dict.fromkeys(range(1000), 1) if some[0] is whole[0] else {}
        assert found == {offset: (expected | first_file)[offset] for offset in wanted}
        assert lease.count() == len(wanted)
    assert lease_batches.lease_frame(spark, [], LEASE).isEmpty()


@pytest.mark.spec("SEQ-1", "SEQ-4", "SEQ-5", "DDP-12")
def test_messages_of_fifo_queues_are_leased_with_their_ids_and_numbers(spark: SparkSession, log: Table) -> None:
    df = spark.range(0, 300, 1, 2).selectExpr("id % 8 || '' AS group_id", "'d' || id AS dedup_id", "'b' AS body")
    files = staged(df, log, fifo=message_rules.Fifo()).of(0)
    added, places = [], []
    for file, (shard, base) in zip(files, [(1_023, 0), (0, 2**44)], strict=True):
        partition = {"base_offset": str(base), "opened_at": "2026-01-01 00:00:00.123456"}
        added.append(attrs.evolve(file, partition=partition))
        places.append(place(log, file, base, shard))
    log.add(added, {"send": 300}, "bulk")

    lease = lease_batches.lease_frame(spark, places, attrs.evolve(LEASE, fifo=True))
    rows = lease.select("shard", "offset", "dedup_id", "sequence_number").collect()
    assert {row.sequence_number for row in rows} == {sequence_number(row.shard, row.offset) for row in rows}
    assert {row.dedup_id for row in rows} == {f"d{n}" for n in range(300)}
    plain = lease_batches.lease_frame(spark, places, LEASE)
    assert [row.sequence_number for row in plain.select("sequence_number").distinct().collect()] == [None]


@pytest.mark.spec("DUR-42", "SND-1")
def test_an_erased_message_is_not_in_a_lease(spark: SparkSession, log: Table) -> None:
    commit(log, staged(spark.range(0, 4, 1, 1).selectExpr("cast(id AS string) AS body"), log).of(0))
    [file] = log.files()
    [rows] = log.read([file], ["message_id"])
    assert erase.erase(log, rows["message_id"][1].as_py(), [1], 0)
    log.refresh()
    places = [lease_batches.LeasePlace(f"{log.path}/{each.name}", True, 0, 0, NOW, 0, 3) for each in log.files()]
    lease = lease_batches.lease_frame(spark, places, LEASE)
    assert sorted(row.body for row in lease.collect()) == ["0", "2", "3"]


def test_a_lease_reads_only_its_files_and_shows_no_other_key(spark: SparkSession, log: Table) -> None:
    manifest = staged(spark.range(0, 40, 1, 4).selectExpr("cast(id AS string) AS body"), log)
    places = commit(log, manifest.of(0))
    lease = lease_batches.lease_frame(spark, places[1:2], LEASE)
    assert [name.rpartition("/")[2] for name in lease.inputFiles()] == [places[1].path.rpartition("/")[2]]
    executed = lease.select("body")._jdf.queryExecution().executedPlan().toString()
    assert "receipt_handle" not in executed and "message_id" not in executed
    assert lease.count() == places[1].last_position + 1
    assert "secret" not in lease._jdf.queryExecution().toString()


@pytest.mark.spec("INF-9", "DLY-9")
def test_messages_of_a_bulk_send_are_held_like_others(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock()
    queue = LakeQueue(str(tmp_path / "root"), spark=spark, clock=clock).create_queue(
        "orders", max_delayed_messages=30
    )
    queue.send("late", delay=20)
    df = spark.range(100).selectExpr("CAST(id AS STRING) AS body", "IF(id < 50, 10, 0) AS delay_seconds")
    assert queue.send_dataframe(df.coalesce(1)) == 100
    counts = queue.counts()
    assert (counts.visible, counts.delayed, counts.held) == (0, 30, 71)
    clock.advance(10)
    counts = queue.counts()
    assert (counts.visible, counts.delayed, counts.held) == (100, 1, 0)


@pytest.mark.core
def test_both_ways_send_and_lease_the_same_messages(spark: SparkSession, tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=ManualClock())
    attributes = {"b": ("Binary", None, b"\x00"), "k": ("String", "v", None)}
    df = spark.createDataFrame(
        [
            (
                f"body {number}",
                [None, 0.0, 0.5][number % 3],
                ["g", None][number % 2],
                [attributes, None, {}][number % 3],
            )
            for number in range(300)
        ],
        f"body string, delay_seconds double, group_id string, message_attributes {message_rules.ATTRIBUTES}",
    ).coalesce(1)
    found = []
    for name in ("spark", "arrow"):
        queue = lq.create_queue(name)
        if name == "spark":
            assert queue.send_dataframe(df, send_id="load") == 300
        else:
            assert queue.send_arrow(df.toArrow(), send_id="load") == 300
        lq.clock.advance(1)
        lease = queue.lease()
        assert lease is not None
        own = lease.messages.orderBy("offset").toArrow()
        assert lease.arrow().cast(own.schema).equals(own)
        found.append(lease.arrow().drop_columns(["receipt_handle", "sent_at"]))
    assert found[0].to_pylist() == found[1].to_pylist()


def test_text_that_is_no_utf_8_is_refused_in_one_line(spark: SparkSession, lq: LakeQueue) -> None:
    queue = LakeQueue(lq.root, spark=spark).create_queue("orders")
    rows = spark.sql("SELECT CAST(X'FFFE' AS STRING) AS body")
    with pytest.raises(InvalidParameterValue, match=r"^Nothing was sent: rows cannot be read: [^\n]*$"):
        queue.send_dataframe(rows)
    assert not list(Path(lq.root).rglob("messages/bulk/**/*.parquet"))


def test_a_row_as_json_keeps_every_digit_of_an_instant(spark: SparkSession) -> None:
    at = datetime(2026, 1, 31, 8, 0, 5, 123456, tzinfo=timezone.utc)
    rows = spark.createDataFrame([(at, 1.5)], "at timestamp, ratio double")
    rows = rows.selectExpr("*", "TIMESTAMP_NTZ '2026-01-31 08:00:05.123456' AS plain")
    [row] = as_messages(rows, "*").collect()
    instant = "2026-01-31T08:00:05.123456"
    assert json.loads(row.body) == {"at": f"{instant}Z", "ratio": 1.5, "plain": instant}
