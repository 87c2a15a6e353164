"""The actions of SQS over the Python API; what they take and answer is named as in the service model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import attrs

from lakequeue import Queue, SendEntry
from lakequeue.client import MAX_LISTED, LakeQueue
from lakequeue.errors import (
    InvalidAttributeName,
    InvalidParameterValue,
    QueueDoesNotExist,
    UnsupportedOperation,
)
from lakequeue.model import redrive_policies
from lakequeue.model.messages import (
    AttributeValue,
    BatchFailure,
    BatchResult,
    BatchSuccess,
    Message,
    SendResult,
    check_batch_ids,
    md5_of_attributes,
)
from lakequeue.model.redrive_policies import ACCOUNT
from lakequeue.serve.sqs import permissions
from lakequeue.serve.sqs.model import operations
from lakequeue.serve.sqs.move_tasks import MoveTasks, task_of

Parameters = dict[str, Any]
_Answer = TypeVar("_Answer")

PROFILE = "sqs"
"""Profile of the queues that are created through the wire."""
_UNENCRYPTED: Mapping[str, tuple[str, ...]] = {
    "KmsMasterKeyId": ("",),
    "KmsDataKeyReusePeriodSeconds": ("", "300"),
    "SqsManagedSseEnabled": ("false",),
}
"""Attributes of encryption, with the values that ask for none."""
_AFTER = "after "
"""What the token of a page says, besides the name that it goes on after."""


class Actions:
    """Does what requests ask for. Thread-safe; every method may block, `receive` and `known` apart."""

    def __init__(self, lake: LakeQueue) -> None:
        self.lake = lake
        self.tasks = MoveTasks(lake)
        self._queues: dict[str, Queue] = {}
        self._by_name: dict[str, Callable[[Parameters, str], Parameters]] = {
            "AddPermission": self._add_permission,
            "CancelMessageMoveTask": self._cancel_move_task,
            "ChangeMessageVisibility": self._change_visibility,
            "ChangeMessageVisibilityBatch": self._change_visibility_batch,
            "CreateQueue": self._create_queue,
            "DeleteMessage": self._delete_message,
            "DeleteMessageBatch": self._delete_message_batch,
            "DeleteQueue": self._delete_queue,
            "GetQueueAttributes": self._get_attributes,
            "GetQueueUrl": self._get_queue_url,
            "ListDeadLetterSourceQueues": self._list_sources,
            "ListMessageMoveTasks": self._list_move_tasks,
            "ListQueueTags": self._list_tags,
            "ListQueues": self._list_queues,
            "PurgeQueue": self._purge,
            "RemovePermission": self._remove_permission,
            "SendMessage": self._send,
            "SendMessageBatch": self._send_batch,
            "SetQueueAttributes": self._set_attributes,
            "StartMessageMoveTask": self._start_move_task,
            "TagQueue": self._tag,
            "UntagQueue": self._untag,
        }

    def do(self, action: str, given: Parameters, base_url: str) -> Parameters:
        """Does any action but ReceiveMessage.

        Args:
            base_url: scheme and host under which the client knows this server, for the URLs of queues.

        Raises:
            QueueServiceError, QueueClientError: what the Python API raises.
        """
        return self._by_name[action](given, base_url)

    def on_queue(self, url: str, act: Callable[[Queue], _Answer]) -> _Answer:
        """Has something done with the queue of a URL.

        Raises:
            QueueDoesNotExist: there is none.
        """
        name = queue_name(url)
        known = self._queues.get(name)
        if known is not None:
            try:
                return act(known)
            except QueueDoesNotExist:  # of the incarnation; there may be another
                self._queues.pop(name, None)
        return act(self.queue(name))

    def queue(self, name: str) -> Queue:
        """The queue of a name, opened once for all requests."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = self.lake.queue(name)
        return queue

    def known(self, url: str) -> Queue | None:
        """The queue of a URL if it was opened before; asks nobody, and so does not block."""
        return self._queues.get(queue_name(url))

    def reopened(self, queue: Queue) -> Queue:
        """The queue that has the name of a deleted one now."""
        self._queues.pop(queue.name, None)
        return self.queue(queue.name)

    # --- queues

    def _create_queue(self, given: Parameters, base_url: str) -> Parameters:
        name = given["QueueName"]
        wanted: dict[str, Any] = _plain_attributes(given.get("Attributes", {}))
        try:
            wanted["Profile"] = self.lake.queue(
                name
            ).runtime.attributes.profile  # made otherwise, it is still this queue
        except QueueDoesNotExist:
            wanted["Profile"] = PROFILE
        queue = self.lake.create_queue(name, tags=given.get("tags"), **wanted)
        return {"QueueUrl": queue_url(base_url, queue.name)}

    def _delete_queue(self, given: Parameters, base_url: str) -> Parameters:
        name = queue_name(given["QueueUrl"])
        self._queues.pop(name, None)
        self.lake.delete_queue(name)
        return {}

    def _get_queue_url(self, given: Parameters, base_url: str) -> Parameters:
        return {"QueueUrl": queue_url(base_url, self.lake.queue(given["QueueName"]).name)}

    def _list_queues(self, given: Parameters, base_url: str) -> Parameters:
        prefix, limit = given.get("QueueNamePrefix", ""), given.get("MaxResults")
        after = _from_token(given.get("NextToken"))
        queues = self.lake.list_queues(prefix, limit, after)
        urls = [queue_url(base_url, queue.name) for queue in queues]
        more = limit is not None and len(queues) == limit and self.lake.list_queues(prefix, 1, queues[-1].name)
        found = {"QueueUrls": urls} if urls else {}
        return found | ({"NextToken": _token(queues[-1].name)} if more else {})

    def _list_sources(self, given: Parameters, base_url: str) -> Parameters:
        after = _from_token(given.get("NextToken")) or ""
        most = given.get("MaxResults", MAX_LISTED)
        if not 1 <= most <= MAX_LISTED:
            raise _out_of_range("MaxResults", most, 1, MAX_LISTED)
        sources = self.on_queue(given["QueueUrl"], Queue.dead_letter_sources)
        names = [queue.name for queue in sources if queue.name > after]
        page = names[:most]
        found: Parameters = {"queueUrls": [queue_url(base_url, name) for name in page]}
        return found | ({"NextToken": _token(page[-1])} if len(page) < len(names) else {})

    def _get_attributes(self, given: Parameters, base_url: str) -> Parameters:
        names = given.get("AttributeNames", [])
        if not names:
            return {}
        for name in names:
            if name not in _ATTRIBUTE_NAMES and name in _UNENCRYPTED:
                raise InvalidAttributeName(f"Unknown Attribute {name}.")
        asked = [name for name in names if name not in _UNENCRYPTED]
        known = self.on_queue(given["QueueUrl"], lambda queue: queue.attributes(asked)) if asked else {}
        if "All" in asked:
            named = {*asked, *_ATTRIBUTE_NAMES}
            known = {name: value for name, value in known.items() if name in named}
        if {"All", "SqsManagedSseEnabled"} & {*names}:
            known["SqsManagedSseEnabled"] = "false"
        return {"Attributes": known} if known else {}

    def _set_attributes(self, given: Parameters, base_url: str) -> Parameters:
        changes = _plain_attributes(given["Attributes"])
        self.on_queue(given["QueueUrl"], lambda queue: queue.set_attributes(**changes))
        return {}

    def _purge(self, given: Parameters, base_url: str) -> Parameters:
        self.on_queue(given["QueueUrl"], Queue.purge)
        return {}

    def _list_tags(self, given: Parameters, base_url: str) -> Parameters:
        tags = self.on_queue(given["QueueUrl"], Queue.tags)
        return {"Tags": tags} if tags else {}

    def _tag(self, given: Parameters, base_url: str) -> Parameters:
        self.on_queue(given["QueueUrl"], lambda queue: queue.set_tags(given["Tags"]))
        return {}

    def _untag(self, given: Parameters, base_url: str) -> Parameters:
        self.on_queue(given["QueueUrl"], lambda queue: queue.remove_tags(*given["TagKeys"]))
        return {}

    def _add_permission(self, given: Parameters, base_url: str) -> Parameters:
        def add(queue: Queue) -> None:
            queue.update_attributes(
                lambda rules: {
                    "Policy": permissions.added(
                        rules.policy, queue.arn, given["Label"], given["AWSAccountIds"], given["Actions"]
                    )
                }
            )

        self.on_queue(given["QueueUrl"], add)
        return {}

    def _remove_permission(self, given: Parameters, base_url: str) -> Parameters:
        label = given["Label"]
        self.on_queue(
            given["QueueUrl"],
            lambda queue: queue.update_attributes(
                lambda rules: {"Policy": permissions.removed(rules.policy, label)}
            ),
        )
        return {}

    # --- messages

    def _send(self, given: Parameters, base_url: str) -> Parameters:
        entry = _send_entry(given)
        sent = self.on_queue(
            given["QueueUrl"],
            lambda queue: queue.send(
                entry.body, entry.delay, entry.attributes, entry.group_id, entry.dedup_id, entry.system_attributes
            ),
        )
        return _sent(sent, entry)

    def _send_batch(self, given: Parameters, base_url: str) -> Parameters:
        entries = [_send_entry(entry) for entry in given["Entries"]]
        by_id = {entry.id: entry for entry in entries}
        result = self.on_queue(given["QueueUrl"], lambda queue: queue.send_batch(entries))
        return _batch(result, lambda done: _sent(done, by_id[done.id]))

    async def receive(self, queue: Queue, given: Parameters, interrupt: Any) -> tuple[list[Message], Parameters]:
        """ReceiveMessage: what was received, and the answer that tells it."""
        messages = await queue.receive_async(
            given.get("MaxNumberOfMessages"),
            given.get("VisibilityTimeout"),
            given.get("WaitTimeSeconds"),
            given.get("ReceiveRequestAttemptId"),
            given.get("MessageAttributeNames", ()),
            interrupt,
        )
        names = {*given.get("AttributeNames", ()), *given.get("MessageSystemAttributeNames", ())}
        return messages, {"Messages": [_message(message, names) for message in messages]} if messages else {}

    def hand_back(self, queue: Queue, messages: list[Message]) -> None:
        """Makes messages visible whose receiver has hung up; those of FIFO queues stay in their order."""
        queue.change_visibility_batch([(message.receipt_handle, 0) for message in messages])

    def _delete_message(self, given: Parameters, base_url: str) -> Parameters:
        self.on_queue(given["QueueUrl"], lambda queue: queue.delete(given["ReceiptHandle"]))
        return {}

    def _delete_message_batch(self, given: Parameters, base_url: str) -> Parameters:
        entries = given["Entries"]

        def delete(queue: Queue) -> BatchResult:
            _check_ids(queue, entries)
            return queue.delete_batch([entry["ReceiptHandle"] for entry in entries])

        return _settled(self.on_queue(given["QueueUrl"], delete), entries)

    def _change_visibility(self, given: Parameters, base_url: str) -> Parameters:
        handle, timeout = given["ReceiptHandle"], given["VisibilityTimeout"]
        self.on_queue(given["QueueUrl"], lambda queue: queue.change_visibility(handle, timeout))
        return {}

    def _change_visibility_batch(self, given: Parameters, base_url: str) -> Parameters:
        entries = given["Entries"]

        def change(queue: Queue) -> BatchResult:
            _check_ids(queue, entries)
            return queue.change_visibility_batch(
                [(entry["ReceiptHandle"], entry.get("VisibilityTimeout")) for entry in entries]
            )

        return _settled(self.on_queue(given["QueueUrl"], change), entries)

    # --- message move tasks

    def _start_move_task(self, given: Parameters, base_url: str) -> Parameters:
        handle = self.tasks.start(
            given["SourceArn"], given.get("DestinationArn"), given.get("MaxNumberOfMessagesPerSecond")
        )
        return {"TaskHandle": handle}

    def _cancel_move_task(self, given: Parameters, base_url: str) -> Parameters:
        return {"ApproximateNumberOfMessagesMoved": self.tasks.cancel(given["TaskHandle"])}

    def _list_move_tasks(self, given: Parameters, base_url: str) -> Parameters:
        return {"Results": self.tasks.listed(given["SourceArn"], given.get("MaxResults", 1))}


