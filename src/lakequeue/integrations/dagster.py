"""Dagster: a resource, and a sensor that turns messages into runs. See docs/guides/dagster.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from lakequeue import LakeQueue, Message, Queue
from lakequeue.errors import MissingPackage
from lakequeue.integrations import MOST_AT_ONCE, PASSING
from lakequeue.model.arguments import check_callable, check_string, check_whole

try:
    from dagster import (
        ConfigurableResource,
        DagsterRunStatus,
        RunRequest,
        RunsFilter,
        SensorDefinition,
        SensorEvaluationContext,
        SensorResult,
        SkipReason,
    )
except ModuleNotFoundError as error:
    raise MissingPackage.of("lakequeue.integrations.dagster", "dagster", error) from None


class LakeQueueResource(ConfigurableResource):
    """A root of queues, as a Dagster resource.

    Attributes:
        root: a path or a URI.
        storage_options: see ``LakeQueue``. Dagster shows these values; for an ``EnvVar``, only its name.
    """

    root: str
    storage_options: dict[str, str] = {}

    def get_client(self) -> LakeQueue:
        """Returns the client of the root. Each process opens the root only once."""
        return _lake(self.root, frozenset(self.storage_options.items()))

    def queue(self, name: str) -> Queue:
        return self.get_client().queue(name)


@cache
def _lake(root: str, options: frozenset[tuple[str, str]]) -> LakeQueue:
    return LakeQueue(root, storage_options=dict(options))


def message_sensor(
    name: str,
    queue_name: str,
    run_request: Callable[[Message], RunRequest | None],
    *,
    max_messages: int = 100,
    visibility_timeout: float | None = None,
    resource_key: str = "lakequeue",
    **options: Any,
) -> SensorDefinition:
    """Builds a sensor that launches a run for each message, and then deletes the message.

    The message id is the key of the run, so that a repeated message starts no second run. While storage fails, the
    sensor skips its ticks and gives the error as reason.

    Args:
        name: name of the sensor.
        queue_name: name of the queue.
        run_request: returns the request for a message, or None to delete the message without a run. If the
            function raises an error or returns another value, the message comes again.
        max_messages: maximum number of messages of a tick.
        visibility_timeout: seconds to launch a run, else the message comes again; None for the queue's timeout.
        resource_key: key of the ``LakeQueueResource``.
        options: arguments of ``SensorDefinition``: ``job`` or ``target``, ``minimum_interval_seconds``, …

    Raises:
        InvalidParameterValue: an argument is out of range.
    """
    check_string("queue_name", queue_name)
    check_callable("run_request", run_request)
    check_whole("max_messages", max_messages, MOST_AT_ONCE)

    # a direct call, as in tests, passes the resources too
    def evaluate(context: SensorEvaluationContext, **_: Any) -> SensorResult | SkipReason:
        try:
            queue = getattr(context.resources, resource_key).queue(queue_name)
            requested = json.loads(context.cursor or "{}")
            _delete(queue, [requested[one] for one in _launched(context, name, list(requested))])
            # a message whose run was requested but not launched comes again
            messages = queue.receive(max_messages, visibility_timeout, wait_time=0)
            runs, done = _runs(context, name, messages, run_request)
            _delete(queue, done)
        except PASSING as error:
            context.log.warning(f"the messages of {queue_name} wait: {error}")
            return SkipReason(f"the messages of {queue_name} wait: {error}")
        handles = {one.message_id: one.receipt_handle for one in messages if one.message_id in runs}
        return SensorResult(
            run_requests=list(runs.values()),
            skip_reason=None if runs else SkipReason(f"{queue_name} has no messages that need a run"),
            cursor=json.dumps(handles),
        )

    required = {resource_key, *options.pop("required_resource_keys", ())}
    return SensorDefinition(name=name, evaluation_fn=evaluate, required_resource_keys=required, **options)


def _runs(
    context: SensorEvaluationContext,
    name: str,
    messages: Sequence[Message],
    run_request: Callable[[Message], RunRequest | None],
) -> tuple[dict[str, RunRequest], list[str]]:
    """Returns run requests by message id, and the receipt handles of messages that need no run."""
    runs, done = {}, []
    launched = set(_launched(context, name, [message.message_id for message in messages]))
    for message in messages:
        try:
            request = None if message.message_id in launched else run_request(message)
            if request is not None and not isinstance(request, RunRequest):
                raise TypeError(f"run_request must return a RunRequest or None, not {request!r}")
        except Exception:
            context.log.exception(f"no run for message {message.message_id}, which comes again")
            continue
        if request is None:
            done.append(message.receipt_handle)
        else:
            runs[message.message_id] = request.with_replaced_attrs(run_key=message.message_id)
    return runs, done


def _launched(context: SensorEvaluationContext, name: str, message_ids: Sequence[str]) -> Iterator[str]:
    """Yields the ids of messages for which Dagster has launched a run, and not only created it."""
    for message_id in message_ids:
        tags = {"dagster/run_key": message_id, "dagster/sensor_name": name}
        runs = context.instance.get_runs(filters=RunsFilter(tags=tags))
        if any(run.status != DagsterRunStatus.NOT_STARTED for run in runs):
            yield message_id


def _delete(queue: Queue, receipt_handles: Sequence[str]) -> None:
    if receipt_handles:
        queue.delete_batch(receipt_handles)
