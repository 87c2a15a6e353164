"""Deliveries of Spark DataFrames into a table: by leases, by streams, and by a name in a catalog."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import polars
import pytest
from deltalake import DeltaTable, Field, Schema

from concurrency.harness import elsewhere
from lakequeue import LakeQueue, Lease, Queue, SendEntry
from lakequeue.errors import LeaseLost, RowsRefused, TableUnavailable, UnsupportedOperation
from lakequeue.spark import stream_from_queue
from lakequeue.spark.rows import results
from lakequeue.storage.delivery import frames
from lakequeue.storage.delivery import table as tables
from lakequeue.storage.delivery.frames import FrameRows
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace
from spark.delivery_stream_worker import STEPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@attrs.frozen
class Place:
    """A queue with a delivery table."""

    queue: Queue
    table: Path
    clock: ManualClock | None = None

    def lease(self, *numbers: int, most: int = 10) -> Lease:
        """Sends numbers, and claims messages."""
        if numbers:
            self.queue.send_batch([SendEntry(str(number)) for number in numbers])
        found = self.queue.lease(most)
        assert found is not None
        return found

    def stored(self) -> list[int]:
        there = (self.table / "_delta_log").exists()
        return sorted(polars.read_delta(str(self.table))["id"].to_list()) if there else []

    def waiting(self) -> list[int]:
        """The messages that can be received, at once."""
        return sorted(int(each.body) for each in self.queue.receive(10, visibility_timeout=0))


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession, clock: ManualClock) -> Place:
    lake = LakeQueue(str(tmp_path / "root"), spark=spark, clock=clock)
    table = tmp_path / "table"
    options = {"visibility_timeout": 60, "allow_zero_visibility": True}
    return Place(lake.create_queue("orders", table=str(table), **options), table, clock)


@pytest.fixture
def present(tmp_path: Path, spark: SparkSession) -> Place:
    """By the system's clock: the workers of Spark know no other."""
    lake, table = LakeQueue(str(tmp_path / "root"), spark=spark), tmp_path / "table"
    return Place(lake.create_queue("orders", table=str(table), allow_zero_visibility=True), table)


def rows_of(messages: DataFrame) -> DataFrame:
    return messages.selectExpr("cast(body AS long) AS id")


@pytest.mark.core
@pytest.mark.spec("TAB-30")
def test_a_dataframe_of_a_lease_is_in_the_table_and_its_messages_are_gone(place: Place, spark: SparkSession):
    lease = place.lease(1, 2, 3, most=2)
    assert lease.append(rows_of(lease.messages)) == 2
    assert (place.stored(), place.waiting()) == ([1, 2], [3])
    with pytest.raises(LeaseLost):
        lease.append(rows_of(lease.messages))
    lease = place.lease()
    assert lease.append(lease.messages.where("false").selectExpr("1L AS id")) == 0
    assert (place.stored(), place.waiting()) == ([1, 2], [])
    assert [row.id for row in spark.read.format("delta").load(str(place.table)).sort("id").collect()] == [1, 2]


@pytest.mark.core
@pytest.mark.spec("TAB-30")
def test_a_table_is_created_with_the_columns_of_messages_and_their_instants(place: Place, spark: SparkSession):
    """As jobs without a handler do."""
    lease = place.lease(1)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert lease.append(results(lease.messages, None, True)) == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    [stored] = DeltaTable(place.table).to_pyarrow_table().to_pylist()
    assert place.clock is not None and (stored["body"], stored["sent_at"]) == ("1", place.clock.now())


@pytest.mark.spec("TAB-23", "TAB-30")
def test_a_dataframe_that_fails_or_is_refused_leaves_the_messages_in_the_lease(place: Place, spark: SparkSession):
    from pyspark.errors import PySparkException

    lease = place.lease(1, 2)
    for wrong, said in (
        (lease.messages.selectExpr("1L AS id", "NULL AS ID"), "column id is there 2 times"),
        (lease.messages.selectExpr("NULL AS id"), "column id has only NULLs"),
    ):
        with pytest.raises(RowsRefused, match=said):
            lease.append(wrong)
    with pytest.raises(PySparkException, match="no such day"):
        lease.append(lease.messages.selectExpr("cast(raise_error('no such day') AS long) AS id"))
    with pytest.raises(TypeError, match="a frame of Spark"):
        lease.append("rows")
    assert lease.append(rows_of(lease.messages)) == 2
    lease = place.lease(3, 4)
    with pytest.raises(RowsRefused, match="column id: Failed to parse"):
        lease.append(lease.messages.selectExpr("concat('x', body) AS id"))
    with pytest.raises(RowsRefused, match="no column color"):
        lease.append(lease.messages.selectExpr("body AS ID", "'red' AS color"))
    assert lease.append(lease.messages.selectExpr("body AS ID", "'red' AS color"), merge_schema=True) == 2
    found = spark.read.format("delta").load(str(place.table)).sort("id").collect()
    assert [tuple(row) for row in found] == [(1, None), (2, None), (3, "red"), (4, "red")]
    lease = place.lease(5)
    with pytest.raises(PySparkException):
        lease.append(lease.messages.selectExpr("cast(raise_error('again') AS long) AS id"))
    lease.release()
    assert place.waiting() == [5]  # at once, because no rows of theirs may have landed