_ATTRIBUTE_NAMES = frozenset(operations()["GetQueueAttributes"].input_shape.members["AttributeNames"].member.enum)


def queue_name(url: str) -> str:
    """The queue that a URL names: the last part of its path, whatever host and account stand before it.

    Raises:
        QueueDoesNotExist: it names none.
    """
    try:
        name = unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2], errors="strict")
    except ValueError:
        name = ""
    if not name:
        raise QueueDoesNotExist()
    return name


def named_queues(given: Parameters) -> list[str | None]:
    """The queues that a request is about; None stands for no queue in particular."""
    if "QueueUrl" in given:
        return [queue_name(given["QueueUrl"])]
    arns = [given[name] for name in ("SourceArn", "DestinationArn") if name in given]
    if "TaskHandle" in given:
        arns = [task_of(given["TaskHandle"])[1]]
    return [arn.rpartition(":")[2] for arn in arns] or [given.get("QueueName")]


def needed(action: str, given: Parameters) -> list[tuple[str, str | None]]:
    """What a request needs the right to do: actions, and the queues that they are done on.

    A redrive policy has messages sent to the dead-letter queue that it names, so it needs that right, too.
    """
    rights: list[tuple[str, str | None]] = [(action, queue) for queue in named_queues(given)]
    if action in ("CreateQueue", "SetQueueAttributes"):
        with suppress(InvalidParameterValue):  # which the action itself refuses
            policy = redrive_policies.redrive_policy(given.get("Attributes", {}).get("RedrivePolicy"))
            if policy is not None:
                rights.append(("SendMessage", policy.dead_letter_queue.rpartition(":")[2]))
    return rights


