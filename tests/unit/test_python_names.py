"""Errors have Python's names in Python, and SQS names only on the wire."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import lakequeue
from lakequeue import LakeQueue, Message, Queue, RedriveAllowPolicy, RedrivePolicy, SendEntry, errors
from lakequeue.serve.errors import wire_message
from wire_names import WIRE_NAMES

NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)
SQL = re.compile(r"\(attributes| AS (BIGINT|DOUBLE)\)")
"""What shows that a text is a statement."""


class Refusing:
    """A root with queues that refuse."""

    def __init__(self, root: str) -> None:
        self.lake = LakeQueue(root, engine="point")
        self.orders = self.lake.create_queue("orders", rewind_range=60)
        self.fifo = self.lake.create_queue("orders.fifo", fifo=True)
        self.sqs = self.lake.create_queue("strict", profile="sqs")
        self.lake.create_queue("closed", redrive_allow_policy=RedriveAllowPolicy("denyAll"))

    def received(self) -> Message:
        self.orders.send("x")
        return self.orders.receive()[0]

    def full(self) -> Queue:
        queue = self.lake.create_queue("full", max_stored_messages=1, update=True)
        queue.send("x")
        return queue


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Refusing:
    return Refusing(str(tmp_path_factory.mktemp("names") / "root"))


REFUSALS: list[tuple[Callable[[Any], Any], str, str]] = [
    # what Python says, and what SQS clients read
    (lambda r: r.sqs.receive(11), "Value 11 for parameter max_messages is", "parameter MaxNumberOfMessages is"),
    (lambda r: r.orders.receive(wait_time=21), "Value 21 for parameter wait_time", "parameter WaitTimeSeconds"),
    (
        lambda r: r.orders.receive(visibility_timeout=43_201),
        "Value 43201 for parameter visibility_timeout is invalid. Reason: Must be >= 0 and <= 43200",
        "Value 43201 for parameter VisibilityTimeout is invalid. Reason: Must be >= 0 and <= 43200",
    ),
    (
        lambda r: r.orders.send("x", delay="5m"),
        "or a timedelta, not a str",
        "Value 5m for parameter DelaySeconds is",
    ),
    (lambda r: r.orders.send("x" * 2**21), "its size is 2,097,152 bytes", "must be shorter than 1048576 bytes."),
    (lambda r: r.sqs.delete(r.received().receipt_handle), "it is of another queue", "a valid receipt handle."),
    (lambda r: r.orders.receive(attempt_id="a"), "parameter attempt_id", "ReceiveRequestAttemptId"),
    (
        lambda r: r.orders.change_visibility("x", None),
        "must contain the parameter visibility_timeout",
        "must contain the parameter VisibilityTimeout",
    ),
    (
        lambda r: r.orders.send("x", delay=-1),
        "Value -1 for parameter delay is invalid. Reason: delay must be >= 0",
        "Value -1 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0",
    ),
    (  # a value is nobody's name
        lambda r: r.fifo.receive(attempt_id="delay {}"),
        "Value delay {} for parameter attempt_id",
        "Value delay {} for parameter ReceiveRequestAttemptId",
    ),
    (lambda r: r.orders.receive(attempt_id="delay"), "Value delay for", "Value delay for"),
    (lambda r: r.orders.send(""), "the parameter body: it has no character", "the parameter MessageBody."),
    (lambda r: r.orders.send(5), "The parameter body must", "The parameter MessageBody must"),
    (
        lambda r: r.orders.send("x", dedup_id="d"),
        "with deduplication_interval takes",
        "with DeduplicationInterval takes",
    ),
    (lambda r: r.sqs.send("x", dedup_id="d"), "parameter dedup_id", "MessageDeduplicationId is"),
    (lambda r: r.fifo.send("x", dedup_id="d"), "the parameter group_id", "the parameter MessageGroupId"),
    (
        lambda r: r.fifo.send("x", group_id="a b", dedup_id="d"),
        "group_id is invalid. Reason: group_id can only include",
        "MessageGroupId is invalid. Reason: MessageGroupId can only include",
    ),
    (
        lambda r: r.fifo.send("x", group_id="g"),
        "content_based_deduplication enabled or dedup_id provided",
        "ContentBasedDeduplication enabled or MessageDeduplicationId provided",
    ),
    (
        lambda r: r.fifo.send_batch([SendEntry("x", dedup_id="d")]),
        "the parameter group_id",
        "the parameter MessageGroupId",
    ),
    (
        lambda r: r.fifo.send("x", group_id="g", dedup_id="d", delay=5),
        "parameter delay",
        "parameter DelaySeconds",
    ),
    (lambda r: r.lake.list_queues(limit=0), "Value 0 for parameter limit", "parameter limit"),
    (lambda r: r.received().change_visibility(43_200), "Total visibility_timeout", "Total VisibilityTimeout"),
    (lambda r: r.orders.rewind(NOW), "for parameter to is invalid. Reason: Must be between", "parameter to"),
    (
        lambda r: r.sqs.rewind(datetime.now(timezone.utc) - timedelta(seconds=5)),
        "its rewind_range is 0",
        "its RewindSeconds is 0",
    ),
    (lambda r: r.full().send("y"), "raise max_stored_messages", "raise MaxStoredMessages"),
    (
        lambda r: r.orders.set_attributes(visibility_timeout=43_201),
        "visibility_timeout: must be 0 to 43,200 seconds in profile lake, not 43201",
        "the parameter VisibilityTimeout. Reason: Must be 0 to 43,200 seconds in profile lake, not 43201.",
    ),
    (lambda r: r.lake.create_queue("orders", delay=5), "attribute delay", "attribute DelaySeconds"),
    (lambda r: r.orders.set_attributes(profile="sqs"), "Attribute profile can", "Attribute Profile can"),
    (
        lambda r: r.lake.create_queue("x", profile="q"),
        "profile: profiles are lake",
        "Profile. Reason: Profiles are lake",
    ),
    (
        lambda r: r.orders.set_attributes(deduplication_scope="queue"),
        "deduplication_scope only when fifo is",
        "DeduplicationScope only when FifoQueue is",
    ),
    (
        lambda r: r.orders.set_attributes(content_based_deduplication=True),
        "Unknown Attribute content_based_deduplication",
        "Unknown Attribute ContentBasedDeduplication",
    ),
    (
        lambda r: r.fifo.set_attributes(fifo_throughput_limit="per_message_group_id"),
        "fifo_throughput_limit: needs deduplication_scope message_group, not queue",
        "the parameter FifoThroughputLimit. Reason: Needs DeduplicationScope message_group, not queue.",
    ),
    (
        lambda r: r.lake.create_queue("y.fifo", fifo=True, shards=2),
        "only if it is created with deduplication_scope message_group",
        "the parameter Shards.",
    ),
    (
        lambda r: r.fifo.set_attributes(group_in_flight_limit=5),
        "the group_in_flight_limit only on",
        "the GroupInFlightLimit only on",
    ),
    (
        lambda r: r.orders.set_attributes(max_stored_messages="many"),
        "max_stored_messages: not a number: 'many'",
        "the parameter MaxStoredMessages. Reason: Not a number: 'many'.",
    ),
    (
        lambda r: RedrivePolicy("dead", 0),
        "max_receive_count=0) for parameter redrive_policy is invalid. Reason: Invalid value for max_receive",
        '"maxReceiveCount":0} for parameter RedrivePolicy is invalid. Reason: Invalid value for maxReceiveCount',
    ),
    (
        lambda r: r.orders.set_attributes(dead_letter_queue="closed", max_receive_count=3),
        "max_receive_count=3) for parameter redrive_policy",
        '"maxReceiveCount":3} for parameter RedrivePolicy',
    ),
    (
        lambda r: r.orders.set_attributes(redrive_allow_policy={"permission": "byQueue"}),
        "source_queues goes with permission byQueue",
        "sourceQueueArns goes with redrivePermission byQueue",
    ),
    (lambda r: r.orders.set_attributes(dead_letter_queue="x"), "go together", "go together"),
    (lambda r: r.orders.set_tags({"a": "\ud800"}), "parameter tags", "parameter Tags"),
    (lambda r: r.orders.attributes(["delays"]), "Unknown Attribute delays: did you mean delay?", "delays."),
]


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize(("call", "in_python", "on_wire"), REFUSALS, ids=[text[:40] for _, text, _ in REFUSALS])
def test_an_error_has_the_names_of_python_and_on_the_wire_those_of_sqs(
    refusing: Refusing, call: Callable[[Refusing], Any], in_python: str, on_wire: str
) -> None:
    with pytest.raises(errors.QueueServiceError) as caught:
        call(refusing)
    assert in_python in str(caught.value) and not WIRE_NAMES.search(str(caught.value))
    assert on_wire in wire_message(caught.value)


@pytest.mark.spec("BAT-4")
def test_a_failed_entry_has_both_spellings(refusing: Refusing) -> None:
    [failed] = refusing.orders.send_batch([SendEntry("x", delay=-1)]).failed
    assert "parameter delay is" in failed.message and "parameter DelaySeconds is" in wire_message(failed)


def test_no_sentence_below_the_server_has_a_name_of_the_wire() -> None:
    source = Path(lakequeue.__file__).parent
    for path in source.rglob("*.py"):
        if path.is_relative_to(source / "serve"):
            continue
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                sentence = " " in node.value and not SQL.search(node.value)
                assert not (sentence and WIRE_NAMES.search(node.value)), (path, node.lineno, node.value)
