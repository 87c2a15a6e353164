"""A refused call changes no table, whatever the reason."""

from __future__ import annotations

import pytest

from conformance.fifo import entry
from conformance.harness import Harness, batch
from lakequeue import SendEntry, errors


class Refused:
    """Three queues on which calls can be refused for every reason."""

    def __init__(self, harness: Harness, clock) -> None:
        self.harness, self.clock = harness, clock
        point = harness.open(engine="point")
        full = point.create_queue("full", profile="sqs", max_inflight_messages=1, max_stored_messages=3)
        full.purge()
        full.send_batch(batch("0", "1", "2"))
        full.delete(full.receive()[0].receipt_handle)
        self.older = full.receive(visibility_timeout=1)[0].receipt_handle
        clock.advance(1)
        self.latest = full.receive(visibility_timeout=3_000)[0].receipt_handle
        full.send("3")
        open_ = point.create_queue("open", profile="sqs-2018")
        open_.send_batch(batch("gone", "handed back"))
        gone, back = open_.receive(2)
        open_.delete(gone.receipt_handle)
        open_.change_visibility(back.receipt_handle, 0)
        self.gone, self.back = gone.receipt_handle, back.receipt_handle
        strict = point.create_queue("strict", profile="cmq", visibility_timeout=1)
        strict.send("A")
        self.ended = strict.receive()[0].receipt_handle
        clock.advance(1)
        point.create_queue("recent", profile="sqs")
        point.delete_queue("recent")
        lease_queue = point.create_queue("lease")
        lease_queue.send("A")
        self.lease = harness.open().queue("lease").lease(visibility_timeout=1)
        clock.advance(1)
        lease_queue.receive(visibility_timeout=3_000)
        self.lq = harness.open()
        self.full, self.open, self.strict = (self.lq.queue(name) for name in ("full", "open", "strict"))
        self.fifo = point.create_queue("orders.fifo", fifo=True)
        self.fifo.send("A1", group_id="A", dedup_id="A1")

    def send(self, **fields):
        return self.fifo.send(**({"body": "x", "group_id": "A", "dedup_id": "d"} | fields))

    def create(self, name: str, **attributes):
        return self.lq.create_queue(name, **attributes)


ELSEWHERE = '{"deadLetterTargetArn": "nowhere", "maxReceiveCount": 5}'


