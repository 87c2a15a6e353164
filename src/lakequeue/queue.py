"""``Queue``: the methods of a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakequeue.errors import InvalidParameterValue, LakeQueueError, MissingPackage
from lakequeue.model.arguments import (
    Condition,
    check_at,
    check_callable,
    check_identifier,
    check_interrupt,
    check_linger,
    check_priority,
    check_string,
    check_tags,
    check_text,
    check_type,
    list_of,
)
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import Clock, Duration, Interrupt, from_micros
from lakequeue.model.messages import ABSENT, BatchResult, Message, SendEntry, SendResult, receipt_handle_of
from lakequeue.operations import (
    attributes,
    browse,
    chosen_messages,
    deliveries,
    move,
    queues,
    receive,
    rewind,
    send,
    settle,
)
from lakequeue.operations.depth import by_priority, by_shard, depth
from lakequeue.operations.results import (
    GroupCounts,
    PeekedMessage,
    QueueCounts,
    SentRows,
    ShardCounts,
    UndecidedDelivery,
)
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.pickled import PickledQueue, Reopened
from lakequeue.sender import Sender

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from lakequeue.lease import Lease
    from lakequeue.model.attribute_values import ChangeableAttributes
    from lakequeue.operations.compact import CompactionSummary
    from lakequeue.storage.bulk.bad_rows import OnBadRow


_A_RECEIPT = "a receipt handle or a received message"


class QueueProperties(Reopened[PickledQueue, OpenQueue]):
    """Properties of a queue. They read no storage once the queue is open."""

    _values = PickledQueue

    @property
    def name(self) -> str:
        """Name of the queue. The name of a FIFO queue ends in ``.fifo``."""
        return self._known.name

    @property
    def region(self) -> str:
        """Region of the queue, part of its identity (NAM-6)."""
        return self._known.region

    @property
    def fifo(self) -> bool:
        """True for a FIFO queue."""
        return self._runtime.fifo

    @property
    def priorities(self) -> int | None:
        """Number of priorities of the queue's messages; None without priorities (JOB-5)."""
        return self._runtime.attributes.priorities

    @property
    def clock(self) -> Clock:
        """Source of time of the ``LakeQueue``."""
        return self._runtime.root.clock

    @property
    def created_at(self) -> datetime:
        """Instant of the queue's creation, in UTC."""
        return from_micros(self._runtime.row.created_at)

    @property
    def key(self) -> str:
        """Name of the queue's directory: a hash of region and name, and random digits."""
        return self._known.key

    @property
    def arn(self) -> str:
        """ARN of the queue: its name in SQS policies and listings."""
        return self._runtime.arn

    @property
    def dead_letter_queue(self) -> str | None:
        """ARN of the queue that gets messages received too often (DLQ-2); None without such a queue."""
        policy = self._runtime.attributes.redrive
        return None if policy is None else policy.dead_letter_queue