def queue_url(base_url: str, name: str) -> str:
    """The URL of a queue, as its clients are told it."""
    return f"{base_url}/{ACCOUNT}/{name}"


def _plain_attributes(given: Mapping[str, str]) -> dict[str, str]:
    """The attributes to be set, without those that ask for no encryption."""
    for name, value in given.items():
        if name == "Profile" or not name[:1].isupper():  # Python's arguments are no attributes of SQS
            raise InvalidAttributeName(f"Unknown Attribute {name}.")
        if value not in _UNENCRYPTED.get(name, (value,)):
            raise UnsupportedOperation(f"Messages are not encrypted by the server; leave out {name}.")
    return {name: value for name, value in given.items() if name not in _UNENCRYPTED}


def _send_entry(given: Parameters) -> SendEntry:
    return SendEntry(
        given["MessageBody"],
        given.get("Id"),
        given.get("DelaySeconds"),
        _attribute_values(given.get("MessageAttributes", {})),
        given.get("MessageGroupId"),
        given.get("MessageDeduplicationId"),
        {
            name: (value.type, value.value)
            for name, value in _attribute_values(given.get("MessageSystemAttributes", {})).items()
        },
    )


def _attribute_values(given: Mapping[str, Parameters]) -> dict[str, AttributeValue]:
    found = {}
    for name, attribute in given.items():
        for unused in ("StringListValues", "BinaryListValues"):
            if attribute.get(unused):
                raise UnsupportedOperation(f"Message attribute '{name}': {unused} is not implemented by SQS.")
        text, binary = attribute.get("StringValue"), attribute.get("BinaryValue")
        if text is not None and binary is not None:
            raise InvalidParameterValue(f"The message attribute '{name}' has several values.")
        type_ = attribute["DataType"]
        value = binary if type_.startswith("Binary") else text
        if value is None:
            raise InvalidParameterValue(
                f"The message attribute '{name}' must contain a non-empty value of the type '{type_}'."
            )
        found[name] = AttributeValue(type_, value)
    return found


