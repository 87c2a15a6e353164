"""``spark.readStream.format("lakequeue")``: a micro-batch is a lease, deleted when the batch has ended."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from insides import place_of
from lakequeue import InvalidOptions, LakeQueue, LeaseLost, Queue, QueueDoesNotExist, SendEntry, frame_verbs
from lakequeue.operations.delivery_protocol import OpenedDeliveryTable
from lakequeue.spark.options import SourceOptions
from lakequeue.spark.source_schema import error_in
from lakequeue.spark.streams import started
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, shown_by
from serve.serving import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_lakequeue.stream import QueueStreamReader

Offset = dict[str, Any]
Restart = Callable[..., "QueueStreamReader"]


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Queue:
    return LakeQueue(str(tmp_path / "root"), clock=clock).create_queue("orders", visibility_timeout=60)


@pytest.fixture
def restart(queue: Queue, clock: ManualClock, monkeypatch: Patch) -> Restart:
    """Makes a reader as a new process would, by the test's clock; the one before it is dead."""
    from lakequeue.spark.source_schema import schema
    from pyspark_lakequeue.stream import QueueStreamReader

    monkeypatch.setattr("lakequeue.spark.source.time.monotonic", lambda: clock.now().timestamp())
    readers: list[QueueStreamReader] = []

    def open_queue(options: SourceOptions) -> Queue:
        return LakeQueue(options.root, clock=clock).queue(queue.name)

    monkeypatch.setattr(SourceOptions, "open_queue", open_queue)

    def kill() -> None:
        for reader in readers:
            for lease, _ in reader._leases._kept.values():
                heartbeat = lease._heartbeat
                assert heartbeat is not None
                heartbeat.stop()

    def start(**options: object) -> QueueStreamReader:
        kill()
        given = {"root": place_of(queue), "queue": queue.name} | options
        readers.append(QueueStreamReader({name: str(value) for name, value in given.items()}, schema()))
        return readers[-1]

    yield start
    kill()


def stored(offset: Offset) -> Offset:
    """An offset as it comes back from a checkpoint."""
    restored: Offset = json.loads(json.dumps(offset))
    return restored


def bodies(reader: QueueStreamReader, start: Offset, end: Offset) -> list[str]:
    """The messages of a batch, as tasks in other processes read them."""
    found: list[str] = []
    for part in reader.partitions(stored(start), stored(end)):
        copy, part = pickle.loads(pickle.dumps((reader, part)))
        found += [body for batch in copy.read(part) for body in batch["body"].to_pylist()]
    return sorted(found)


@pytest.mark.spec("RCV-7", "STA-14")
def test_a_batch_is_deleted_when_spark_asks_for_the_next_one(queue: Queue, restart: Restart) -> None:
    queue.send_batch([SendEntry(body) for body in "abc"])
    reader = restart(maxMessages=2)
    start = reader.initialOffset()
    first = reader.latestOffset(start)
    assert bodies(reader, start, first) == ["a", "b"]
    assert (queue.counts().visible, queue.counts().in_flight) == (1, 2)
    second = reader.latestOffset(stored(first))
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 1)
    reader.commit(stored(first))
    assert bodies(reader, first, second) == ["c"]
    assert reader.latestOffset(stored(second)) == second  # and no batch follows, so Spark commits nothing
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)


SMALL = [([1], [1]), ([5], [5]), ([2, 1], [3])]
LARGE = [([1], [1]), ([5], [4, 1]), ([2, 1], [2, 1]), ([1, 3], [3, 1])]


