"""The actions of SQS, by means of the Python API. Their parameters have the names of the service model."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from lakequeue import Queue
from lakequeue.client import MAX_LISTED, LakeQueue
from lakequeue.entry_verbs import (
    Request,
    Room,
    Send,
    SendOutcome,
    SettleOutcome,
    Wanted,
    receive_async,
    send_each,
    send_one,
    settings,
    settle_each,
)
from lakequeue.errors import (
    EmptyBatchRequest,
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidParameterValue,
    MissingParameter,
    QueueDoesNotExist,
    QueueServiceError,
    UnsupportedOperation,
)
from lakequeue.model import redrive_policies
from lakequeue.model.attribute_values import parse_whole
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import Interrupt
from lakequeue.model.messages import BatchResult, Message
from lakequeue.model.validation import check_batch_ids
from lakequeue.serve.combining import Batcher
from lakequeue.serve.errors import wire_message
from lakequeue.serve.sqs import queue_attributes
from lakequeue.serve.sqs.messages import (
    CALLER,
    SENDER,
    Structure,
    batch_result,
    received_message,
    send_entry,
    send_result,
    settle_result,
)
from lakequeue.serve.sqs.move_tasks import MoveTasks
from lakequeue.serve.sqs.queue_attributes import Encryption
from lakequeue.serve.sqs.queue_urls import queue_arn, queue_name, queue_url

_Result = TypeVar("_Result")

PROFILE = "sqs"
"""Profile of queues that SQS clients create without naming a profile."""
MAX_SHARDS = 16
"""Maximum number of shards that an SQS client can give a queue. Limited because each shard adds two tables."""
_TASK_ARNS = ("SourceArn", "DestinationArn")
_AFTER = "after "
"""Prefix of a page token. After the prefix comes the name of the last queue on the page."""


class Actions:
    """Runs actions of SQS. Thread-safe. Every method except ``answer``, ``receive`` and ``opened`` may block.

    Args:
        account: account in the URLs and ARNs of queues.
        sender: SenderId of all messages. If None, the parameter ``SENDER`` of each request is the SenderId.
        max_shards: maximum number of shards that a client can give a queue.
    """

    def __init__(
        self,
        lake: LakeQueue,
        account: str = redrive_policies.ACCOUNT,
        sender: str | None = None,
        max_shards: int = MAX_SHARDS,
        encryption: Encryption = Encryption(),  # noqa: B008
    ) -> None:
        self.lake = lake
        self.account = account
        self.sender = sender
        self._max_shards = max_shards
        self._encryption = encryption
        self.tasks = MoveTasks(lake, account)
        self._queues: dict[str, Queue] = {}
        self._sends: Batcher[Send, Any] = Batcher(self._send_each, self._shards)
        self._settles: Batcher[Wanted, None] = Batcher(self._settle_each, self._shards)
        self._by_name: dict[str, Callable[[Structure, str], Structure]] = {
            "AddPermission": self._add_permission,
            "CancelMessageMoveTask": self._cancel_move_task,
            "ChangeMessageVisibilityBatch": self._change_visibility_batch,
            "CreateQueue": self._create_queue,
            "DeleteMessageBatch": self._delete_message_batch,
            "DeleteQueue": self._delete_queue,
            "GetQueueAttributes": self._get_attributes,
            "GetQueueUrl": self._get_queue_url,
            "ListDeadLetterSourceQueues": self._list_sources,
            "ListMessageMoveTasks": self._list_move_tasks,
            "ListQueueTags": self._list_tags,
            "ListQueues": self._list_queues,
            "PurgeQueue": lambda parameters, _: self._do(parameters, Queue.purge),
            "RemovePermission": self._remove_permission,
            "SendMessage": self._send,
            "SetQueueAttributes": self._set_attributes,
            "StartMessageMoveTask": self._start_move_task,
            "TagQueue": self._tag,
            "UntagQueue": self._untag,
        }

    async def answer(self, action: str, parameters: Structure, base_url: str) -> Structure:
        """Runs any action except ReceiveMessage, if possible in a batch. Raises the errors of the Python API."""
        try:
            return await self._answer(action, parameters, base_url)
        except EmptyBatchRequest:
            raise EmptyBatchRequest(f"There should be at least one {action}RequestEntry in the request.") from None

    async def _answer(self, action: str, parameters: Structure, base_url: str) -> Structure:
        match action:
            case "SendMessage":
                entry = send_entry(parameters, parameters.get(SENDER))
                return send_result(await self._sends.answer(queue_name(parameters["QueueUrl"]), entry), entry)
            case "SendMessageBatch":
                entries = [send_entry(entry, parameters.get(SENDER)) for entry in parameters["Entries"]]
                by_id = {entry.id: entry for entry in entries}
                result = await self._sends.answer(queue_name(parameters["QueueUrl"]), entries)
                return batch_result(result, lambda sent: send_result(sent, by_id[sent.id]))
            case "DeleteMessage" | "ChangeMessageVisibility":
                timeout = None if action == "DeleteMessage" else parameters["VisibilityTimeout"]
                wanted = parameters["ReceiptHandle"], timeout
                await self._settles.answer(queue_name(parameters["QueueUrl"]), wanted)
                return {}
        return await asyncio.to_thread(self.run, action, parameters, base_url)

    def run(self, action: str, parameters: Structure, base_url: str) -> Structure:
        """Runs an action in this thread. Refuses ReceiveMessage, DeleteMessage and ChangeMessageVisibility."""
        if action not in self._by_name:
            raise UnsupportedOperation(f"The action {action} is not supported.")
        try:
            return self._by_name[action](parameters, base_url)
        except QueueServiceError as error:  # the error may repeat a policy in its stored form
            stored = redrive_policies.arn(self.lake.region, "")
            shown = f"arn:aws:sqs:{self.lake.region}:{self.account}:"
            error.template, error.names = wire_message(error).replace(stored, shown), ()
            if isinstance(error, InvalidAttributeValue):
                error.hint = None  # the message contains the hint
            raise

    def on_queue(self, url: str, call: Callable[[Queue], _Result]) -> _Result:
        """Calls a function with the queue that a URL names. Raises QueueDoesNotExist if there is no such queue."""
        return self._on_named(queue_name(url), call)

    def _on_named(self, name: str, call: Callable[[Queue], _Result]) -> _Result:
        opened = self._queues.get(name)
        if opened is not None:
            try:
                return call(opened)
            except QueueDoesNotExist:  # the queue was deleted; a new queue may have its name
                self._queues.pop(name, None)
        return call(self.queue(name))

    def queue(self, name: str) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = self.lake.queue(name)
        return queue

    def opened(self, url: str) -> Queue | None:
        """Returns the queue that a URL names if this server has opened it before, else None. Does not block."""
        return self._queues.get(queue_name(url))

    def reopened(self, queue: Queue) -> Queue:
        """Opens the new queue that has the name of a deleted queue."""
        self._queues.pop(queue.name, None)
        return self.queue(queue.name)

    def _do(self, parameters: Structure, call: Callable[[Queue], object]) -> Structure:
        self.on_queue(parameters["QueueUrl"], call)
        return {}

    # --- queues

    def _create_queue(self, parameters: Structure, base_url: str) -> Structure:
        name = parameters["QueueName"]
        wanted = queue_attributes.to_set(parameters.get("Attributes", {}), self.account, self._encryption)
        if wanted.get("FifoQueue") == "false" and not name.endswith(".fifo"):
            raise InvalidAttributeName("Unknown Attribute FifoQueue.")
        try:  # an existing queue keeps its profile
            profile = settings(self.lake.queue(name)).profile
        except QueueDoesNotExist:
            profile = PROFILE
            self._check_shards(wanted.get("Shards", 1))
        wanted.setdefault("Profile", profile)
        queue = self.lake.create_queue(name, tags=parameters.get("tags"), **wanted)
        return {"QueueUrl": queue_url(base_url, self.account, queue.name)}

    def _check_shards(self, shards: Any, before: int = 0) -> None:
        with suppress(ValueError):  # not a number: the queue refuses it
            if parse_whole(shards) > max(before, self._max_shards):
                raise InvalidAttributeValue(
                    f"Invalid value for the parameter Shards. Reason: Must be at most {self._max_shards} here."
                )

    def _delete_queue(self, parameters: Structure, base_url: str) -> Structure:
        name = queue_name(parameters["QueueUrl"])
        self._queues.pop(name, None)
        self.lake.delete_queue(name)
        return {}

    def _get_queue_url(self, parameters: Structure, base_url: str) -> Structure:
        if parameters.get("QueueOwnerAWSAccountId", self.account) != self.account:
            raise QueueDoesNotExist()
        return {"QueueUrl": queue_url(base_url, self.account, self.lake.queue(parameters["QueueName"]).name)}

    def _list_queues(self, parameters: Structure, base_url: str) -> Structure:
        prefix, limit = parameters.get("QueueNamePrefix", ""), parameters.get("MaxResults")
        _check_page(MAX_LISTED if limit is None else limit)
        after = _parse_token(parameters.get("NextToken"))
        page = self.lake.list_queues(prefix, MAX_LISTED if limit is None else limit, after)
        urls = [queue_url(base_url, self.account, queue.name) for queue in page]
        result = {"QueueUrls": urls} if urls else {}
        if limit is None or page.next_after is None:  # as in SQS, only a request with MaxResults gets a token
            return result
        return result | {"NextToken": _token(page.next_after)}

    def _list_sources(self, parameters: Structure, base_url: str) -> Structure:
        after = _parse_token(parameters.get("NextToken")) or ""
        limit = parameters.get("MaxResults", MAX_LISTED)
        _check_page(limit)
        sources = self.on_queue(parameters["QueueUrl"], Queue.dead_letter_sources)
        names = [queue.name for queue in sources if queue.name > after]
        page = names[:limit]
        result: Structure = {"queueUrls": [queue_url(base_url, self.account, name) for name in page]}
        return result | ({"NextToken": _token(page[-1])} if len(page) < len(names) else {})

    def _get_attributes(self, parameters: Structure, base_url: str) -> Structure:
        names = parameters.get("AttributeNames", [])
        read = queue_attributes.to_read(names)
        found = self.on_queue(parameters["QueueUrl"], lambda queue: queue.attributes(read, wire=True))
        shown = queue_attributes.shown(found, names, self.account, self._encryption)
        return {"Attributes": shown} if shown else {}

    def _set_attributes(self, parameters: Structure, base_url: str) -> Structure:
        wanted = queue_attributes.to_set(parameters["Attributes"], self.account, self._encryption)
        changes = queue_attributes.with_one_encryption(wanted, self._encryption)

        def raised(current: QueueAttributes) -> Structure:
            self._check_shards(changes.get("Shards", 1), current.shards)
            return changes

        def change(queue: Queue) -> None:
            if queue.fifo and changes.get("FifoQueue") == "false":
                raise InvalidAttributeValue(
                    "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
                )
            queue.update_attributes(raised)

        return self._do(parameters, change)

    def _list_tags(self, parameters: Structure, base_url: str) -> Structure:
        tags = self.on_queue(parameters["QueueUrl"], Queue.tags)
        return {"Tags": tags} if tags else {}

    def _tag(self, parameters: Structure, base_url: str) -> Structure:
        def tag(queue: Queue) -> None:
            if not parameters["Tags"]:
                raise MissingParameter("The request must contain the parameter Tags.")
            queue.set_tags(parameters["Tags"])

        return self._do(parameters, tag)

    def _untag(self, parameters: Structure, base_url: str) -> Structure:
        def untag(queue: Queue) -> None:
            if not parameters["TagKeys"]:
                raise InvalidParameterValue("Tag keys must be between 1 and 128 characters in length.")
            queue.remove_tags(*parameters["TagKeys"])

        return self._do(parameters, untag)

    def _add_permission(self, parameters: Structure, base_url: str) -> Structure:
        def add(queue: Queue) -> None:
            queue.update_attributes(
                lambda rules: {
                    "Policy": queue_attributes.add_permission(
                        rules.policy,
                        queue_arn(queue.arn, self.account),
                        parameters["Label"],
                        parameters["AWSAccountIds"],
                        parameters["Actions"],
                    )
                }
            )

        return self._do(parameters, add)

    def _remove_permission(self, parameters: Structure, base_url: str) -> Structure:
        def remove(queue: Queue) -> None:
            queue.update_attributes(
                lambda rules: {"Policy": queue_attributes.remove_permission(rules.policy, parameters["Label"])}
            )

        return self._do(parameters, remove)

    # --- messages

    def _shards(self, name: str) -> int:
        queue = self._queues.get(name)
        return settings(queue).shards if queue else 1

    def _send_each(self, name: str, sends: list[Send]) -> list[SendOutcome]:
        return self._on_named(name, lambda queue: send_each(queue, sends))

    def _settle_each(self, name: str, wanted: list[Wanted]) -> list[SettleOutcome]:
        return self._on_named(name, lambda queue: settle_each(queue, wanted))

    def _send(self, parameters: Structure, base_url: str) -> Structure:
        entry = send_entry(parameters, parameters.get(SENDER))
        return send_result(self.on_queue(parameters["QueueUrl"], lambda queue: send_one(queue, entry)), entry)

    async def receive(
        self, queue: Queue, parameters: Structure, interrupt: Interrupt, room: Room | None = None
    ) -> tuple[list[Message], Structure]:
        """Runs ReceiveMessage. Returns the messages and the action's result. ``room`` limits their memory."""
        attribute_names = {*parameters.get("MessageAttributeNames", ())}
        request = Request(
            parameters.get("MaxNumberOfMessages"),
            parameters.get("VisibilityTimeout"),
            parameters.get("WaitTimeSeconds"),
            parameters.get("ReceiveRequestAttemptId"),
            ("All",) if attribute_names else (),
            interrupt,
            decides=False,
        )
        messages = await receive_async(queue, request, room=room)
        names = {*parameters.get("AttributeNames", ()), *parameters.get("MessageSystemAttributeNames", ())}
        received = [
            received_message(message, names, attribute_names, self.account, self.sender) for message in messages
        ]
        return messages, {"Messages": received} if messages else {}

    def release(self, queue: Queue, messages: list[Message]) -> None:
        """Makes the messages of a disconnected client visible again. Keeps the order within each message group."""
        queue.change_visibility_batch([(message.receipt_handle, 0) for message in messages])

    def _delete_message_batch(self, parameters: Structure, base_url: str) -> Structure:
        return self._settle(
            parameters, lambda queue, entries: queue.delete_batch([entry["ReceiptHandle"] for entry in entries])
        )

    def _change_visibility_batch(self, parameters: Structure, base_url: str) -> Structure:
        return self._settle(
            parameters,
            lambda queue, entries: queue.change_visibility_batch(
                [(entry["ReceiptHandle"], entry.get("VisibilityTimeout")) for entry in entries]
            ),
        )

    def _settle(self, parameters: Structure, settle: Callable[[Queue, Any], BatchResult]) -> Structure:
        entries = parameters["Entries"]

        def checked(queue: Queue) -> BatchResult:
            check_batch_ids([entry["Id"] for entry in entries], settings(queue))
            return settle(queue, entries)

        return settle_result(self.on_queue(parameters["QueueUrl"], checked), entries)

    # --- message move tasks

    def _start_move_task(self, parameters: Structure, base_url: str) -> Structure:
        rate = parameters.get("MaxNumberOfMessagesPerSecond")
        handle = self.tasks.start(
            parameters["SourceArn"], parameters.get("DestinationArn"), rate, parameters[CALLER]
        )
        return {"TaskHandle": handle}

    def _cancel_move_task(self, parameters: Structure, base_url: str) -> Structure:
        return {"ApproximateNumberOfMessagesMoved": self.tasks.cancel(parameters["TaskHandle"])}

    def _list_move_tasks(self, parameters: Structure, base_url: str) -> Structure:
        tasks = self.tasks.listed(parameters["SourceArn"], parameters.get("MaxResults", 1))
        for task in tasks:
            task |= {name: queue_arn(task[name], self.account) for name in _TASK_ARNS if name in task}
        return {"Results": tasks}


def _check_page(limit: int) -> None:
    if not 1 <= limit <= MAX_LISTED:
        raise InvalidParameterValue.of(limit, "MaxResults", f"Must be between 1 and {MAX_LISTED}.")


def _token(name: str) -> str:
    # not JSON: boto3 would take it for a token of its own paginators
    return base64.urlsafe_b64encode(f"{_AFTER}{name}".encode()).decode()


def _parse_token(token: str | None) -> str | None:
    if token is None:
        return None
    try:
        text = base64.urlsafe_b64decode(token).decode()
    except (ValueError, binascii.Error):
        text = ""
    if text.startswith(_AFTER):
        return text.removeprefix(_AFTER)
    raise InvalidParameterValue.of(token, "NextToken", "It is not a page token.")
