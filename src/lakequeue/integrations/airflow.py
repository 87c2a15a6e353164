"""An operator that sends, a sensor and a trigger for Airflow 3.3 and later. See docs/guides/airflow.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from typing import Any

from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.errors import LakeQueueError, MissingPackage
from lakequeue.integrations import MOST_AT_ONCE
from lakequeue.integrations.airflow_triggers import (
    DEFAULT_CONNECTION,
    LakeQueueEventTrigger,
    LakeQueueSensorTrigger,
    root_of,
)
from lakequeue.model.arguments import check_type, check_whole

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
    from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator
except ModuleNotFoundError as error:
    raise MissingPackage.of("lakequeue.integrations.airflow", "airflow", error) from None


class LakeQueueHook(BaseHook):
    """Opens the root that a connection names as its host. The password has the storage options as JSON."""

    conn_name_attr = "lakequeue_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "lakequeue"
    hook_name = "lakequeue"

    def __init__(self, lakequeue_conn_id: str = DEFAULT_CONNECTION) -> None:
        super().__init__()
        self.lakequeue_conn_id = lakequeue_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {
            "hidden_fields": ["port", "schema", "login", "extra"],
            "relabeling": {"host": "Root", "password": "Storage options (JSON)"},
            "placeholders": {"host": "s3://bucket/queues"},
        }

    @cached_property
    def _lake(self) -> LakeQueue:
        root, options = root_of(self.get_connection(self.lakequeue_conn_id))
        return LakeQueue(root, storage_options=options)

    def get_conn(self) -> LakeQueue:
        """Returns the connection's root. Raises InvalidOptions, which names the invalid fields."""
        return self._lake

    def queue(self, name: str) -> Queue:
        return self._lake.queue(name)

    def test_connection(self) -> tuple[bool, str]:
        """Tries to read the root. Returns True on success, and a text for Airflow's connection form."""
        try:
            self._lake.list_queues(limit=1)
        except LakeQueueError as error:
            return False, str(error)
        return True, "The root can be read."


class LakeQueuePublishOperator(BaseOperator):
    """Sends messages, and returns their ids.

    If the task is tried again, it sends the messages again. On a FIFO queue, all tries use the same deduplication
    ids, so that tries within five minutes send each message once (DDP-1).

    Args:
        queue_name: name of the queue. Templated.
        messages: a text, or a list of texts and of values to send as JSON. Templated.
        group_id: message group, required on FIFO queues. Templated.
        delay: seconds until the messages become visible; None for the queue's delay.
        attributes: attributes of each message. Templated.
        lakequeue_conn_id: id of the connection. Templated.

    Raises:
        InvalidParameterValue: ``messages`` is neither a text nor a list.
        QueueServiceError: a message is refused. If other messages were sent, the error names the unsent messages.
    """

    template_fields = ("queue_name", "messages", "group_id", "attributes", "lakequeue_conn_id")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        queue_name: str,
        messages: str | Sequence[Any],
        group_id: str | None = None,
        delay: float | timedelta | None = None,
        attributes: Mapping[str, Any] | None = None,
        lakequeue_conn_id: str = DEFAULT_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name, self.messages, self.group_id = queue_name, messages, group_id
        self.delay, self.attributes, self.lakequeue_conn_id = delay, attributes, lakequeue_conn_id

    def execute(self, context: Mapping[str, Any]) -> list[str]:
        check_type("messages", self.messages, Sequence, "a text or a list")
        queue = LakeQueueHook(self.lakequeue_conn_id).queue(self.queue_name)
        run = context["ti"]
        task = json.dumps([run.dag_id, run.task_id, run.map_index, run.run_id])
        entries = []
        for index, message in enumerate([self.messages] if isinstance(self.messages, str) else self.messages):
            content = {"body": message} if isinstance(message, str) else {"json": message}
            entries.append(
                SendEntry(
                    **content,
                    delay=self.delay,
                    attributes=self.attributes,
                    group_id=self.group_id,
                    dedup_id=sha256(f"{task}{index}".encode()).hexdigest() if queue.fifo else None,
                )
            )
        sent = queue.send_batch(entries)
        sent.raise_for_failures()
        return [str(one.message_id) for one in sent.successful]


class LakeQueueSensor(BaseSensorOperator):
    """Waits for messages in the triggerer, and returns them. Each message goes to one waiting sensor.

    The messages are deleted after the task has succeeded. If the triggerer or the worker dies earlier, the
    messages become visible when their visibility timeout ends.

    Args:
        queue_name: name of the queue. Templated.
        max_messages: maximum number of messages. One message is enough to succeed.
        visibility_timeout: seconds for a worker to start and finish the task; None for the queue's timeout.
        delete: False to leave the messages in flight for a later task, which deletes them by receipt handle.
        lakequeue_conn_id: id of the connection. Templated.
        kwargs: arguments of every sensor, for example ``timeout`` and ``soft_fail``.

    Returns:
        A list of dicts: ``message_id``, ``receipt_handle``, ``body``, ``attributes`` (binary values in base64),
        ``receive_count``, ``sent_at`` (ISO 8601) and ``group_id``.

    Raises:
        InvalidParameterValue: an argument is out of range.
    """

    template_fields = ("queue_name", "lakequeue_conn_id")

    def __init__(
        self,
        *,
        queue_name: str,
        max_messages: int = 1,
        visibility_timeout: float | None = None,
        delete: bool = True,
        lakequeue_conn_id: str = DEFAULT_CONNECTION,
        on_success_callback: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        check_whole("max_messages", max_messages, MOST_AT_ONCE)
        given = [on_success_callback] if callable(on_success_callback) else on_success_callback or []
        super().__init__(on_success_callback=[_delete_received, *given], **kwargs)
        self.queue_name, self.lakequeue_conn_id = queue_name, lakequeue_conn_id
        self.max_messages, self.visibility_timeout, self.delete = max_messages, visibility_timeout, delete
        self._received: list[str] = []

    def execute(self, context: Mapping[str, Any]) -> None:
        trigger = LakeQueueSensorTrigger(
            self.queue_name, self.lakequeue_conn_id, self.max_messages, self.visibility_timeout
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Mapping[str, Any], event: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._received = [message["receipt_handle"] for message in event] if self.delete else []
        return event

    def delete_received(self) -> None:
        """Deletes the messages that this try of the task received. Called after the task has succeeded."""
        if self._received:
            queue = LakeQueueHook(self.lakequeue_conn_id).queue(self.queue_name)
            queue.delete_batch(self._received).raise_for_failures()


def _delete_received(context: Mapping[str, Any]) -> None:
    context["task"].delete_received()


class LakeQueueMessageQueueProvider(BaseMessageQueueProvider):
    """Lets ``MessageQueueTrigger(scheme="lakequeue", …)`` take the arguments of ``LakeQueueEventTrigger``."""

    scheme = "lakequeue"

    def trigger_class(self) -> type[LakeQueueEventTrigger]:
        return LakeQueueEventTrigger