class Queue(QueueProperties):
    """A queue. Get one from ``LakeQueue``. Threads may share it.

    A ``with`` block closes the queue's tables at its end. A later call opens the tables again. A Queue can be
    pickled like a ``LakeQueue``. If the queue is deleted and a new queue gets its name, an unpickled Queue still
    refers to the deleted queue (JOB-13).

    Every method raises QueueDoesNotExist after the queue was deleted, and QueueClientError if storage fails. Every
    method raises RequestThrottled, and changes nothing, if other processes won all races for a commit: try again.
    """

    def __init__(self, runtime: OpenQueue) -> None:
        self._runtime = runtime

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the tables and clears the caches of this process. Deletes nothing."""
        self._runtime.release()

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, region={self.region!r})"

    def _repr_html_(self) -> str | None:
        try:
            counts, pauses = self.counts(), self._runtime.attributes.pauses
        except LakeQueueError:
            return None  # A notebook then shows the plain text.
        state = f"; {pauses[0]}" if pauses else ""
        return counts.table(f"queue {self.name}{state}")

    # --- sending

    def send(
        self,
        body: str = "",
        delay: Duration | None = None,
        attributes: Mapping[str, Any] | None = None,
        group_id: str | None = None,
        dedup_id: str | None = None,
        system_attributes: Mapping[str, Any] | None = None,
        *,
        json: Any = ABSENT,
        priority: int | None = None,
        at: datetime | None = None,
    ) -> SendResult:
        """Sends a message. The message is stored when the call returns.

        Args:
            body: text of at least one byte, and at most the queue's maximum message size.
            delay: seconds until the message becomes visible; None for the queue's delay, 0 for no delay.
            attributes: at most ten message attributes. A value is a str, number, bytes or ``(type, value)``.
            group_id: the message group, required on FIFO queues. On standard queues, a tenant for fair receives.
            dedup_id: sends with the same id store one message. On a FIFO queue, an id counts for 300 s. On a
                standard queue, an id counts for the ``deduplication_interval``. With
                ``deduplication_until_deleted``, an id counts until the message is deleted. Optional on FIFO queues
                with content-based deduplication.
            system_attributes: only ``AWSTraceHeader`` is known.
            json: a value whose compact JSON becomes the body. ``Message.json`` reads the value.
            priority: 0 to one less than the queue's ``priorities``; None means 0. Higher priorities come first.
            at: instant at which the message becomes visible, instead of ``delay``. A past instant counts as now.
                FIFO queues refuse ``at``. ``LakeQueue.schedules`` takes instants beyond the longest delay.

        Raises:
            MissingParameter, InvalidMessageContents, InvalidParameterValue: the message is refused.
            OverLimit: the queue has reached its cap on stored messages.

        SND-3, QUE-33, SND-1, SND-2, DLY-9, MSA-3, SND-4, FAI-1, DDP-1, SND-15, QUE-21, JOB-5, JOB-8
        """
        if at is not None:
            delay = check_at(self._runtime.attributes, at, delay, self.clock.now())
        fields = (body, None, delay, attributes, group_id, dedup_id, system_attributes)
        return send.send(self._runtime, SendEntry(*fields, json=json, priority=priority))

    def send_batch(self, entries: Sequence[SendEntry]) -> BatchResult:
        """Sends a batch, with a result for each entry. A refused entry does not affect the others.

        Raises:
            EmptyBatchRequest: the batch has no entry.
            TooManyEntriesInBatchRequest, BatchRequestTooLong: the batch is too long.
            InvalidBatchEntryId, BatchEntryIdsNotDistinct: entry ids are malformed or repeated.

        BAT-4, BAT-5
        """
        return send.send_batch(self._runtime, list_of("entries", entries, SendEntry, "a SendEntry"))

    def sender(self, linger: Duration | str = "100ms") -> Sender:
        """Returns a sender for producers that send messages one by one. The messages share commits.

        Args:
            linger: how long a message waits for others to share its commit, 0 to 60 s, such as ``"100ms"``. With
                0, only messages that arrive during a commit share the next commit.

        SND-19
        """
        return Sender(lambda: self._runtime, check_linger(linger))

    # --- receiving

    def receive(
        self,
        max_messages: int | None = None,
        visibility_timeout: Duration | None = None,
        wait_time: Duration | None = None,
        attempt_id: str | None = None,
        attribute_names: Sequence[str] = ("All",),
        interrupt: Interrupt | None = None,
        consumer: str | None = None,
    ) -> list[Message]:
        """Receives messages and hides them for the visibility timeout.

        Args:
            max_messages: maximum number of messages (default 1). The call waits only for the first message.
            visibility_timeout: seconds, counted from the return of the call; None for the queue's timeout.
            wait_time: seconds to wait for the first message; None for the queue's wait time.
            attempt_id: on FIFO queues, a token that makes the receive repeatable for 300 s. Another receive with
                this token returns the messages of the first that are still hidden, with the same handles and a new
                timeout.
            attribute_names: message attributes to return.
            interrupt: ends the wait early when another thread sets it.
            consumer: a name of up to 100 characters that ``peek``, SQL and the console show while the messages are
                in flight. Not allowed with an ``attempt_id``.

        Raises:
            OverLimit: a standard queue reached its cap on messages in flight.
            InvalidParameterValue: an argument is out of range.

        RCV-3, RCV-4, RCV-5, LPL-1, ATT-1, ATT-3, MSA-4, INF-3
        """
        request = receive.Request(
            max_messages, visibility_timeout, wait_time, attempt_id, attribute_names, interrupt, consumer
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
        consumer: str | None = None,
    ) -> list[Message]:
        """Receives in asyncio, and waits without a thread. A cancelled call makes claimed messages visible."""
        request = receive.Request(
            max_messages, visibility_timeout, wait_time, attempt_id, attribute_names, interrupt, consumer
        )
        return await receive.receive_async(self._runtime, request)

    # --- settling

    def delete(self, receipt_handle: str | Message) -> None:
        """Deletes a received message. Takes the message or its handle.

        Raises:
            ReceiptHandleIsInvalid: the text is not a handle of this queue.
            InvalidParameterValue: on a strict queue, the receipt has ended or is not the latest.

        RCP-6, RCP-10, RCP-9, RCP-7
        """
        settle.delete(self._runtime, receipt_handle_of(receipt_handle))

    def delete_batch(self, receipt_handles: Sequence[str | Message]) -> BatchResult:
        """Deletes several messages in one commit per shard. The id of a result is the item's index in the batch.

        Raises:
            EmptyBatchRequest, TooManyEntriesInBatchRequest: the batch is empty or too long.
            InvalidParameterValue: an item is not a handle or message. Nothing was deleted.

        DEL-10, BAT-1, BAT-5
        """
        receipts = list_of("receipt_handles", receipt_handles, (str, Message), _A_RECEIPT)
        return settle.delete_batch(self._runtime, [receipt_handle_of(one) for one in receipts])

    def change_visibility(self, receipt_handle: str | Message, visibility_timeout: Duration) -> None:
        """Makes a received message visible after this many seconds. Takes the message or its handle.

        Raises:
            ReceiptHandleIsInvalid: the text is not a handle of this queue.
            MessageNotInflight: the message was released, or on strict queues its timeout has ended.
            InvalidParameterValue: the timeout is out of range, exceeds 12 h in total, or the receipt is not the
                latest.

        VIS-1, VIS-4, RCP-12, VIS-9
        """
        settle.change_visibility(self._runtime, receipt_handle_of(receipt_handle), visibility_timeout)

    def change_visibility_batch(self, changes: Sequence[tuple[str | Message, Duration]]) -> BatchResult:
        """Changes the visibility of received messages. Each change is a pair: a message or its handle, and the
        seconds until the message becomes visible. The id of a result is the pair's index.

        Raises:
            EmptyBatchRequest, TooManyEntriesInBatchRequest: the batch is empty or too long.
            InvalidParameterValue: an item is no valid pair. Nothing was changed.

        BAT-3, BAT-1, BAT-5
        """
        pairs = list_of("changes", changes, tuple, f"a pair of {_A_RECEIPT} and seconds")
        for index, pair in enumerate(pairs):
            if len(pair) != 2 or not isinstance(pair[0], (str, Message)):
                check_type(f"changes[{index}]", pair, (), f"a pair of {_A_RECEIPT} and seconds")
        return settle.change_visibility_batch(self._runtime, [(receipt_handle_of(r), t) for r, t in pairs])

    # --- DataFrames

    def send_dataframe(
        self,
        df: DataFrame,
        send_id: str | None = None,
        order_by: str | None = None,
        on_bad_row: OnBadRow = "fail",
        bad_rows: str | None = None,
        priority: int | None = None,
    ) -> SentRows:
        """Sends every row of a DataFrame in one commit. Returns the number of messages.

        Args:
            df: needs a column ``body`` of type STRING. It may have the columns ``delay_seconds``, ``group_id``,
                ``dedup_id``, ``priority`` and ``message_attributes``. FIFO queues accept duplicates, but do not
                count them.
            send_id: makes the call repeatable. Later calls with the same id send nothing.
            order_by: on FIFO queues, the column that orders each group; None for the order of the rows.
            on_bad_row: treatment of rows that break a rule. ``"fail"`` sends no row. ``"drop"`` loses the row.
                ``"divert"`` adds the row to ``bad_rows``. The result counts bad rows as ``refused``. The log names
                the broken rules.
            bad_rows: path or URI of a Delta table outside the root. See ``stream_to_queue``. A repeated call with
                a ``send_id`` adds no row twice.
            priority: priority of rows without a priority, see ``send``.

        Raises:
            InvalidParameterValue, InvalidMessageContents: rows break a rule. The error names the rule and the
                number of rows. Nothing is sent.
            InvalidOptions: ``on_bad_row`` is unknown, or ``bad_rows`` is missing or is no table for bad rows.
            QueueClientError: there is no Spark session, or storage failed.

        DDP-1
        """
        from lakequeue.operations.send_dataframe import BulkSend, send_dataframe

        MissingPackage.check("send_dataframe", "spark", "pyspark")
        check_callable("df", df, "select", "withColumn", expected="a DataFrame")
        check_string("send_id", send_id, optional=True)
        check_string("order_by", order_by, optional=True)
        check_string("on_bad_row", on_bad_row)
        check_string("bad_rows", bad_rows, optional=True)
        of = check_priority(self._runtime.attributes, priority)
        return send_dataframe(self._runtime, df, BulkSend(send_id, order_by, on_bad_row, bad_rows, of))

    def send_arrow(
        self,
        data: Any,
        send_id: str | None = None,
        order_by: str | None = None,
        *,
        body: str = "body",
        on_bad_row: OnBadRow = "fail",
        bad_rows: str | None = None,
        priority: int | None = None,
    ) -> SentRows:
        """Sends every row of Arrow data in one commit. Returns the number of messages.

        On a standard queue, memory holds a batch of the reader and a few row groups of 4 MiB. On a FIFO queue, all
        rows wait in a temporary directory (``TMPDIR``) to be sorted by group. Memory then holds a sixteenth of the
        rows, or the largest group. For an object store, files of up to 256 MiB also wait in this directory.

        Args:
            data: a pyarrow ``Table``, ``RecordBatch`` or ``RecordBatchReader``, or an object with
                ``__arrow_c_stream__``, such as a DataFrame of polars or pandas. It needs the columns of
                ``send_dataframe``.
            send_id: makes the call repeatable. Later calls with the same id send nothing.
            order_by: on FIFO queues, the column that orders each group; None for the order of the rows.
            body: column with the bodies. ``*`` sends each row as a JSON object, without NULLs. The other columns
                of ``send_dataframe`` are also read.
            on_bad_row, bad_rows: treatment of rows that break a rule, see ``send_dataframe``.
            priority: priority of rows without a priority, see ``send``.

        Raises:
            InvalidParameterValue, InvalidMessageContents: ``data`` or rows break a rule. The error names the rule
                and the number of rows. Nothing is sent.
            InvalidOptions: ``on_bad_row`` is unknown, or ``bad_rows`` is missing or is no table for bad rows.
            QueueClientError: storage failed, or the rows could not be read.

        DDP-1
        """
        from lakequeue.operations.send_dataframe import BulkSend, send_arrow

        check_string("send_id", send_id, optional=True)
        check_string("order_by", order_by, optional=True)
        check_string("body", body)
        check_string("on_bad_row", on_bad_row)
        check_string("bad_rows", bad_rows, optional=True)
        of = check_priority(self._runtime.attributes, priority)
        return send_arrow(self._runtime, data, BulkSend(send_id, order_by, on_bad_row, bad_rows, of), body)

    def lease(self, max_messages: int = 1_000_000, visibility_timeout: Duration | None = None) -> Lease | None:
        """Claims up to ``max_messages`` under one lease. Returns None if no message is available.

        Args:
            visibility_timeout: seconds; None for the queue's timeout.

        Raises:
            OverLimit: a standard queue reached its cap on messages in flight.
            InvalidParameterValue: an argument is out of range.

        INF-3
        """
        from lakequeue.lease import Lease
        from lakequeue.operations.lease import lease

        leased = lease(self._runtime, max_messages, visibility_timeout)
        return None if leased is None else Lease(leased)

    # --- the queue itself

    def pause(self, reason: str = "paused", group_id: str | None = None) -> None:
        """Pauses receives and leases in all processes, until ``resume``. Sends continue.

        Messages in flight can be settled and extended. Consumers and waiting receives keep waiting.

        Args:
            reason: text of up to 8,192 bytes, which ``doctor``, the console and the attribute ``paused`` show.
            group_id: the message group to pause; None for the whole queue. All paused groups together may take up
                to 8,192 bytes in the attribute ``paused_groups``.

        Raises:
            InvalidParameterValue: ``reason`` is empty, or ``group_id`` is invalid.
            InvalidAttributeValue: the reasons are too long.

        JOB-1
        """
        check_string("reason", reason)
        check_identifier("group_id", group_id)
        if not reason:
            raise InvalidParameterValue.of('""', "reason", "It must have 1 to 8,192 bytes.")
        if group_id is None:
            self.set_attributes(paused=reason)
        else:
            self._pause_groups({group_id: reason})

    def resume(self, group_id: str | None = None) -> None:
        """Ends a pause of the queue or of a group. Waiting receives notice at their next poll (JOB-1)."""
        if group_id is None:
            self.set_attributes(paused=None)
        else:
            check_string("group_id", group_id)
            self._pause_groups({group_id: None})

    def _pause_groups(self, reasons: Mapping[str, str | None]) -> None:
        self.update_attributes(
            lambda known: {
                "paused_groups": {
                    group: reason for group, reason in {**(known.reasons or {}), **reasons}.items() if reason
                }
            }
        )

    def purge(self) -> None:
        """Removes every message sent before the call. Raises PurgeQueueInProgress within 60 s of the last purge.

        PUR-1, PUR-2
        """
        rewind.purge(self._runtime)

    def undecided(self) -> list[UndecidedDelivery]:
        """Returns deliveries whose rows may or may not be in the queue's delivery table, oldest first (TAB-5)."""
        return deliveries.undecided(self._runtime)

    def decide(self, *, delivered: bool) -> int:
        """Decides all ``undecided`` deliveries, for use if the table is gone. Returns the number of messages.

        Args:
            delivered: True deletes the messages. False makes them visible. Their rows then appear twice, if the
                first rows are in the table, or are still appended by a running process.

        TAB-10
        """
        check_type("delivered", delivered, bool, "True or False")
        return deliveries.decide(self._runtime, delivered)

    def rewind(self, to: datetime) -> int:
        """Restores deleted messages that were sent at ``to`` or later, in their old order. Returns their number.

        Args:
            to: aware instant, at most the queue's ``rewind_range`` ago, see ``min_rewind_time``. An instant less
                than a second too early counts as the earliest instant.

        Raises:
            UnsupportedOperation: the queue keeps no history.
            InvalidParameterValue: ``to`` is too early, in the future, or not an aware instant.

        RWD-9, RWD-15, RWD-11
        """
        return rewind.rewind(self._runtime, to)

    def rewindable(self, to: datetime) -> int:
        """Returns how many messages a rewind would make visible now. Raises the errors of ``rewind``."""
        return rewind.rewindable(self._runtime, to)

    @property
    def min_rewind_time(self) -> datetime | None:
        """Earliest instant that ``rewind`` accepts if called within a second; None without a history (RWD-24)."""
        return attributes.min_rewind_time(self._runtime)

    def attributes(self, names: Sequence[str] = ("All",), *, wire: bool = False) -> dict[str, Any]:
        """Returns attributes by their names in ``create_queue``. Durations are numbers of seconds.

        Args:
            names: attributes to return; None for all. Omits attributes that the queue does not have.
            wire: True to return values as texts by their SQS names, with counts, times and the ARN.

        Raises:
            InvalidAttributeName: a name is unknown.

        QUE-23
        """
        check_type("wire", wire, bool, "True or False")
        return attributes.read(self._runtime, list_of("names", names, str, "a text"), wire)

    def set_attributes(self, **changes: Unpack[ChangeableAttributes]) -> None:
        """Changes attributes in every process, from this commit on.

        Raises:
            InvalidAttributeName, InvalidAttributeValue: see ``QueueAttributes``. Nothing is changed.
            InvalidParameterValue: a redrive policy is malformed, names a queue of the other kind (standard or
                FIFO), or names a queue that does not allow this source.
            QueueDoesNotExist: the dead-letter queue does not exist.

        QUE-25, DLQ-2, DLQ-3, DLQ-6
        """
        self.update_attributes(lambda attributes: changes)

    def update_attributes(self, update: Callable[[QueueAttributes], Mapping[str, Any]]) -> None:
        """Applies the changes that ``update`` returns for the current attributes.

        Calls ``update`` again if another process changed attributes or shards. Raises the errors of
        ``set_attributes``.
        """
        check_callable("update", update)
        attributes.update(self._runtime, update)

    def counts(self) -> QueueCounts:
        """Counts messages by state, exact at one instant per shard. ``doctor`` warns of slow shards."""
        return depth(self._runtime).counts

    def priority_counts(self) -> list[QueueCounts]:
        """Returns ``counts`` for each priority, from 0 on. Without priorities, returns one item (JOB-5)."""
        return by_priority(self._runtime)

    def shard_counts(self) -> list[ShardCounts]:
        """Counts messages and lost races of each shard. Takes 100 requests a shard on object stores (QUE-35)."""
        return by_shard(self._runtime)

    def groups(self, limit: int = 10) -> list[GroupCounts]:
        """Returns the numbers of visible and in-flight messages of each message group, largest groups first.

        Reads all stored messages, a million in half a second. Raises InvalidParameterValue for ``limit`` below 1.

        FAI-3
        """
        from lakequeue.operations.group_depth import group_counts

        return group_counts(self._runtime, limit)

    def peek(
        self,
        where: str | None = None,
        limit: int = 10,
        interrupt: Interrupt | None = None,
        *,
        parameters: Sequence[Any] = (),
    ) -> list[PeekedMessage]:
        """Returns the oldest messages without receiving them. Nothing changes.

        Args:
            where: a condition in SQL (docs/reference/conditions.md). Its columns are ``message_id``, ``group_id``,
                ``dedup_id``, ``body``, ``message_attributes`` (a map from names to texts, binary values in
                base64), ``state``, ``receive_count``, ``consumer`` (of a message in flight), ``sent_at``,
                ``visible_at``, ``age`` (in seconds), ``source_queue``, and as JSON ``dead_letter_reason`` and
                ``attempts``. Messages are tested oldest first, until ``limit`` are found. A message for which the
                condition is NULL is not returned.
            limit: maximum number of messages.
            interrupt: when another thread sets it, the search ends with QueueClientError.
            parameters: a value for each ``?`` of ``where``: a text, number, bool, aware instant or None. Example:
                ``peek("body = ? AND sent_at > ?", parameters=[text, instant])``.

        Raises:
            InvalidParameterValue: ``limit`` is below 1, or ``where`` is malformed or needs too much time or
                memory.
        """
        check_interrupt(interrupt)
        return browse.peek(self._runtime, Condition.of(where, parameters), limit, interrupt)

    def redrive(
        self,
        max_messages: int | None = None,
        where: str | None = None,
        progress: Callable[[int], None] = lambda moved: None,
        destination: Queue | None = None,
        interrupt: Interrupt | None = None,
        *,
        parameters: Sequence[Any] = (),
    ) -> int:
        """Moves messages of a dead-letter queue back to their sources. Returns the number of moved messages.

        Moves visible messages, oldest first. Moved messages arrive like new messages: never received, with age 0.
        A message stays if its source queue was deleted, or if it did not come as a dead letter.

        Args:
            max_messages: maximum number of messages; None moves all.
            where: a condition in SQL as for ``peek``; None moves every message.
            progress: called with the number of messages moved so far.
            destination: another queue of the same kind for all messages.
            interrupt: when another thread sets it, the redrive ends with QueueClientError.
            parameters: as for ``peek``.

        Raises:
            UnsupportedOperation: this is no dead-letter queue, and ``destination`` is not given.
            QueueDoesNotExist: ``destination`` was deleted.
            InvalidParameterValue: an argument is wrong, and nothing was moved. Also if the condition fails on a
                message, or needs too much time or memory: the text then says how many messages were moved.

        DLQ-8
        """
        check_callable("progress", progress)
        check_interrupt(interrupt)
        target = _runtime_of(destination)
        condition = Condition.of(where, parameters)
        return move.redrive(self._runtime, max_messages, condition, progress, target, interrupt)

    def redrivable(
        self,
        where: str | None = None,
        interrupt: Interrupt | None = None,
        destination: Queue | None = None,
        *,
        parameters: Sequence[Any] = (),
    ) -> dict[str, int]:
        """Counts messages that ``redrive`` would move, by target queue name. Raises the errors of ``redrive``."""
        check_interrupt(interrupt)
        target = _runtime_of(destination)
        return move.redrivable(self._runtime, Condition.of(where, parameters), interrupt, target)

    def compact(self, *, now: float | None = None) -> CompactionSummary:
        """Frees storage that the queue no longer needs. Other calls notice nothing. See ``LakeQueue.compact``."""
        from lakequeue.operations.compact import compact

        return compact(self._runtime, now)

    def get(self, message_id: str) -> PeekedMessage:
        """Returns a message by its id, without a receive. Finds a deleted message as long as a table still has it.

        The search begins with messages of the time that the id contains. For dead letters and bulk sends, it may
        read the whole log, in 0.2 s for 300,000 messages.

        Raises:
            InvalidParameterValue: the log has no message with this id.

        JOB-2
        """
        check_text("message_id", message_id)
        return chosen_messages.get(self._runtime, message_id)

    def cancel(self, message_id: str) -> bool:
        """Deletes a message by its id, in any state. A rewind can restore it. A handler sees ``lost`` within 2 s.

        Returns:
            True if this call deleted the message. False if the message was already deleted, expired or moved.

        Raises:
            InvalidParameterValue: the queue's log has no message with this id.

        JOB-3
        """
        check_text("message_id", message_id)
        return chosen_messages.cancel(self._runtime, message_id)

    def reschedule(self, message_id: str, at: datetime) -> bool:
        """Makes a visible or delayed message visible at an instant.

        Args:
            message_id: the id that the send returned.
            at: an instant with a time zone, before the message expires. A past instant counts as now.

        Returns:
            True if the message was visible or delayed. False if it is in flight, held, deleted, or moving to
            another queue.

        Raises:
            InvalidParameterValue: the queue's log has no message with this id, or the message expires before
                ``at``.
            UnsupportedOperation: the queue is a FIFO queue.

        JOB-12
        """
        check_text("message_id", message_id)
        return chosen_messages.reschedule(self._runtime, message_id, at)

    def erase(self, message_id: str) -> bool:
        """Removes the content of a message for good. Returns False if the content was removed before.

        Deletes the message, in any state and from the rewind history. The message's row in the log keeps message
        id and times. The row loses body, attributes, sender, trace header, message group and deduplication id. On
        a FIFO queue, the row keeps group and deduplication id for five minutes: call the method again afterwards.
        The old files are deleted at once on a local disk, and after 48 hours on an object store.
        docs/operation/erasing.md lists where copies remain.

        Raises:
            InvalidParameterValue: the queue's log has no message with this id.
            QueueClientError: the message was deleted, but not cleared everywhere. Call the method again.

        DUR-42
        """
        check_text("message_id", message_id)
        return chosen_messages.erase(self._runtime, message_id)

    def dead_letter_sources(self) -> list[Queue]:
        """Returns the queues whose dead-letter queue is this queue (DLQ-7). Searches the region."""
        return [Queue(queue) for queue in queues.dead_letter_sources(self._runtime)]

    def tags(self) -> dict[str, str]:
        """Returns the queue's tags (QUE-28)."""
        return attributes.tags(self._runtime)

    def set_tags(self, /, tags: Mapping[str, str] | None = None, **more: str) -> None:
        """Adds or overwrites tags. Keys are case-sensitive.

        Raises:
            InvalidParameterValue: a key is no text of 1 to 128 characters, a value is no text of up to 256
                characters, or the queue would have more than 50 tags.

        QUE-28
        """
        attributes.add_tags(self._runtime, check_tags({**check_tags({} if tags is None else tags), **more}))

    def remove_tags(self, *keys: str) -> None:
        """Removes tags. Ignores keys that the queue does not have (QUE-28)."""
        attributes.remove_tags(self._runtime, list_of("keys", keys, str, "a text"))


def _runtime_of(destination: Queue | None) -> OpenQueue | None:
    if destination is None:
        return None
    check_type("destination", destination, Queue, "a Queue")
    return destination._runtime