def _sent(sent: SendResult | BatchSuccess, entry: SendEntry) -> Parameters:
    trace = {name: AttributeValue(*value) for name, value in (entry.system_attributes or {}).items()}
    known = {
        "MessageId": sent.message_id,
        "MD5OfMessageBody": sent.md5_of_body,
        "MD5OfMessageAttributes": sent.md5_of_message_attributes,
        "MD5OfMessageSystemAttributes": md5_of_attributes(trace),
        "SequenceNumber": sent.sequence_number,
    }
    return {name: value for name, value in known.items() if value is not None}


def _message(message: Message, names: Iterable[str]) -> Parameters:
    system = {name: value for name, value in message.attributes.items() if {"All", name} & {*names}}
    own = {
        name: {"BinaryValue" if isinstance(value, bytes) else "StringValue": value, "DataType": type_}
        for name, (type_, value) in message.message_attributes.items()
    }
    known = {
        "MessageId": message.message_id,
        "ReceiptHandle": message.receipt_handle,
        "MD5OfBody": message.md5_of_body,
        "Body": message.body,
        "Attributes": system,
        "MD5OfMessageAttributes": message.md5_of_message_attributes,
        "MessageAttributes": own,
    }
    return {name: value for name, value in known.items() if value}


def _check_ids(queue: Queue, entries: list[Parameters]) -> None:
    check_batch_ids([entry["Id"] for entry in entries], queue.runtime.attributes)