@pytest.mark.parametrize(
    ("limit", "sends", "sizes"),
    [("COUNT", *case) for case in [*SMALL, *LARGE]] + [("BYTES", *case) for case in LARGE[:2]],
)
def test_the_last_task_of_a_large_batch_has_one_message_and_a_small_batch_is_one_task(
    queue: Queue, restart: Restart, monkeypatch: Patch, limit: str, sends: list[int], sizes: list[int]
) -> None:
    """Spark reads it to its end before the function runs: the worker of a task left half read is killed."""
    if (sends, sizes) in LARGE:
        monkeypatch.setattr(f"lakequeue.operations.lease.SMALL_{limit}", 0)
    for size in sends:
        queue.send_arrow(pa.table({"body": [str(number) for number in range(size)]}))
    reader = restart()
    end = reader.latestOffset(reader.initialOffset())
    parts = [[*reader.read(part)] for part in reader.partitions(reader.initialOffset(), end)]
    assert [sum(map(len, batches)) for batches in parts] == sizes
    read = [body for batches in parts for batch in batches for body in batch["body"].to_pylist()]
    assert read == [str(number) for size in sends for number in range(size)]


def test_tasks_do_not_import_what_only_the_driver_needs(queue: Queue, restart: Restart, tmp_path: Path) -> None:
    """Each process of Spark would import it before the first batch."""
    queue.send("a")
    reader = restart()
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset()))
    (tmp_path / "task").write_bytes(pickle.dumps((reader, parts[0])))
    code = (
        "import pickle, sys; reader, part = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print([*reader.read(part)][0]['body'], {'lakequeue.spark', 'lakequeue.operations'} & {*sys.modules})"
    )
    done = subprocess.check_output([sys.executable, "-c", code, tmp_path / "task"], text=True)
    assert re.sub(r"\s", "", done) == '["a"]set()'


@pytest.mark.spec("HBN-1")
def test_the_lease_of_a_slow_batch_is_kept(queue: Queue, restart: Restart, clock: ManualClock) -> None:
    queue.send("a")
    reader = restart()
    end = reader.latestOffset(reader.initialOffset())
    for _ in range(50):
        clock.advance(10)
        assert queue.receive() == []
    assert bodies(reader, reader.initialOffset(), end) == ["a"]
    assert reader.latestOffset(end) == end
    clock.advance(100)
    assert queue.receive() == []


def test_a_lease_is_kept_for_lease_seconds_only(queue: Queue, restart: Restart, clock: ManualClock) -> None:
    queue.send("a")
    reader = restart(leaseSeconds=120, visibilityTimeout=30)
    end = reader.latestOffset(reader.initialOffset())
    clock.advance(119)
    assert queue.receive() == []
    clock.advance(40)
    assert [message.body for message in queue.receive()] == ["a"]
    assert reader.latestOffset(end) == end
    assert queue.counts().in_flight == 1  # the other consumer's


@pytest.mark.spec("RCV-6", "RCV-8")
def test_a_batch_that_is_repeated_after_a_crash_reads_the_same_lease(
    queue: Queue, restart: Restart, clock: ManualClock
) -> None:
    queue.send_batch([SendEntry(body) for body in "abc"])
    reader = restart(maxMessages=2)
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    clock.advance(50)
    reader = restart(maxMessages=2)
    assert bodies(reader, start, end) == ["a", "b"]
    clock.advance(500)  # the new process extends it
    assert [message.body for message in queue.receive(10)] == ["c"]
    reader.latestOffset(stored(end))
    assert queue.counts().in_flight == 1


@pytest.mark.spec("RCP-8")
def test_a_lease_that_timed_out_holds_what_nobody_received_since(
    queue: Queue, restart: Restart, clock: ManualClock
) -> None:
    queue.send_batch([SendEntry(body) for body in "abcd"])
    reader = restart()
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    reader = restart()
    clock.advance(61)
    (other,) = queue.receive()
    assert bodies(reader, start, end) == sorted(set("abcd") - {other.body})
    reader.latestOffset(stored(end))
    queue.change_visibility(other.receipt_handle, 0)
    clock.advance(1)
    again = reader.latestOffset(stored(end))
    assert bodies(reader, end, again) == [other.body]


def test_a_lease_that_others_took_leaves_an_empty_batch_and_loses_nothing(
    queue: Queue, restart: Restart, clock: ManualClock
) -> None:
    queue.send_batch([SendEntry(body) for body in "ab"])
    reader = restart()
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    reader = restart()
    clock.advance(61)
    taken = queue.receive(10)
    assert len(taken) == 2 and bodies(reader, start, end) == []
    assert reader.latestOffset(stored(end)) == end
    assert queue.counts().in_flight == 2
    clock.advance(61)
    again = reader.latestOffset(stored(end))
    assert bodies(reader, end, again) == ["a", "b"]


