"""Leases read as Arrow, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from lakequeue import (
    InvalidParameterValue,
    LakeQueue,
    Lease,
    LeaseCounts,
    Queue,
    QueueClientError,
    ReceiptHandleIsInvalid,
    SendEntry,
)
from lakequeue.model import receipt_handles
from lakequeue.operations import lease as operations
from lakequeue.storage.bulk import lease_batches
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace


def sent(queue: Queue, count: int, **given: Any) -> None:
    queue.send_batch([SendEntry(body=f"body {number}", **given) for number in range(count)])


def leased(queue: Queue, **given: Any) -> Lease:
    lease = queue.lease(**given)
    assert lease is not None
    return lease


def operations_of(lease: Lease) -> operations.LeasedMessages:
    return lease._runtime


@pytest.mark.spec("RCP-9", "SEQ-1")
def test_a_lease_is_read_without_spark(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True, shards=3, deduplication_scope="message_group")
    attributes = {"text": "ü", "number": 7, "bytes": b"\x00"}
    for number in range(9):
        queue.send(f"body {number}", group_id=f"group {number}".replace(" ", "-"), dedup_id=f"d{number}",
                   attributes=attributes)  # fmt: skip
        clock.advance(1)
    lease = leased(queue)
    table = lease.arrow()
    assert table.schema == lease_batches.SCHEMA
    table.validate(full=True)
    found = {row["body"]: row for row in table.to_pylist()}
    assert found.keys() == {f"body {number}" for number in range(9)}
    row = found["body 4"]
    assert dict(row["message_attributes"]) == {
        "text": {"type": "String", "string_value": "ü", "binary_value": None},
        "number": {"type": "Number", "string_value": "7", "binary_value": None},
        "bytes": {"type": "Binary", "string_value": None, "binary_value": b"\x00"},
    }
    assert (row["group_id"], row["dedup_id"], row["receive_count"]) == ("group-4", "d4", 1)
    lease.release()
    for message in queue.receive(max_messages=9):  # tells the same of each message, but for the receipt
        row = found[message.body]
        assert row["message_id"] == message.message_id
        assert row["sent_at"] == message.sent_at
        assert row["sequence_number"] == message.sequence_number


@pytest.mark.spec("RCP-9")
def test_its_handles_are_those_of_the_lease(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", shards=2)
    sent(queue, 20)
    lease = leased(queue)
    row = queue._runtime.row
    for each in lease.arrow(["receipt_handle", "shard", "offset"]).to_pylist():
        handle = receipt_handles.decode(each["receipt_handle"], row.key, row.handle_key)
        assert (handle.shard, handle.offset) == (each["shard"], each["offset"])
    [kept] = [each for each in lease.arrow().to_pylist() if each["body"] == "body 7"]
    assert lease.delete_except([kept["receipt_handle"]]) == LeaseCounts(19, 0, 1)
    [message] = queue.receive(max_messages=10)
    assert (message.body, message.receive_count) == ("body 7", 2)


def test_what_is_left_between_settled_messages_is_read_in_one_pass_a_file(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    sent(queue, 50)
    handles = [message.receipt_handle for message in queue.receive(max_messages=50)]
    queue.delete_batch(handles[::3])
    for handle in handles[1::3]:
        queue.change_visibility(handle, 0)
    places, _ = operations.stored(operations_of(first := leased(queue)))
    assert len(places) == 17 and len(lease_batches.files_of(places)) == 1
    assert [*first.batches()][0]["body"].to_pylist() == [f"body {number}" for number in range(1, 50, 3)]
    first.release()
    for handle in handles[2::3]:
        queue.change_visibility(handle, 0)
    rest = leased(queue).arrow(["body", "receive_count", "offset"])
    assert rest["offset"].to_pylist() == [offset for offset in range(50) if offset % 3]
    assert rest["receive_count"].to_pylist() == [3 if offset % 3 == 1 else 2 for offset in range(50) if offset % 3]
    assert rest["body"].to_pylist() == [f"body {offset}" for offset in range(50) if offset % 3]


def test_another_process_reads_a_place_from_values_alone(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", shards=2)
    sent(queue, 10)
    values = pickle.dumps(operations.stored(operations_of(leased(queue))))
    places, columns = pickle.loads(values)
    bodies = []
    for place in places:
        for batch in lease_batches.read_places(Store(lq.root), [[place]], columns, ["body"]):
            assert batch.schema.names == ["body"]
            bodies += batch["body"].to_pylist()
    assert sorted(bodies) == sorted(f"body {number}" for number in range(10))


def test_columns_are_chosen_and_unknown_ones_refused(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    sent(queue, 1)
    lease = leased(queue)
    assert lease.arrow("body").to_pylist() == [{"body": "body 0"}]
    assert lease.arrow(["offset", "body"]).column_names == ["offset", "body"]
    with pytest.raises(InvalidParameterValue, match="^columns a, b are not known; a lease has message_id, "):
        lease.batches(["b", "body", "a"])


@pytest.mark.spec("RCP-9", "DEL-1")
@pytest.mark.parametrize(
    "of",
    [
        lambda failed: failed,
        lambda failed: failed.to_reader(),
        lambda failed: failed["receipt_handle"],
        lambda failed: failed["receipt_handle"].combine_chunks(),
        lambda failed: failed.to_pandas(),
        lambda failed: failed.to_pandas()["receipt_handle"],
        pl.from_arrow,
        lambda failed: pl.from_arrow(failed)["receipt_handle"],
        lambda failed: duckdb.from_arrow(failed),
        lambda failed: iter(failed["receipt_handle"].to_pylist()),
        lambda failed: failed.select(["message_id"]),
        lambda failed: failed["message_id"].to_pylist(),
    ],
)
def test_failed_messages_may_be_any_object_that_exports_arrow(lq: LakeQueue, of: Any) -> None:
    queue = lq.create_queue("orders")
    sent(queue, 5)
    lease = leased(queue)
    table = lease.arrow()
    assert lease.delete_except(of(table.slice(1, 2))) == LeaseCounts(3, 0, 2)
    assert [message.body for message in queue.receive(max_messages=5)] == ["body 1", "body 2"]


def reasons(found: pa.Table, texts: list[str | None]) -> pa.Table:
    return found.select(["message_id", "receipt_handle"]).append_column("reason", pa.array(texts, pa.string()))


@pytest.mark.spec("JOB-10", "DLQ-2")
@pytest.mark.parametrize(
    "of",
    [
        lambda failed: failed,
        lambda failed: failed.drop(["receipt_handle"]),
        pl.from_arrow,
        lambda failed: dict(zip(failed["message_id"].to_pylist(), failed["reason"].to_pylist(), strict=True)),
        lambda failed: zip(failed["receipt_handle"].to_pylist(), failed["reason"].to_pylist(), strict=True),
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_what_failed_may_say_why(lq: LakeQueue, of: Any, shards: int) -> None:
    dead = lq.create_queue("dead")
    queue = lq.create_queue("orders", dead_letter_queue="dead", max_receive_count=2, shards=shards)
    sent(queue, 6)
    lease = leased(queue)
    table = lease.arrow().sort_by("body")
    failed = reasons(table.slice(1, 3), ["no number", None, "é" * 2_000])
    assert lease.delete_except(of(failed)) == LeaseCounts(3, 0, 3)
    found = {each.body: each.attempts[-1] for each in queue.peek(limit=10)}
    assert {body: (each.error, each.text) for body, each in found.items()} == {
        "body 1": ("Outcome.FAILED", "no number"),
        "body 2": ("Outcome.FAILED", ""),
        "body 3": ("Outcome.FAILED", "é" * 512),
    }
    lease = leased(queue)
    assert lease.delete_except([(handle, "again") for handle in lease.arrow()["receipt_handle"].to_pylist()])
    assert queue.receive() == []
    letters = dead.peek(limit=10)
    assert {str(each.dead_letter_reason).partition(" (")[0] for each in letters} == {"Outcome.FAILED: again"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda failed: reasons(failed, [None]).set_column(2, "reason", pa.array([5])), "the reason of failed"),
        (lambda failed: [(failed["message_id"][0].as_py(), 5)], "the reason of failed"),
        (lambda failed: [(failed["message_id"][0].as_py(), "a", "b")], "failed"),
        (lambda failed: {5: "a"}, "failed"),
        (lambda failed: [()], "failed"),
        (lambda failed: 5, "failed"),
        (lambda failed: pa.table({"message_id": pa.array([None], pa.string())}), "failed"),
    ],
)
def test_reasons_that_are_no_texts_are_refused_and_nothing_is_deleted(
    lq: LakeQueue, wrong: Any, said: str
) -> None:
    queue = lq.create_queue("orders")
    sent(queue, 1)
    lease = leased(queue)
    with pytest.raises(InvalidParameterValue, match=said):
        lease.delete_except(wrong(lease.arrow()))
    assert lease.release().done == 1


def test_rows_without_handles_are_refused_and_nothing_is_deleted(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    sent(queue, 1)
    lease = leased(queue)
    with pytest.raises(InvalidParameterValue, match="^The column receipt_handle or message_id is missing.$"):
        lease.delete_except(lease.arrow(["body"]))
    with pytest.raises(ReceiptHandleIsInvalid):
        lease.delete_except(pa.table({"receipt_handle": ["x"]}))
    with pytest.raises(InvalidParameterValue, match="It is of no message of the lease."):
        lease.delete_except([queue.send("of another lease").message_id])
    assert lease.release().done == 1


def test_a_missing_file_is_reported_in_one_line(lq: LakeQueue, tmp_path: Path) -> None:
    queue = lq.create_queue("orders")
    sent(queue, 1)
    lease = leased(queue)
    reader = lease.batches()
    for path in tmp_path.glob("root/q/*/0/messages/**/*.parquet"):
        path.unlink()
    with pytest.raises(QueueClientError, match="root: .*") as caught:
        reader.read_all()
    assert "\n" not in str(caught.value)


def test_a_lease_on_an_object_store_is_read_without_spark(s3_root: str) -> None:
    queue = LakeQueue(s3_root).create_queue("orders")
    sent(queue, 3)
    table = leased(queue).arrow()
    assert isinstance(table, pa.Table)
    assert table["body"].to_pylist() == ["body 0", "body 1", "body 2"]


def a_wrong_program_hands_back_all(lq: LakeQueue) -> None:
    from pyspark.errors import AnalysisException

    from lakequeue.spark.streams import process_lease

    def work() -> None:
        raise AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] The table or view `nowhere` cannot be found.")

    queue = lq.create_queue("orders", dead_letter_queue=lq.create_queue("dead").name, max_receive_count=1)
    sent(queue, 4)
    for _ in range(2):
        lease = leased(queue)
        assert lease.message_count == 4
        try:
            process_lease(lease, work)
        except AnalysisException:
            continue
        raise AssertionError("it comes in halves")
    assert {message.receive_count for message in queue.receive(max_messages=4)} == {1}


MUTATIONS = [
    Mutation(
        "take every error for one of messages",
        replace("lakequeue.spark.faults.of_program", lambda error: False),
        {a_wrong_program_hands_back_all: "DLQ-12"},
    ),
]


@each_case(MUTATIONS)
def test_errors_of_a_program_differ_from_errors_of_messages(case: Case, lq: LakeQueue) -> None:
    case.run(lambda _: (lq,))
