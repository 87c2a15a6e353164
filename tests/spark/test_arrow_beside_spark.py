"""Rows through Arrow and through Spark: the same refusals, the same messages, the same columns of a lease."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakequeue import LakeQueue, Queue, QueueServiceError
from lakequeue.storage.bulk.message_rules import ATTRIBUTES
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

STRUCT = pa.struct([("type", pa.string()), ("string_value", pa.string()), ("binary_value", pa.binary())])
SPARK_TYPES = {
    pa.string(): "string",
    pa.float64(): "double",
    pa.int64(): "bigint",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
    pa.map_(pa.string(), STRUCT): ATTRIBUTES,
}
TYPED = pa.map_(pa.string(), STRUCT)
TEXTS = pa.map_(pa.string(), pa.string())
S = pa.string()


def typed(**values: Any) -> list[tuple[str, Any]]:
    names = ("type", "string_value", "binary_value")
    return [(name, value and dict(zip(names, value, strict=True))) for name, value in values.items()]


IDS = ["g", "x" * 128, "x" * 129, "", "two words", "ü", "tab\t", "end\n", "!~", None]
BODIES = [
    None,
    "",
    "b",
    "ü" * 8,
    "ü" * 7,
    "\x00",
    "a\x0b",
    "\x1f",
    "\t\n\r ",
    "\x7f\x9f",
    "\ufffd",
    "\ufffe",
    "\U0010ffff",
]
NUMBERS = ["1", "-1.5", "+.5e-3", "1.", ".", "1e", "x", "", "1\n", "١"]
TYPES = [
    "String",
    "Number",
    "Binary",
    "String.x",
    "String.",
    "string",
    "Strings",
    "Number.\x01",
    "String.a\n",
    "",
    None,
]
NAMES = ["a", "A_b-c.d9", ".a", "a.", "a..b", "aws.x", "AMAZON.y", "awsx", "ü", "x" * 256, "x" * 257, "a\n", ""]
VALUES = [
    *({"type": name, "string_value": "1", "binary_value": None} for name in TYPES),
    *({"type": "Number", "string_value": text, "binary_value": None} for text in NUMBERS),
    *({"type": "String", "string_value": text, "binary_value": None} for text in BODIES),
    {"type": "String", "string_value": "a", "binary_value": b"a"},
    {"type": "Binary", "string_value": None, "binary_value": b""},
    {"type": "Binary", "string_value": None, "binary_value": b"\x00"},
    {"type": "Binary", "string_value": "a", "binary_value": b"\x00"},
    {"type": "Binary.png", "string_value": None, "binary_value": b"\x00"},
    None,
]


def column(values: list[Any], type_: pa.DataType, name: str, **others: Any) -> pa.Table:
    """A column of values beside a body, and more columns with one value each."""
    columns = {other: pa.array([value] * len(values)) for other, value in ({"body": "b"} | others).items()}
    return pa.table(columns | {name: pa.array(values, type_)})


STANDARD = {
    "bodies": column(BODIES, S, "body"),
    "delays": column([0.0, 900.0, 900.5, -1e-9, float("nan"), float("inf"), None], pa.float64(), "delay_seconds"),
    "whole delays": column([0, 901, -1, None], pa.int64(), "delay_seconds"),
    "groups": column(IDS, S, "group_id"),
    "ids": column(IDS, S, "dedup_id"),
    "names": column([[(name, "v")] for name in NAMES], TEXTS, "message_attributes"),
    "texts": column([[("a", text)] for text in BODIES], TEXTS, "message_attributes"),
    "values": column([[("a", value)] for value in VALUES], TYPED, "message_attributes"),
    "two values": column(
        [[("a", VALUES[0]), ("b", value)] for value in VALUES] + [[], None], TYPED, "message_attributes"
    ),
    "too many": column(
        [[(f"n{n}", "v") for n in range(count)] for count in (0, 10, 11)], TEXTS, "message_attributes"
    ),
    "long names": column(  # 1,010 bytes and those of name, "String" and value
        [[("k" * 9, "v")], [("k", "v")], None, [("k" * 7, "v")]], TEXTS, "message_attributes", body="x" * 1_010
    ),
    "everything": pa.table(
        {
            "body": pa.array([None, "\x00", "x" * 99], S),
            "delay_seconds": pa.array([1e9, 0.0, -1.0]),
            "group_id": pa.array(["", "g", "g"], S),
            "dedup_id": pa.array(["d", None, None], S),
            "message_attributes": pa.array([[("", "")], None, []], TEXTS),
        }
    ),
    "unknown": pa.table({"body": pa.array(["b"]), "b": pa.array([1]), "a": pa.array([1])}),
    "no body": pa.table({"delay_seconds": pa.array([1])}),
    "a body of numbers": pa.table({"body": pa.array([1])}),
    "attributes of numbers": column([[("a", 1)]], pa.map_(S, pa.int64()), "message_attributes"),
    "a delay of text": column(["1"], S, "delay_seconds"),
}
FIFO = {
    "groups": column(IDS, S, "group_id", dedup_id="d"),
    "ids": column(IDS, S, "dedup_id", group_id="g"),
    "no ids": column(["a", "b"], S, "body", group_id="g"),
    "no groups": column(["a", "b"], S, "body", dedup_id="d"),
    "delays": column([0.0, 1.0, None, float("nan")], pa.float64(), "delay_seconds", group_id="g", dedup_id="d"),
}


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    schema = ", ".join(f"{field.name} {SPARK_TYPES.get(field.type, str(field.type))}" for field in table.schema)
    schema = schema.replace("map<string, int64>", "map<string,bigint>")
    rows = [
        tuple(dict(value) if isinstance(value, list) else value for value in row.values())
        for row in table.to_pylist()
    ]
    return spark.createDataFrame(rows, schema)


def refusal(send: Any) -> tuple[str, str]:
    with pytest.raises(QueueServiceError) as caught:
        send()
    return type(caught.value).__name__, str(caught.value)


def check(spark: SparkSession, queue: Queue, table: pa.Table) -> None:
    through_spark = refusal(lambda: queue.send_dataframe(frame(spark, table)))
    assert refusal(lambda: queue.send_arrow(table)) == through_spark
    assert queue.counts().visible == 0


@pytest.mark.parametrize("case", STANDARD)
def test_arrow_refuses_what_spark_refuses_in_the_same_words(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    lq = LakeQueue(str(tmp_path), spark=spark)
    check(spark, lq.create_queue("orders", profile="sqs", maximum_message_size=1_024), STANDARD[case])


@pytest.mark.parametrize("case", FIFO)
def test_arrow_refuses_rows_of_fifo_queues_likewise(spark: SparkSession, tmp_path: Path, case: str) -> None:
    check(spark, LakeQueue(str(tmp_path), spark=spark).create_queue("orders.fifo", fifo=True), FIFO[case])


@pytest.mark.core
def test_both_ways_send_and_lease_the_same_messages(spark: SparkSession, tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=ManualClock())
    table = pa.table(
        {
            "body": pa.array([f"body {number}" for number in range(300)]),
            "delay_seconds": pa.array([None, 0.0, 0.5] * 100),
            "group_id": pa.array(["g", None] * 150),
            "message_attributes": pa.array(
                [typed(b=("Binary", None, b"\x00"), k=("String", "v", None)), None, []] * 100, TYPED
            ),
        }
    )
    found = []
    for name in ("spark", "arrow"):
        queue = lq.create_queue(name)
        if name == "spark":
            assert queue.send_dataframe(frame(spark, table).coalesce(1), send_id="load") == 300
        else:
            assert queue.send_arrow(table, send_id="load") == 300
        lq.clock.advance(1)
        lease = queue.lease()
        assert lease is not None
        own = lease.messages.orderBy("offset").toArrow()
        assert lease.arrow().cast(own.schema).equals(own)
        found.append(lease.arrow().drop_columns(["receipt_handle", "sent_at"]))
    assert found[0].to_pylist() == found[1].to_pylist()