@pytest.mark.spec("TAB-26", "TAB-30")
def test_a_driver_that_was_paused_between_its_files_and_its_commit_is_refused(place: Place):
    lease = place.lease(1)
    lease.append(rows_of(lease.messages))  # so that there is a table
    slow, real = place.lease(2), tables.DeltaDeliverySnapshot.append

    def late(snapshot: tables.DeltaDeliverySnapshot, *arguments: Any) -> None:
        assert place.clock is not None
        place.clock.advance(61)
        assert place.waiting() == [2]  # another process has blocked the slow one
        real(snapshot, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables.DeltaDeliverySnapshot, "append", late)
        with pytest.raises(LeaseLost):
            slow.append(rows_of(slow.messages))
    assert (place.stored(), place.waiting()) == ([1], [2])


class Killed(BaseException):
    """The driver dies."""


@pytest.mark.spec("TAB-26", "TAB-30")
@pytest.mark.parametrize("step", STEPS)
def test_rows_of_a_lease_whose_driver_died_at_a_step_are_in_the_table_once(place: Place, step: str):
    """As `test_stream_kills.py` shows with processes that are killed."""
    first = place.lease(0)
    first.append(rows_of(first.messages))  # so that there is a table
    lost = place.lease(1, 2)
    owner, name, after = STEPS[step]
    real = getattr(owner, name)

    def die(*arguments: Any, **options: Any) -> None:
        if after:
            real(*arguments, **options)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            lost.append(rows_of(lost.messages))
    assert place.clock is not None
    place.clock.advance(61)
    queue = elsewhere(place.queue)
    while lease := queue.lease():
        lease.append([{"id": int(body)} for body in lease.arrow(["body"])["body"].to_pylist()])
    counts = queue.counts()
    assert (place.stored(), counts.visible + counts.in_flight + counts.undecided) == ([0, 1, 2], 0)