@pytest.mark.spec("VIS-9")
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_batch_that_is_repeated_after_twelve_hours_comes_again(
    queue: Queue, restart: Restart, clock: ManualClock, restarts: int
) -> None:
    queue.send("a")
    reader = restart(leaseSeconds=0)
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    reader = restart(leaseSeconds=0)
    clock.advance(12 * 3600 + 1)
    assert bodies(reader, start, end) == []
    if restarts == 2:
        reader = restart(leaseSeconds=0)
    again = reader.latestOffset(stored(end))
    assert bodies(reader, end, again) == ["a"]


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.spec("TAB-31")
@pytest.mark.parametrize("step", ["claimed", "before the commit", "committed"])
def test_the_table_decides_about_a_delivery_that_was_interrupted(
    queue: Queue, restart: Restart, tmp_path: Path, monkeypatch: Patch, step: str
) -> None:
    table = tmp_path / "table"
    queue.set_attributes(table=str(table))
    queue.send_batch([SendEntry("1"), SendEntry("2")])
    options: Any = {"delivers": "true", "leaseSeconds": 0}
    reader = restart(**options)
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    assert bodies(reader, start, end) == ["1", "2"]
    held = frame_verbs.held_lease(queue, end["lease"])
    assert held is not None
    first = frame_verbs.lease_of_handle(queue, held.arrow()["receipt_handle"][0].as_py())
    rows = [{"id": 1}, {"id": 2}]
    assert first is not None
    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        owner, name = (OpenedDeliveryTable, "read") if step == "committed" else (DeltaDeliverySnapshot, "append")
        patched.setattr(owner, name, interrupted)
        if step != "claimed":
            first.append(rows)
    reader = restart(**options)
    assert bodies(reader, start, end) == []
    again = reader.latestOffset(stored(end))
    assert (again == end) == (step == "committed")
    with pytest.raises(LeaseLost):  # the driver of before, which goes on
        first.append(rows)
    with pytest.raises(LeaseLost):
        first.release()
    for row in rows if step != "committed" else ():  # in halves, as one of them may have killed the driver
        assert bodies(reader, end, again) == [str(row["id"])]
        half = frame_verbs.held_lease(queue, again["lease"])
        assert half is not None and half.append([row]) == 1
        end, again = again, reader.latestOffset(stored(again))
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist()) == [1, 2]
    assert (queue.counts().visible, queue.counts().in_flight, queue.counts().undecided) == (0, 0, 0)


@pytest.mark.spec("TAB-31")
def test_a_table_that_cannot_be_reached_keeps_the_messages_of_an_interrupted_delivery(
    queue: Queue, restart: Restart, tmp_path: Path, clock: ManualClock
) -> None:
    table, away = tmp_path / "table", tmp_path / "away"
    queue.set_attributes(table=str(table))
    queue.send("0")
    lease = queue.lease()
    assert lease is not None and lease.append([{"id": 0}]) == 1  # records the table
    queue.send("1")
    options: Any = {"delivers": "true", "leaseSeconds": 0}
    reader = restart(**options)
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    table.rename(away)
    for _ in range(2):  # also at a later restart
        reader = restart(**options)
        assert bodies(reader, start, end) == []
        assert reader.latestOffset(stored(end)) == end
        assert queue.counts().in_flight + queue.counts().undecided == 1
    clock.advance(61)
    away.rename(table)
    again = reader.latestOffset(stored(end))
    assert bodies(reader, end, again) == ["1"]


