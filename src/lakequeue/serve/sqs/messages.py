"""Converts messages and batches between the Python API and the service model of SQS."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from lakequeue import SendEntry
from lakequeue.errors import InvalidParameterValue, UnsupportedOperation
from lakequeue.model.messages import (
    AttributeValue,
    BatchResult,
    BatchSuccess,
    Message,
    SendResult,
    md5_of_attributes,
)
from lakequeue.model.validation import TRACE_HEADER
from lakequeue.serve.errors import wire_message
from lakequeue.serve.sqs.queue_urls import queue_arn

SENDER = "SenderId"
"""Parameter that the endpoint adds to sends: the key that signed the request. AWS has no such parameter."""
PRIORITY = "Priority"
"""Name of the parameter for the priority of a message. Only the console sends this parameter."""
CALLER = "Caller"
"""Parameter that the endpoint adds to StartMessageMoveTask: the caller, whose permissions limit the task."""
SOURCE = "DeadLetterQueueSourceArn"
Structure = dict[str, Any]
"""A structure of the service model, for example the parameters or the result of an action."""


def send_entry(entry: Structure, sender: str | None) -> SendEntry:
    """Builds a message to send from the parameters of SendMessage, or from an entry of SendMessageBatch."""
    return SendEntry(
        entry["MessageBody"],
        entry.get("Id"),
        entry.get("DelaySeconds"),
        _attribute_values(entry.get("MessageAttributes", {})),
        entry.get("MessageGroupId"),
        entry.get("MessageDeduplicationId"),
        {
            name: (value.type, value.value)
            for name, value in _attribute_values(entry.get("MessageSystemAttributes", {})).items()
        },
        sender,
        priority=entry.get(PRIORITY),
    )


def add_trace_header(given: Structure, trace: str) -> None:
    """Copies the X-Amzn-Trace-Id header to the attribute AWSTraceHeader, if the client has not set it."""
    attributes = given.setdefault("MessageSystemAttributes", {})
    attributes.setdefault(TRACE_HEADER, {"DataType": "String", "StringValue": trace})


def _attribute_values(attributes: Mapping[str, Structure]) -> dict[str, AttributeValue]:
    found = {}
    for name, attribute in attributes.items():
        for unused in ("StringListValues", "BinaryListValues"):
            if attribute.get(unused):
                raise UnsupportedOperation(f"Message attribute '{name}': {unused} is not implemented by SQS.")
        text, binary = attribute.get("StringValue"), attribute.get("BinaryValue")
        if text is not None and binary is not None:
            raise InvalidParameterValue(f"The message attribute '{name}' has several values.")
        type_ = attribute["DataType"]
        # a missing value is refused like an empty one; in a batch, only its entry is refused (BAT-4)
        value = (binary or b"") if type_.startswith("Binary") else (text or "")
        found[name] = AttributeValue(type_, value)
    return found


def send_result(sent: SendResult | BatchSuccess, entry: SendEntry) -> Structure:
    """Builds the result of SendMessage, or an entry in the result of SendMessageBatch."""
    trace = {name: AttributeValue(*value) for name, value in (entry.system_attributes or {}).items()}
    members = {
        "MessageId": sent.message_id,
        "MD5OfMessageBody": sent.md5_of_body,
        "MD5OfMessageAttributes": sent.md5_of_message_attributes,
        "MD5OfMessageSystemAttributes": md5_of_attributes(trace),
        "SequenceNumber": sent.sequence_number,
    }
    return {name: value for name, value in members.items() if value is not None}


def received_message(
    message: Message, names: Collection[str], attribute_names: Collection[str], account: str, sender: str | None
) -> Structure:
    """Builds a message in the result of ReceiveMessage, with the attributes that the client requested."""
    known = message.attributes
    if sender is not None:
        known.setdefault("SenderId", sender)
    if SOURCE in known:
        known[SOURCE] = queue_arn(known[SOURCE], account)
    system = {name: value for name, value in known.items() if {"All", name} & {*names}}
    chosen = _chosen(message.message_attributes, attribute_names)
    attributes = {
        name: {"BinaryValue" if isinstance(value, bytes) else "StringValue": value, "DataType": type_}
        for name, (type_, value) in chosen.items()
    }
    members = {
        "MessageId": message.message_id,
        "ReceiptHandle": message.receipt_handle,
        "MD5OfBody": message.md5_of_body,
        "Body": message.body,
        "Attributes": system,
        "MD5OfMessageAttributes": md5_of_attributes(chosen),
        "MessageAttributes": attributes,
    }
    return {name: value for name, value in members.items() if value}


def _chosen(given: Mapping[str, AttributeValue], names: Collection[str]) -> dict[str, AttributeValue]:
    """Selects message attributes by name. ``*`` selects all, ``Hel.*`` all that begin with ``Hel``."""
    if "All" in names or "*" in names:
        return dict(given)
    prefixes = tuple(name.removesuffix(".*") for name in names if name.endswith(".*"))
    return {name: value for name, value in given.items() if name in names or name.startswith(prefixes)}


def settle_result(result: BatchResult, entries: list[Structure]) -> Structure:
    """Builds the result of a batch of deletes or changes. Replaces the positions of entries with their ids."""

    def entry_id(position: str) -> str:
        id: str = entries[int(position)]["Id"]
        return id

    result = BatchResult(
        [BatchSuccess(entry_id(done.id)) for done in result.successful],
        [attrs.evolve(failure, id=entry_id(failure.id)) for failure in result.failed],
    )
    return batch_result(result, lambda done: {})


def batch_result(result: BatchResult, members: Callable[[BatchSuccess], Structure]) -> Structure:
    """Builds the result of a batch. ``members`` returns the fields, besides the id, of an entry that succeeded."""
    parts = {
        "Successful": [{"Id": done.id} | members(done) for done in result.successful],
        "Failed": [
            {
                "Id": failure.id,
                "SenderFault": failure.sender_fault,
                "Code": failure.code,
                "Message": wire_message(failure),
            }
            for failure in result.failed
        ],
    }
    # like SQS, though the model requires both lists: clients ask `"Failed" in answer` and `hasFailed()`
    return {name: entries for name, entries in parts.items() if entries}