def files_that_were_vacuumed_are_written_again(place: Place) -> None:
    lease = place.lease(1)
    lease.append(rows_of(lease.messages))  # so that there is a table
    slow, real = place.lease(2), tables.DeltaDeliverySnapshot.append

    def late(snapshot: tables.DeltaDeliverySnapshot, *arguments: Any) -> None:
        removed = DeltaTable(place.table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert len(removed) == 1
        real(snapshot, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables.DeltaDeliverySnapshot, "append", late)
        patch.setattr(frames, "_OLD", 0)
        slow.append(rows_of(slow.messages))
    assert all(Path(file).exists() for file in DeltaTable(place.table).file_uris())
    assert (place.stored(), place.waiting()) == ([1, 2], [])


MUTATIONS = [
    Mutation(
        "nobody looks if the files still exist",
        replace(FrameRows, "_are_gone", lambda *_: False),
        {files_that_were_vacuumed_are_written_again: "TAB-30"},
    ),
]


@each_case(MUTATIONS)
def test_a_slow_driver_falls_without_its_safeguard(case: Case, place: Place):
    case.run(lambda _: (place,))


# --- streams


def stream(place: Place, handle: Callable[[DataFrame, int], Any], checkpoint: str, most: int = 100) -> list[Any]:
    """Runs a stream until the queue is empty; returns the counts of its batches."""
    counts: list[Any] = []
    query = stream_from_queue(
        place.queue, handle, checkpoint, "availableNow", most, report=lambda _, each: counts.append(each)
    )
    query.awaitTermination()
    return [(each.done, each.released) for each in counts]


@pytest.mark.core
@pytest.mark.spec("TAB-31")
def test_what_the_function_of_a_stream_returns_is_appended(present: Place, checkpoint: str, tmp_path: Path):
    present.queue.send_batch([SendEntry(str(number)) for number in range(6)])
    results: dict[int, Callable[[DataFrame], Any]] = {
        0: rows_of,
        1: lambda messages: (rows_of(messages.where("body = 2")), messages.where("body = 3")),
        2: lambda messages: None,  # of 3, which has failed once, and 4
    }
    done = stream(present, lambda messages, batch: results[batch](messages), checkpoint, 2)
    assert done == [(2, 0), (1, 1), (2, 0)]
    assert (present.stored(), present.waiting()) == ([0, 1, 2], [5])
    again = stream(present, lambda messages, _: rows_of(messages), str(tmp_path / "another"))
    assert (again, present.stored(), present.queue.counts().in_flight) == ([(1, 0)], [0, 1, 2, 5], 0)


@pytest.mark.spec("TAB-31")
def test_a_checkpoint_that_was_restored_delivers_nothing_again(present: Place, checkpoint: str, tmp_path: Path):
    kept = tmp_path / "kept"

    def handle(messages: DataFrame, batch: int) -> DataFrame:
        if batch == 1 and not kept.exists():
            shutil.copytree(checkpoint, kept)  # the second batch has begun
        return rows_of(messages)

    present.queue.send_batch([SendEntry(str(number)) for number in range(6)])
    assert len(stream(present, handle, checkpoint, 2)) == 3
    shutil.rmtree(checkpoint)
    kept.rename(checkpoint)
    present.queue.send("6")
    assert stream(present, handle, checkpoint, 2) == [(1, 0)]
    assert (present.stored(), present.waiting()) == ([*range(7)], [])


@pytest.mark.spec("TAB-27", "TAB-31")
def test_a_batch_that_the_table_refuses_comes_again_in_halves(present: Place, checkpoint: str, tmp_path: Path):
    present.queue.send_batch([SendEntry(body) for body in ("1", "2", "bad", "4")])
    sizes: list[int] = []

    def handle(messages: DataFrame, _: int) -> DataFrame:
        sizes.append(messages.count())
        return messages.selectExpr("body AS id")

    DeltaTable.create(str(present.table), Schema([Field("id", "long")]))
    with pytest.raises(Exception, match="column id: Failed to parse string: 'bad'"):
        stream(present, handle, checkpoint)
    assert sizes[0] == 4 and sizes[-1] == 1
    [bad] = [each for each in present.queue.peek() if each.body == "bad"]
    assert "column id" in str(bad.attempts[-1].text)
    assert "bad" not in map(str, present.stored())


@pytest.mark.spec("TAB-31")
def test_a_function_that_returns_something_else_ends_the_stream_with_one_line(present: Place, checkpoint: str):
    present.queue.send("1")
    with pytest.raises(Exception, match="rows must be an Arrow table or batches, a frame of Spark"):
        stream(present, lambda messages, _: "rows", checkpoint)
    assert present.waiting() == [1]


# --- names in a catalog


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE SCHEMA IF NOT EXISTS delivered")
    yield "delivered"
    spark.sql("DROP SCHEMA delivered CASCADE")


@pytest.mark.spec("TAB-1", "TAB-30")
def test_only_spark_delivers_into_a_table_by_its_name(spark: SparkSession, schema: str, tmp_path: Path):
    name, root = f"spark_catalog.{schema}.orders", str(tmp_path / "root")
    queue = LakeQueue(root, spark=spark).create_queue("orders", table=name)
    place = Place(queue, tmp_path)
    lease = place.lease(1)
    assert lease.append(rows_of(lease.messages)) == 1
    lease = place.lease(2)
    assert lease.append([{"id": 2}]) == 1
    assert [row.id for row in spark.table(name).sort("id").collect()] == [1, 2]
    queue.send("3")
    plain = LakeQueue(root).queue("orders").lease()
    assert plain is not None
    with pytest.raises(UnsupportedOperation, match="which only Spark can deliver into"):
        plain.append([{"id": 3}])
    plain.release()
    spark.sql(f"DROP TABLE {name}")
    lease = place.lease()
    with pytest.raises(TableUnavailable, match="does not exist"):
        lease.append(rows_of(lease.messages))
    spark.sql(f"CREATE VIEW {name} AS SELECT 1 AS id")
    with pytest.raises(TableUnavailable, match="is not a Delta table"):
        lease.append(rows_of(lease.messages))