@pytest.mark.spec("TAB-26", "TAB-31")
@pytest.mark.parametrize("appended", [False, True])
def test_available_now_without_its_checkpoint_decides_the_delivery_of_a_dead_driver(
    queue: Queue, restart: Restart, tmp_path: Path, clock: ManualClock, monkeypatch: Patch, appended: bool
) -> None:
    table = tmp_path / "table"
    queue.set_attributes(table=str(table))
    queue.send("0")
    lease = queue.lease()
    assert lease is not None and lease.append([{"id": 0}]) == 1  # records the table
    queue.send("1")
    dead = queue.lease()
    assert dead is not None
    if appended:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(OpenedDeliveryTable, "read", interrupted)
            dead.append([{"id": 1}])
    clock.advance(61)
    assert (queue.counts().visible, queue.counts().undecided) == (0, 1)
    reader = restart(delivers="true")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    assert bodies(reader, start, reader.latestOffset(start)) == ([] if appended else ["1"])
    assert queue.counts().undecided == 0


@pytest.mark.spec("TAB-31")
def test_available_now_delivers_what_an_interrupted_delivery_left(
    queue: Queue, restart: Restart, tmp_path: Path
) -> None:
    queue.set_attributes(table=str(tmp_path / "table"))
    queue.send("1")
    options: Any = {"delivers": "true", "leaseSeconds": 0}
    reader = restart(**options)
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    reader = restart(**options)
    reader.prepareForTriggerAvailableNow()
    assert bodies(reader, start, end) == []
    assert bodies(reader, end, reader.latestOffset(stored(end))) == ["1"]


def delete_what_a_delivery_holds(patch: Patch) -> None:
    from lakequeue.spark.source import StreamLeases

    commit = StreamLeases.commit

    def deleting(leases: StreamLeases, end: Offset) -> None:
        options, leases._options = leases._options, attrs.evolve(leases._options, delivers=False)
        try:
            commit(leases, end)
        finally:
            leases._options = options

    patch.setattr(StreamLeases, "commit", deleting)


def resume_without_the_table(patch: Patch) -> None:
    patch.setattr(frame_verbs, "resumed_lease", lambda queue, lease_id, _: frame_verbs.held_lease(queue, lease_id))


def decide_nothing(patch: Patch) -> None:
    patch.setattr(frame_verbs, "decide_all", lambda queue: None)


MUTATIONS = [
    Mutation(
        "a stream deletes the messages of a delivery",
        delete_what_a_delivery_holds,
        {
            shown_by(
                test_a_table_that_cannot_be_reached_keeps_the_messages_of_an_interrupted_delivery,
                lambda queue, restart, folder, clock, _: (queue, restart, folder, clock),
            ): "TAB-31"
        },
    ),
    Mutation(
        "an interrupted batch of a delivery comes again, whatever its table has",
        resume_without_the_table,
        {
            shown_by(
                test_the_table_decides_about_a_delivery_that_was_interrupted,
                lambda queue, restart, folder, _, patch: (queue, restart, folder, patch, "committed"),
            ): "TAB-31"
        },
    ),
    Mutation(
        "a stream with availableNow decides nothing",
        decide_nothing,
        {
            shown_by(
                test_available_now_without_its_checkpoint_decides_the_delivery_of_a_dead_driver,
                lambda queue, restart, folder, clock, patch: (queue, restart, folder, clock, patch, False),
            ): "TAB-26"
        },
    ),
]


@each_case(MUTATIONS)
def test_a_stream_leaves_its_deliveries_to_the_table(
    case: Case, queue: Queue, restart: Restart, tmp_path: Path, clock: ManualClock
) -> None:
    case.run(lambda patch: (queue, restart, tmp_path, clock, patch))


@pytest.mark.spec("TAB-31")
def test_a_stream_without_deliveries_deletes_its_batches_on_a_queue_with_a_table(
    queue: Queue, restart: Restart, tmp_path: Path
) -> None:
    queue.set_attributes(table=str(tmp_path / "table"))
    queue.send("1")
    reader = restart()
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    assert bodies(reader, start, end) == ["1"]
    assert bodies(restart(), start, end) == ["1"]
    assert restart().latestOffset(stored(end)) == end
    assert (queue.counts().visible, queue.counts().in_flight, queue.counts().undecided) == (0, 0, 0)


