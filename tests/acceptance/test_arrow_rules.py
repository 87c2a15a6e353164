"""The rules for rows of a bulk send, which tasks of Spark check in the same way."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakequeue import LakeQueue
from lakequeue.errors import InvalidParameterValue

STRUCT = pa.struct([("type", pa.string()), ("string_value", pa.string()), ("binary_value", pa.binary())])
TYPED = pa.map_(pa.string(), STRUCT)
TEXTS = pa.map_(pa.string(), pa.string())
S = pa.string()


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
WHOLE_ROWS = '; to_json(struct(*)) in Spark, or body="*" in send_arrow, makes a body of each row.'
REFUSED = {
    "bodies": "2 rows have no body (SND-1); 4 rows have characters that are not allowed (SND-12).",
    "delays": "4 rows have a delay_seconds outside 0..900 (DLY-3).",
    "whole delays": "2 rows have a delay_seconds outside 0..900 (DLY-3).",
    "groups": "6 rows have an invalid group_id (SND-13).",
    "ids": "9 rows have a dedup_id, which standard queues refuse (SND-14).",
    "names": "9 rows break the rules for message attributes (MSA-3).",
    "texts": "6 rows break the rules for message attributes (MSA-3).",
    "values": "24 rows break the rules for message attributes (MSA-3).",
    "two values": "24 rows break the rules for message attributes (MSA-3).",
    "too many": "1 row breaks the rules for message attributes (MSA-3).",
    "long names": "1 row is longer than 1024 bytes (SND-2).",
    "everything": "1 row has no body (SND-1); 1 row breaks the rules for message attributes (MSA-3); "
    "2 rows have a delay_seconds outside 0..900 (DLY-3); 1 row has an invalid group_id (SND-13); "
    "1 row has a dedup_id, which standard queues refuse (SND-14); "
    "1 row has characters that are not allowed (SND-12).",
    "unknown": "Columns a, b are not known",
    "no body": f"The column body is missing{WHOLE_ROWS}",
    "a body of numbers": f"The column body is bigint, it must be string{WHOLE_ROWS}",
    "attributes of numbers": "The column message_attributes is map<string,bigint>, it must be map<string,string>",
    "a delay of text": "The column delay_seconds is string, it must be a number of seconds.",
}
FIFO_REFUSED = {
    "groups": "7 rows have no valid group_id (SND-4).",
    "ids": "6 rows have an invalid dedup_id (SND-13); 1 row has no dedup_id (SND-5).",
    "no ids": "2 rows have no dedup_id (SND-5).",
    "delays": "2 rows have a delay, which FIFO queues refuse (SND-6).",
    "no groups": "The column group_id is missing; every message of a FIFO queue has a group.",
}


@pytest.mark.parametrize(("fifo", "case"), [(False, case) for case in STANDARD] + [(True, case) for case in FIFO])
def test_rows_that_break_rules_are_counted(lq: LakeQueue, fifo: bool, case: str) -> None:
    rows, text = (FIFO[case], FIFO_REFUSED[case]) if fifo else (STANDARD[case], REFUSED[case])
    given = {"fifo": True} if fifo else {"profile": "sqs", "maximum_message_size": 1_024}
    queue = lq.create_queue("orders.fifo" if fifo else "orders", **given)
    with pytest.raises(InvalidParameterValue) as caught:
        queue.send_arrow(rows)
    assert str(caught.value).removeprefix("Nothing was sent: ").startswith(text)
    assert queue.counts().visible == 0