REFUSALS = {
    "no such queue": ("QueueDoesNotExist", lambda r: r.lq.queue("none")),
    "deleting no queue": ("QueueDoesNotExist", lambda r: r.lq.delete_queue("none")),
    "name taken": (
        "QueueNameExists",
        lambda r: r.lq.create_queue("full", profile="sqs", visibility_timeout=1),
    ),
    "name taken in cmq": ("QueueNameExists", lambda r: r.lq.create_queue("strict", profile="cmq")),
    "name given up": ("QueueDeletedRecently", lambda r: r.lq.create_queue("recent", profile="sqs")),
    "bad name": ("InvalidParameterValue", lambda r: r.lq.create_queue("a b")),
    "fifo name": ("InvalidParameterValue", lambda r: r.lq.create_queue("a.fifo")),
    "unknown attribute": ("InvalidAttributeName", lambda r: r.lq.create_queue("new", colour="red")),
    "bad attribute": ("InvalidAttributeValue", lambda r: r.lq.create_queue("new", visibility_timeout=43_201)),
    "unknown profile": ("InvalidAttributeValue", lambda r: r.lq.create_queue("new", profile="rabbit")),
    "bad tag": ("InvalidParameterValue", lambda r: r.lq.create_queue("new", tags={"": "x"})),
    "redrive policy": ("InvalidParameterValue", lambda r: r.lq.create_queue("new", redrive_policy="{}")),
    "no dead-letter queue": ("QueueDoesNotExist", lambda r: r.open.set_attributes(redrive_policy=ELSEWHERE)),
    "rewind without a history": ("UnsupportedOperation", lambda r: r.open.rewind(r.lq.clock.now())),
    "page of none": ("InvalidParameterValue", lambda r: r.lq.list_queues(limit=0)),
    "page too long": ("InvalidParameterValue", lambda r: r.lq.list_queues(limit=1_001)),
    "no body": ("MissingParameter", lambda r: r.open.send("")),
    "body too long": ("InvalidParameterValue", lambda r: r.open.send("x" * 262_145)),
    "forbidden character": ("InvalidMessageContents", lambda r: r.open.send("\x01")),
    "half a character": ("InvalidMessageContents", lambda r: r.open.send("\ud800")),
    "delay too long": ("InvalidParameterValue", lambda r: r.open.send("a", delay=901)),
    "bad message attribute": ("InvalidParameterValue", lambda r: r.open.send("a", attributes={"a": ""})),
    "bad group": ("InvalidParameterValue", lambda r: r.full.send("a", group_id="a b")),
    "dedup id": ("InvalidParameterValue", lambda r: r.open.send("a", dedup_id="d")),
    "full": ("OverLimit", lambda r: r.full.send("a")),
    "empty batch": ("EmptyBatchRequest", lambda r: r.open.send_batch([])),
    "long batch": ("TooManyEntriesInBatchRequest", lambda r: r.open.send_batch(batch(*"0123456789a"))),
    "repeated id": ("BatchEntryIdsNotDistinct", lambda r: r.open.send_batch(batch("a", "b", id="x"))),
    "bad id": ("InvalidBatchEntryId", lambda r: r.open.send_batch([SendEntry("a", id="a b")])),
    "heavy batch": ("BatchRequestTooLong", lambda r: r.open.send_batch(batch(*["x" * 131_073] * 2))),
    "receive none": ("InvalidParameterValue", lambda r: r.open.receive(0)),
    "receive too many": ("InvalidParameterValue", lambda r: r.open.receive(11)),
    "hide too long": ("InvalidParameterValue", lambda r: r.open.receive(visibility_timeout=43_201)),
    "wait too long": ("InvalidParameterValue", lambda r: r.open.receive(wait_time=21)),
    "attempt id": ("InvalidParameterValue", lambda r: r.open.receive(attempt_id="a")),
    "all in flight": ("OverLimit", lambda r: r.full.receive()),
    "lease at the cap": ("OverLimit", lambda r: r.full.lease()),
    "lease of none": ("InvalidParameterValue", lambda r: r.open.lease(0)),
    "garbage handle": ("ReceiptHandleIsInvalid", lambda r: r.open.delete("garbage")),
    "foreign handle": ("ReceiptHandleIsInvalid", lambda r: r.open.delete(r.latest)),
    "tampered handle": ("ReceiptHandleIsInvalid", lambda r: r.full.delete(tampered(r.latest))),
    "change of a deleted one": ("InvalidParameterValue", lambda r: r.open.change_visibility(r.gone, 5)),
    "change by an older receipt": ("InvalidParameterValue", lambda r: r.full.change_visibility(r.older, 5)),
    "change too long": ("InvalidParameterValue", lambda r: r.full.change_visibility(r.latest, 43_200)),
    "change to nothing": ("MissingParameter", lambda r: r.full.change_visibility(r.latest, None)),
    "change of a visible one": ("MessageNotInflight", lambda r: r.open.change_visibility(r.back, 5)),
    "change after the end": ("MessageNotInflight", lambda r: r.strict.change_visibility(r.ended, 5)),
    "delete after the end": ("InvalidParameterValue", lambda r: r.strict.delete(r.ended)),
    "no deletes": ("EmptyBatchRequest", lambda r: r.open.delete_batch([])),
    "too many deletes": ("TooManyEntriesInBatchRequest", lambda r: r.open.delete_batch(["x"] * 11)),
    "no changes": ("EmptyBatchRequest", lambda r: r.open.change_visibility_batch([])),
    "lost lease": ("LeaseLost", lambda r: r.lease.delete()),
    "purge again": ("PurgeQueueInProgress", lambda r: r.full.purge()),
    "set unknown": ("InvalidAttributeName", lambda r: r.open.set_attributes(QueueName="x")),
    "set read-only": ("InvalidAttributeName", lambda r: r.open.set_attributes(QueueArn="x")),
    "set out of range": ("InvalidAttributeValue", lambda r: r.open.set_attributes(delay=901)),
    "set fixed": ("InvalidAttributeName", lambda r: r.open.set_attributes(profile="lake")),
    "get unknown": ("InvalidAttributeName", lambda r: r.open.attributes(["Colour"], wire=True)),
    "peek at none": ("InvalidParameterValue", lambda r: r.open.peek(limit=0)),
    "peek by a statement": ("InvalidParameterValue", lambda r: r.open.peek("true; DROP TABLE messages")),
    "tag too long": ("InvalidParameterValue", lambda r: r.open.set_tags({"k": "v" * 257})),
}
FIFO_REFUSALS = {
    "no group": ("MissingParameter", lambda r: r.send(group_id=None)),
    "no group in a batch": (
        "InvalidParameterValue",
        lambda r: r.fifo.send_batch([entry("A2"), SendEntry("x", dedup_id="x")]),
    ),
    "no deduplication id": ("InvalidParameterValue", lambda r: r.send(dedup_id=None)),
    "no deduplication id in a batch": (
        "InvalidParameterValue",
        lambda r: r.fifo.send_batch([entry("A2"), SendEntry("x", group_id="A")]),
    ),
    "delay on a FIFO queue": ("InvalidParameterValue", lambda r: r.send(delay=2)),
    "bad group on a FIFO queue": ("InvalidParameterValue", lambda r: r.send(group_id="A B")),
    "bad deduplication id": ("InvalidParameterValue", lambda r: r.send(dedup_id="\u00e9")),
    "group on a queue of 2018": ("InvalidParameterValue", lambda r: r.open.send("x", group_id="A")),
    "bad attempt id": ("InvalidParameterValue", lambda r: r.fifo.receive(attempt_id="a b")),
    "FIFO name without suffix": ("InvalidParameterValue", lambda r: r.create("new", fifo=True)),
    "no truth": ("InvalidAttributeValue", lambda r: r.create("new.fifo", FifoQueue="yes")),
    "FIFO in cmq": ("InvalidAttributeValue", lambda r: r.create("new.fifo", fifo=True, profile="cmq")),
    "unknown scope": (
        "InvalidAttributeValue",
        lambda r: r.create("new.fifo", fifo=True, deduplication_scope="group"),
    ),
    "limit by group without its scope": (
        "InvalidAttributeValue",
        lambda r: r.create("new.fifo", fifo=True, fifo_throughput_limit="perMessageGroupId"),
    ),
    "limit by group set without its scope": (
        "InvalidAttributeValue",
        lambda r: r.fifo.set_attributes(FifoThroughputLimit="perMessageGroupId"),
    ),
    "shards without the scope of a group": (
        "InvalidAttributeValue",
        lambda r: r.create("new.fifo", fifo=True, shards=2),
    ),
    "scope on a standard queue": ("InvalidAttributeName", lambda r: r.create("new", deduplication_scope="queue")),
    "scope set on a standard queue": (
        "InvalidAttributeName",
        lambda r: r.open.set_attributes(DeduplicationScope="messageGroup"),
    ),
    "content-based on a standard queue": (
        "InvalidAttributeName",
        lambda r: r.open.set_attributes(content_based_deduplication=True),
    ),
    "standard made FIFO": ("InvalidAttributeName", lambda r: r.open.set_attributes(FifoQueue="true")),
    "FIFO made standard": ("InvalidAttributeValue", lambda r: r.fifo.set_attributes(fifo=False)),
    "scope of creation": (
        "InvalidAttributeName",
        lambda r: r.fifo.set_attributes(CreatedDeduplicationScope="messageGroup"),
    ),
    "scope of creation asked for": (
        "InvalidAttributeName",
        lambda r: r.fifo.attributes(["CreatedDeduplicationScope"], wire=True),
    ),
    "name taken by another scope": (
        "QueueNameExists",
        lambda r: r.create("orders.fifo", fifo=True, deduplication_scope="message_group"),
        "different value for attribute deduplication_scope",
    ),
}