def test_a_checkpoint_of_another_kind_of_stream_is_refused(restart: Restart) -> None:
    with pytest.raises(InvalidOptions, match="checkpointLocation: the checkpoint is of another kind"):
        restart().latestOffset({"offset": 1})


@pytest.mark.parametrize("name", ["others", "orders"], ids=["another queue", "one deleted and created anew"])
def test_a_checkpoint_of_another_queue_is_refused(
    queue: Queue, restart: Restart, monkeypatch: Patch, name: str
) -> None:
    queue.send("a")
    end, lq = restart().latestOffset({"lease": ""}), LakeQueue(place_of(queue), clock=queue.clock)
    lq.delete_queue("orders")
    other = lq.create_queue(name)
    other.send("b")
    monkeypatch.setattr(SourceOptions, "open_queue", lambda options: other)
    for refused in lambda: restart().latestOffset(stored(end)), lambda: restart().partitions({"lease": ""}, end):
        with pytest.raises(InvalidOptions, match=f"checkpointLocation: .* another queue than {name}, or of one"):
            refused()
    assert other.counts().visible == 1


def test_a_batch_that_ended_before_the_restart_is_deleted_by_the_next_run(queue: Queue, restart: Restart) -> None:
    queue.send("a")
    reader = restart()
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    assert bodies(reader, start, end) == ["a"]
    assert restart().latestOffset(stored(end)) == end
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)


def test_an_idle_stream_commits_nothing_and_looks_twice_a_second(
    queue: Queue, restart: Restart, clock: ManualClock, monkeypatch: Patch
) -> None:
    from lakequeue.operations.claim import ClaimPlan

    reader, looks, claim = restart(), 0, ClaimPlan.run

    def counted(plan: ClaimPlan) -> Any:
        nonlocal looks
        looks += 1
        return claim(plan)

    monkeypatch.setattr(ClaimPlan, "run", counted)
    version = queue._runtime.shards[0].ledger.query(lambda machine: machine.head.epoch)
    for _ in range(100):
        assert reader.latestOffset(reader.initialOffset()) == reader.initialOffset()
        clock.advance(0.01)
    assert looks == 2
    assert queue._runtime.shards[0].ledger.query(lambda machine: machine.head.epoch) == version


def test_available_now_ends_although_messages_keep_coming(queue: Queue, restart: Restart) -> None:
    queue.send_batch([SendEntry(body) for body in "abcde"])
    reader = restart(maxMessages=2)
    reader.prepareForTriggerAvailableNow()
    offset, batches = reader.initialOffset(), 0
    while (end := reader.latestOffset(offset)) != offset:
        queue.send("more")
        assert bodies(reader, offset, end)
        offset, batches = end, batches + 1
    assert batches == 3 and queue.counts().in_flight == 0
    assert queue.counts().visible == 3


def test_offsets_hold_no_secret_and_stay_small(queue: Queue, restart: Restart) -> None:
    queue.send_batch([SendEntry("x" * 1000) for _ in range(1000)])
    end = restart().latestOffset({"lease": ""})
    assert len(json.dumps(end)) < 300
    assert queue._runtime.row.handle_key.hex() not in json.dumps(end)


def test_spark_before_4_2_gives_no_start(queue: Queue, restart: Restart) -> None:
    queue.send_batch([SendEntry(body) for body in "abc"])
    reader = restart(maxMessages=2)
    first = reader.latestOffset()
    assert bodies(reader, reader.initialOffset(), first) == ["a", "b"]
    second = reader.latestOffset()
    assert second != first and queue.counts().in_flight == 1
    assert bodies(reader, first, second) == ["c"]
    assert reader.latestOffset() == second and queue.counts().in_flight == 0


def test_a_queue_that_is_deleted_ends_the_stream(queue: Queue, restart: Restart) -> None:
    queue.send("a")
    reader = restart()
    end = reader.latestOffset(reader.initialOffset())
    LakeQueue(place_of(queue), clock=queue.clock).delete_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        reader.latestOffset(end)


# --- through Spark


