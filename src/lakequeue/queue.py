"""One queue, as its users see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakequeue.lease import Lease
from lakequeue.model.arguments import check_tags
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import Duration, from_micros
from lakequeue.model.interrupts import Interrupt
from lakequeue.model.messages import BatchResult, Message, SendEntry, SendResult
from lakequeue.operations import attributes, browse, move, purge, queues, receive, rewind, send, settle
from lakequeue.operations.depth import depth
from lakequeue.operations.results import PeekedMessage, QueueCounts
from lakequeue.runtime.open_queue import OpenQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from lakequeue.model.attribute_types import ChangeableAttributes
    from lakequeue.operations.compact import CompactionSummary


class Queue:
    """A queue incarnation. Get one from ``LakeQueue``; thread-safe.

    As a context manager it releases at the end what this process holds of the queue; a later call opens it again.

    Every method raises QueueDoesNotExist once the queue was deleted, RequestThrottled when other
    processes won every race for a commit (nothing was changed; try again), and QueueClientError
    when storage fails.
    """

    def __init__(self, runtime: OpenQueue) -> None:
        self._runtime = runtime

    @property
    def runtime(self) -> OpenQueue:
        """What this process holds of the queue: internals, which may change in any release."""
        return self._runtime

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def region(self) -> str:
        return self._runtime.region

    @property
    def fifo(self) -> bool:
        return self._runtime.fifo

    @property
    def created_at(self) -> datetime:
        return from_micros(self._runtime.row.created_at)

    @property
    def key(self) -> str:
        """Name of the queue's directory: a hash of region and name, and the incarnation."""
        return self._runtime.key

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the tables that this process holds open and what it has cached; deletes nothing."""
        self._runtime.release()

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, region={self.region!r})"

    # --- sending

    def send(
        self,
        body: str,
        delay: Duration | None = None,
        attributes: Mapping[str, Any] | None = None,
        group_id: str | None = None,
        dedup_id: str | None = None,
        system_attributes: Mapping[str, Any] | None = None,
    ) -> SendResult:
        """Sends one message; it is stored when the call returns (SND-3, QUE-33).

        Args:
            body: text of at least one byte, at most the queue's maximum message size (SND-1, SND-2).
            delay: seconds until it becomes visible; None is the queue's delay, 0 overrides it (DLY-9).
            attributes: at most ten, each a str, number, bytes or ``(type, value)`` (MSA-3).
            group_id: the message group on FIFO queues, which must have one (SND-4); a tag on standard ones.
            dedup_id: on FIFO queues, what makes a repeated send the same message for 300 s (DDP-1); not
                needed with content-based deduplication.
            system_attributes: ``AWSTraceHeader`` (SND-15).

        Raises:
            MissingParameter, InvalidMessageContents, InvalidParameterValue: the message is refused.
            OverLimit: the queue stores as many messages as it may (QUE-21).
        """
        entry = SendEntry(body, None, delay, attributes, group_id, dedup_id, system_attributes)
        return send.send(self._runtime, entry)

    def send_batch(self, entries: Sequence[SendEntry]) -> BatchResult:
        """Sends a batch, with a result for each entry; a refused entry does not fail the others (BAT-4).

        Raises:
            EmptyBatchRequest: the batch has no entry (BAT-5).
            TooManyEntriesInBatchRequest, BatchRequestTooLong: the batch is too long.
            InvalidBatchEntryId, BatchEntryIdsNotDistinct: ids of its entries are malformed or repeated.
        """
        return send.send_batch(self._runtime, entries)

    # --- receiving

    def receive(
        self,
        max_messages: int | None = None,
        visibility_timeout: Duration | None = None,
        wait_time: Duration | None = None,
        attempt_id: str | None = None,
        attribute_names: Sequence[str] = ("All",),
        interrupt: Interrupt | None = None,
    ) -> list[Message]:
        """Receives messages and hides them from others for the visibility timeout (RCV-3).

        Args:
            max_messages: maximum number of messages (default 1); the call does not wait for more than the first.
            visibility_timeout: seconds, counted from the return (RCV-4); None is the queue's (RCV-5).
            wait_time: seconds to wait for the first message (LPL-1); None is the queue's.
            attempt_id: on FIFO queues, a token of this receive: for as long as its messages are hidden, at most
                300 s, a receive with the same id returns them again with the same handles and hides them again
                (ATT-1, ATT-3).
            attribute_names: which message attributes to return (MSA-4).
            interrupt: ends the wait early when another thread sets it.

        Raises:
            OverLimit: a standard queue has as many messages in flight as it may (INF-3).
            InvalidParameterValue: an argument is out of range.
        """
        request = receive.Request(
            max_messages, visibility_timeout, wait_time, attempt_id, attribute_names, interrupt
        )
        return receive.receive(self._runtime, request)

    async def receive_async(
        self,
        max_messages: int | None = None,
        visibility_timeout: Duration | None = None,
        wait_time: Duration | None = None,
        attempt_id: str | None = None,
        attribute_names: Sequence[str] = ("All",),
        interrupt: Interrupt | None = None,
    ) -> list[Message]:
        """``receive`` for asyncio: no thread is held while it waits."""
        request = receive.Request(
            max_messages, visibility_timeout, wait_time, attempt_id, attribute_names, interrupt
        )
        return await receive.receive_async(self._runtime, request)

    # --- settling

    def delete(self, receipt_handle: str) -> None:
        """Deletes a received message; an older receipt does nothing on lenient queues (RCP-6, RCP-10).

        Raises:
            ReceiptHandleIsInvalid: not a handle of this queue (RCP-9).
            InvalidParameterValue: a strict queue, and the receipt is over or not the latest (RCP-7).
        """
        settle.delete(self._runtime, receipt_handle)

    def delete_batch(self, receipt_handles: Sequence[str]) -> BatchResult:
        """Deletes several messages in one commit per shard, with a result for each (DEL-10).

        Entry ids are the indexes of the handles.
        """
        return settle.delete_batch(self._runtime, receipt_handles)

    def change_visibility(self, receipt_handle: str, visibility_timeout: Duration) -> None:
        """Makes a received message visible in this many seconds; 0 makes it visible at once (VIS-1, VIS-4).

        Raises:
            ReceiptHandleIsInvalid: not a handle of this queue.
            MessageNotInflight: it was handed back, or on strict queues its time is over (RCP-12).
            InvalidParameterValue: out of range, more than 12 h in all (VIS-9), or not the latest receipt.
        """
        settle.change_visibility(self._runtime, receipt_handle, visibility_timeout)

    def change_visibility_batch(self, changes: Sequence[tuple[str, Duration]]) -> BatchResult:
        """Changes several receipts in one commit per shard, with a result for each (BAT-3)."""
        return settle.change_visibility_batch(self._runtime, changes)

    # --- DataFrames

    def send_dataframe(self, df: DataFrame, send_id: str | None = None, order_by: str | None = None) -> int:
        """Sends every row of a DataFrame as a message, in one commit; returns how many.

        Args:
            df: column ``body`` STRING; optionally ``delay_seconds``, ``group_id``, ``dedup_id``,
                ``message_attributes``.
            send_id: repeating a call with the same id sends nothing twice, for good.
            order_by: on FIFO queues, a column that the messages of each group follow; None is the order of
                the rows. It may be one beside those above.

        Duplicates on FIFO queues are accepted and do not count (DDP-1).

        Raises:
            InvalidParameterValue, InvalidMessageContents: rows break a rule; says how many and which
                rule, and nothing is sent.
            QueueClientError: no Spark session, or storage failed.
        """
        from lakequeue.operations.send_dataframe import send_dataframe

        return send_dataframe(self._runtime, df, send_id, order_by)

    def lease(self, max_messages: int = 1_000_000, visibility_timeout: Duration | None = None) -> Lease | None:
        """Claims up to ``max_messages`` at once under one lease; None if none is available.

        ``Lease.messages`` is their DataFrame. Only the cap on messages in flight limits the number.
        """
        from lakequeue.operations.lease import lease

        leased = lease(self._runtime, max_messages, visibility_timeout)
        return None if leased is None else Lease(leased)

    # --- the queue itself

    def purge(self) -> None:
        """Removes every message sent before (PUR-1).

        Raises:
            PurgeQueueInProgress: the last purge is less than 60 s old (PUR-2).
        """
        purge.purge(self._runtime)

    def rewind(self, to: datetime) -> int:
        """Makes deleted messages that were sent at ``to`` or later consumable again, in their old order (RWD-9).

        Messages that are in flight or were not received yet stay as they are. Returns how many came back.

        Args:
            to: an aware instant, at most the queue's ``rewind_range`` ago; see ``min_rewind_time``.

        Raises:
            UnsupportedOperation: the queue keeps no history (RWD-15).
            InvalidParameterValue: ``to`` is too early (RWD-11), in the future, or no aware instant.
        """
        return rewind.rewind(self._runtime, to)

    @property
    def min_rewind_time(self) -> datetime | None:
        """The earliest instant that ``rewind`` takes now and finds messages from; None without rewind (RWD-24)."""
        return attributes.min_rewind_time(self._runtime)

    def attributes(self, names: Sequence[str] = ("All",)) -> dict[str, str]:
        """The queue's attributes and counts by their SQS names, as strings (QUE-23).

        Raises:
            InvalidAttributeName: a name that is none.
        """
        return attributes.read(self._runtime, names)

    @property
    def arn(self) -> str:
        """Name of the queue in policies and listings of SQS."""
        return self._runtime.arn

    def set_attributes(self, **changes: Unpack[ChangeableAttributes]) -> None:
        """Changes attributes; they hold from this commit on, in every process (QUE-25).

        Raises:
            InvalidAttributeName, InvalidAttributeValue: see ``QueueAttributes``; nothing is changed.
            InvalidParameterValue: a redrive policy is malformed (DLQ-2), or names a queue that is of another
                kind (DLQ-3) or does not allow it (DLQ-6).
            QueueDoesNotExist: the dead-letter queue does not exist.
        """
        self.update_attributes(lambda attributes: changes)

    def update_attributes(self, update: Callable[[QueueAttributes], Mapping[str, Any]]) -> None:
        """Changes attributes, given those that are replaced; errors as in ``set_attributes``.

        ``update`` may be called again if another process changes them at the same time.
        """
        attributes.update(self._runtime, update)

    def counts(self) -> QueueCounts:
        """Messages by state, exact at one snapshot per shard; cheap whatever the backlog.

        A shard with more than about 200,000 runs (scattered receipts) becomes slow.
        """
        return depth(self._runtime).counts

    def peek(
        self, where: str | None = None, limit: int = 10, interrupt: Interrupt | None = None
    ) -> list[PeekedMessage]:
        """Returns the oldest messages without receiving them; nothing changes.

        Args:
            where: a condition in SQL (docs/reference/conditions.md) on ``message_id``, ``body``, ``state``,
                ``receive_count``, ``sent_at``, ``visible_at``, ``age`` (seconds), ``group_id``, ``dedup_id``,
                ``source_queue`` (its name) and ``message_attributes`` (a map from names to texts; binary values in
                base64). NULL is not true.
                Messages are tested oldest first, until ``limit`` are found.
            limit: maximum number of messages.
            interrupt: when another thread sets it, the search ends with QueueClientError.

        Raises:
            InvalidParameterValue: ``limit`` is below 1, or ``where`` is no such condition, or needs more time or
                memory than it may have.
        """
        return browse.peek(self._runtime, where, limit, interrupt)

    def redrive(
        self,
        max_messages: int | None = None,
        where: str | None = None,
        progress: Callable[[int], None] = lambda moved: None,
        destination: Queue | None = None,
        interrupt: Interrupt | None = None,
    ) -> int:
        """Moves messages of a dead-letter queue back to the queues that they come from; returns how many (DLQ-8).

        They arrive as if they were sent now: never received, and with age 0. Visible messages are moved, oldest
        first. Messages stay if their queue was deleted, or if they did not come as dead letters.

        Args:
            max_messages: maximum number of messages; None moves all.
            where: which messages, a condition in SQL as for ``peek``.
            progress: called with the number of messages moved so far.
            destination: another queue of the same kind that takes all of them, wherever they come from.
            interrupt: when another thread sets it, the redrive ends with QueueClientError.

        Raises:
            InvalidParameterValue: ``max_messages`` is below 1, ``where`` is no condition, or ``destination`` is of
                the other kind or the queue itself; nothing was moved. Or the condition fails on a message, or
                needs more time or memory than it may have; the error says how many messages were moved before.
        """
        target = None if destination is None else destination.runtime
        return move.redrive(self._runtime, max_messages, where, progress, target, interrupt)

    def redrivable(self, where: str | None = None, interrupt: Interrupt | None = None) -> dict[str, int]:
        """How many messages a redrive would move now, by the name of the queue that takes them."""
        return move.redrivable(self._runtime, where, interrupt)

    def compact(self) -> CompactionSummary:
        """Frees the storage that the queue no longer needs, in one pass; changes no answer.

        See ``LakeQueue.compact``, which does it for all queues, and also removes deleted ones.
        """
        from lakequeue.operations.compact import compact

        return compact(self._runtime)

    def dead_letter_sources(self) -> list[Queue]:
        """The queues of the region whose redrive policies name this one (DLQ-7)."""
        return [Queue(queue) for queue in queues.dead_letter_sources(self._runtime)]

    @property
    def dead_letter_queue(self) -> str | None:
        """ARN of the queue that takes messages that were received too often (DLQ-2)."""
        policy = self._runtime.attributes.redrive
        return None if policy is None else policy.dead_letter_queue

    def tags(self) -> dict[str, str]:
        """The queue's tags (QUE-28)."""
        return attributes.tags(self._runtime)

    def set_tags(self, tags: Mapping[str, str] | None = None, **more: str) -> None:
        """Adds or overwrites tags; keys are case-sensitive (QUE-28)."""
        attributes.add_tags(self._runtime, check_tags(dict(tags or {}) | more))

    def remove_tags(self, *keys: str) -> None:
        """Removes tags; ignores keys that the queue does not have (QUE-28)."""
        attributes.remove_tags(self._runtime, keys)
