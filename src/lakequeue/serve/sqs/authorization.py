"""The permissions that an SQS request needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lakequeue.errors import InvalidParameterValue
from lakequeue.model import redrive_policies
from lakequeue.serve.auth import Caller, require
from lakequeue.serve.sqs.move_tasks import parse_task_handle
from lakequeue.serve.sqs.queue_urls import queue_name


def named_queues(parameters: Mapping[str, Any]) -> list[str | None]:
    """Returns the names of the queues in a request. Returns a list with None if the request names no queue."""
    if "QueueUrl" in parameters:
        return [queue_name(parameters["QueueUrl"])]
    arns = [parameters[name] for name in ("SourceArn", "DestinationArn") if name in parameters]
    if "TaskHandle" in parameters:
        arns = [parse_task_handle(parameters["TaskHandle"])[1]]
    return [arn.rpartition(":")[2] for arn in arns] or [parameters.get("QueueName")]


def check_permissions(caller: Caller, action: str, parameters: Mapping[str, Any]) -> None:
    """Raises RequestError if the caller lacks a permission that the action needs on a queue."""
    required: list[tuple[str, str | None]] = [(action, queue) for queue in named_queues(parameters)]
    if action == "StartMessageMoveTask":
        source, *destination = required
        required += [("ReceiveMessage", source[1]), *(("SendMessage", queue) for _, queue in destination)]
    if action == "CreateQueue" and parameters.get("tags"):
        required.append(("TagQueue", required[0][1]))
    if action in ("CreateQueue", "SetQueueAttributes"):
        with suppress(InvalidParameterValue):  # the action itself refuses it
            policy = redrive_policies.redrive_policy(parameters.get("Attributes", {}).get("RedrivePolicy"))
            if policy is not None:
                required.append(("SendMessage", policy.dead_letter_queue.rpartition(":")[2]))
                required.append(("ReceiveMessage", required[0][1]))
    for needed, queue in required:
        require(caller, needed, queue)