@pytest.fixture
def handled(spark: SparkSession, queue: Queue, tmp_path: Path) -> Callable[..., list[list[str]]]:
    """Runs a stream to its end; the bodies of its batches."""

    def run(trigger: dict[str, Any], **options: object) -> list[list[str]]:
        batches: list[list[str]] = []
        rows = spark.readStream.format("lakequeue").option("root", place_of(queue))
        for name, value in ({"queue": "orders"} | options).items():
            rows = rows.option(name, str(value))

        def handle(messages: Any, batch: int) -> None:
            batches.append(sorted(row.body for row in messages.collect()))

        writer = rows.load().writeStream.foreachBatch(handle).trigger(**trigger)
        started(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start).awaitTermination()
        return batches

    return run


@pytest.mark.spark
@pytest.mark.core
def test_available_now_reads_all_batches_and_deletes_them(
    tmp_path: Path, spark: SparkSession, handled: Callable[..., list[list[str]]]
) -> None:
    queue = LakeQueue(str(tmp_path / "root")).queue("orders")
    queue.send_batch([SendEntry(body, attributes={"n": 1}) for body in "abcde"])
    assert handled({"availableNow": True}, maxMessages=3) == [["a", "b", "c"], ["d", "e"]]
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)
    assert handled({"availableNow": True}) == []


@pytest.mark.spark
def test_a_batch_whose_handler_fails_is_repeated_with_the_same_messages(
    tmp_path: Path, spark: SparkSession, queue: Queue
) -> None:
    from pyspark.errors import StreamingQueryException

    orders = LakeQueue(str(tmp_path / "root")).queue("orders")
    orders.send_batch([SendEntry(body) for body in "abc"])
    batches: list[tuple[int, list[str]]] = []

    def handle(messages: Any, batch: int) -> None:
        batches.append((batch, sorted(row.body for row in messages.select("body").collect())))
        assert len(batches) > 1, "boom"
        assert orders.counts().in_flight == len(batches[-1][1])  # of this batch only

    rows = spark.readStream.format("lakequeue").options(root=place_of(orders), queue="orders")
    writer = rows.option("maxMessages", 2).load().writeStream.foreachBatch(handle)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="boom"):
        started(writer.start).awaitTermination()
    orders.send("d")
    query = started(writer.start)
    # the last batch is deleted although no other one follows
    wait_until(lambda: orders.counts().visible == orders.counts().in_flight == 0, "the deletion")
    query.stop()
    assert batches == [(0, ["a", "b"]), (0, ["a", "b"]), (1, ["c", "d"])]


@pytest.mark.spark
def test_some_columns_by_a_schema(tmp_path: Path, spark: SparkSession, queue: Queue) -> None:
    orders = LakeQueue(str(tmp_path / "root")).queue("orders")
    orders.send("a", attributes={"n": 1})
    rows = spark.readStream.format("lakequeue").options(root=place_of(orders), queue="orders")
    found: list[Any] = []
    stream = rows.schema("state string, body string, queue string").load()
    writer = stream.writeStream.foreachBatch(lambda messages, _: found.extend(messages.collect()))
    started(writer.trigger(availableNow=True).start).awaitTermination()
    assert [row.asDict() for row in found] == [{"state": "in_flight", "body": "a", "queue": "orders"}]


@pytest.mark.spark
def test_wrong_options_are_one_line(spark: SparkSession, queue: Queue) -> None:
    from pyspark.errors import AnalysisException

    def refused(said: str, **options: str) -> None:
        with pytest.raises(AnalysisException) as caught:
            spark.readStream.format("lakequeue").options(**options).load()
        assert "Traceback" not in str(caught.value)
        found = error_in(str(caught.value))
        assert found is not None and said in str(found), found

    root = place_of(queue)
    refused("option root is missing")
    refused("option sendId is not known here; there are root, queue", root=root, queue="orders", sendId="x")
    refused("option maxMessages is 0, it must be", root=root, queue="orders", max_messages="0")
    refused("option leaseSeconds is x, it must be", root=root, queue="orders", leaseSeconds="x")
    refused("queue other: The specified queue does not exist", root=root, queue="other")