def _settled(result: BatchResult, entries: list[Parameters]) -> Parameters:
    """The result of a batch whose entries the Python API names by their places."""

    def named(place: str) -> str:
        id: str = entries[int(place)]["Id"]
        return id

    result = BatchResult(
        [BatchSuccess(named(done.id)) for done in result.successful],
        [attrs.evolve(failure, id=named(failure.id)) for failure in result.failed],
    )
    return _batch(result, lambda done: {})


def _batch(result: BatchResult, told: Callable[[BatchSuccess], Parameters]) -> Parameters:
    parts = {
        "Successful": [{"Id": done.id} | told(done) for done in result.successful],
        "Failed": [_failure(failure) for failure in result.failed],
    }
    # as SQS does, whatever its model says: `"Failed" in answer` and `hasFailed()` are what clients ask
    return {name: entries for name, entries in parts.items() if entries}


def _failure(failure: BatchFailure) -> Parameters:
    return {
        "Id": failure.id,
        "SenderFault": failure.sender_fault,
        "Code": failure.code,
        "Message": failure.message,
    }


def _token(name: str) -> str:
    # no JSON inside, which boto3 would take for a token of its own paginators
    return base64.urlsafe_b64encode(f"{_AFTER}{name}".encode()).decode()


def _from_token(token: str | None) -> str | None:
    if token is None:
        return None
    try:
        text = base64.urlsafe_b64decode(token).decode()
    except (ValueError, binascii.Error):
        text = ""
    if text.startswith(_AFTER):
        return text.removeprefix(_AFTER)
    raise InvalidParameterValue(
        f"Value {token} for parameter NextToken is invalid. Reason: It is no token of a page."
    )


def _out_of_range(parameter: str, value: object, low: int, high: int) -> InvalidParameterValue:
    return InvalidParameterValue(
        f"Value {value} for parameter {parameter} is invalid. Reason: Must be between {low} and {high}."
    )