def tampered(handle: str) -> str:
    return handle[:-1] + ("0" if handle[-1] != "0" else "1")


def check(harness: Harness, refused: Refused, refusals) -> None:
    """Every call is refused with its error, and no table gets a new version."""
    before = harness.versions()
    wrong = {}
    for reason, (code, operation, *text) in refusals.items():
        try:
            operation(refused)
            wrong[reason] = "was not refused"
        except errors.LakeQueueError as error:
            if type(error).__name__ != code or any(part not in str(error) for part in text):
                wrong[reason] = repr(error)
        if harness.versions() != before:
            wrong[reason] = f"{wrong.get(reason, '')} changed {before} to {harness.versions()}"
            before = harness.versions()
    assert wrong == {}


@pytest.mark.spec("ERR-8", "ERR-1", "ERR-3", "SND-16", "BAT-7", "RCP-9", "RCP-15")
def test_what_is_refused_changes_no_table(harness: Harness, clock):
    check(harness, Refused(harness, clock), REFUSALS)


@pytest.mark.spec("ERR-8", "ERR-5", "SND-4", "SND-5", "SND-6", "SND-13", "SND-14", "DLY-7", "ATT-7", "DDP-14")
@pytest.mark.spec("NAM-4", "QUE-2", "QUE-15", "DDP-15")
def test_what_fifo_queues_refuse_changes_no_table(harness: Harness, clock):
    check(harness, Refused(harness, clock), FIFO_REFUSALS)


@pytest.mark.spec("ERR-6", "ERR-8")
def test_every_error_of_the_service_is_among_the_refusals():
    elsewhere = {"RequestThrottled", "ResourceNotFoundException"}
    assert set(errors.SERVICE_ERRORS) - elsewhere <= {code for code, *_ in REFUSALS.values()}
