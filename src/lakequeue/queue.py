"""One queue, as its users see it: validate, ask the shards, translate."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs

from lakequeue.errors import (
    InvalidParameterValue,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    coded_for,
)
from lakequeue.lease import Lease
from lakequeue.model import receipt_handles, redrive_policies
from lakequeue.model.attributes import (
    HIDDEN,
    QueueAttributes,
    check_attempt_id,
    check_max_messages,
    check_tags,
    check_visibility_timeout,
    check_wait,
    selected,
)
from lakequeue.model.clock import Duration, from_micros, to_micros
from lakequeue.model.interrupts import Interrupt
from lakequeue.model.messages import (
    BatchFailure,
    BatchResult,
    BatchSuccess,
    Message,
    SendEntry,
    SendResult,
    ValidEntry,
    check_batch_ids,
    validate_batch,
    validate_entry,
)
from lakequeue.operations import browse
from lakequeue.operations.move import Mover
from lakequeue.operations.receive import Receiver, Request
from lakequeue.operations.results import PeekedMessage, QueueCounts
from lakequeue.operations.send import Sender
from lakequeue.operations.settle import Maker, Settler, change_to
from lakequeue.operations.steps import Steps
from lakequeue.runtime.shard_service import ShardService
from lakequeue.runtime.waiters import Place
from lakequeue.shard import (
    Close,
    Delete,
    Purge,
    Result,
    Rewind,
    SetAttributes,
)
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.commit import StaleAttributes
from lakequeue.storage.layout import stream_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakequeue.client import LakeQueue
    from lakequeue.operations.compact import CompactionSummary
    from lakequeue.storage.bulk import commit_files
    from lakequeue.storage.bulk.manifests import SendKey

_Checked = TypeVar("_Checked")


class Queue:
    """A queue incarnation. Get one from ``LakeQueue``; thread-safe.

    Every method raises QueueDoesNotExist once the queue was deleted, RequestThrottled when other
    processes won every race for a commit (nothing was changed; try again), and QueueClientError
    when storage fails.
    """

    def __init__(self, owner: LakeQueue, row: QueueRow, shards: list[ShardService]) -> None:
        self.owner = owner
        self._row = row
        self._attributes = QueueAttributes.from_wire(row.attributes)
        self._shards = shards
        self._sender = Sender(shards, self.now_micros)
        self._mover = Mover(owner, row, shards)
        self._receiver = Receiver(row, shards, self._mover, self.now_micros)
        self._settler = Settler(row, shards, owner.storage_errors)

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def region(self) -> str:
        return self._row.region

    @property
    def fifo(self) -> bool:
        return self._attributes.fifo

    @property
    def created_at(self) -> datetime:
        return from_micros(self._row.created_at)

    @property
    def key(self) -> str:
        """Name of the queue's directory: a hash of region and name, and the incarnation."""
        return self._row.key

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
        """Sends one message; it is stored when this returns (SND-3, QUE-33).

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
        with self.service():
            outcome = self._deliver(lambda: [validate_entry(entry, self._attributes)])[0]
            if isinstance(outcome, QueueServiceError):
                raise outcome
            return cast(SendResult, outcome)

    def send_batch(self, entries: Sequence[SendEntry]) -> BatchResult:
        """Sends a batch, with a result for each entry; what is refused does not fail the rest (BAT-4).

        Raises:
            EmptyBatchRequest: the batch has no entry (BAT-5).
            TooManyEntriesInBatchRequest, BatchRequestTooLong: the batch is too long.
            InvalidBatchEntryId, BatchEntryIdsNotDistinct: ids of its entries are malformed or repeated.
        """
        with self.service():
            outcomes = self._deliver(lambda: validate_batch(entries, self._attributes))
            result = BatchResult()
            for index, (entry, outcome) in enumerate(zip(entries, outcomes, strict=True)):
                id = str(index) if entry.id is None else entry.id
                if isinstance(outcome, SendResult):
                    result.successful.append(BatchSuccess(id, **attrs.asdict(outcome)))
                elif isinstance(outcome, BatchFailure):
                    result.failed.append(outcome)
                else:
                    result.failed.append(BatchFailure.of(id, outcome))
            return result

    def _deliver(
        self, check: Callable[[], list[Any]]
    ) -> list[SendResult | BatchFailure | QueueServiceError | QueueClientError]:
        """Appends what passes ``check``, in one commit per shard; each entry's result or failure, in order."""
        version, checked = self._validated(check)
        done: dict[int, SendResult | QueueServiceError] = {}
        failed: dict[int, QueueServiceError | QueueClientError] = {}
        while True:
            left = {
                n: e
                for n, e in enumerate(checked)
                if isinstance(e, ValidEntry) and n not in done and n not in failed
            }
            if not left:
                if done or failed or not self._reload():
                    break
                version, checked = self._validated(check)
                continue
            stale = False
            for shards, entries in self._sender.by_shard(left, self.fifo):
                try:
                    with self.owner.storage_errors():
                        done |= self._sender.send(shards, entries, self._attributes, version)
                except StaleAttributes:
                    stale = True
                except (QueueServiceError, QueueClientError) as error:  # other shards have theirs
                    failed |= dict.fromkeys(entries, error)
            if stale:
                try:
                    self._renew()
                    version, checked = self._validated(check)
                except (QueueServiceError, QueueClientError) as error:
                    failed |= {index: error for index in left if index not in done and index not in failed}
        if failed and not done:
            raise next(iter(failed.values()))
        return [done.get(index) or failed.get(index) or entry for index, entry in enumerate(checked)]

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
            max_messages: at most so many (default 1); returns what is there, without waiting for more.
            visibility_timeout: seconds, counted from the return (RCV-4); None is the queue's (RCV-5).
            wait_time: seconds to wait for the first message (LPL-1); None is the queue's.
            attempt_id: on FIFO queues, a token of this receive: while its messages are hidden, at most for
                300 s, the same id answers them again with the same handles, hidden anew (ATT-1, ATT-3).
            attribute_names: which message attributes to return (MSA-4).
            interrupt: ends the wait early, once another thread sets it.

        Raises:
            OverLimit: a standard queue has as many messages in flight as it may (INF-3).
            InvalidParameterValue: an argument is out of range.
        """
        with self.service(), self.owner.clock.participant():
            _, request = self._validated(
                lambda: self._request(max_messages, visibility_timeout, wait_time, attempt_id, interrupt)
            )
            wake = threading.Event()
            woken = interrupt.waking(wake.set) if interrupt else nullcontext()
            with self._waiting(request, wake.set) as place, woken:
                for step in self._receiver.polls(request, place, wake.clear, attribute_names):
                    if isinstance(step, list):
                        return step
                    self.owner.clock.wait(step, wake)
        raise AssertionError("a poll ends with a result")

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
        loop = asyncio.get_running_loop()
        with self.service(), self.owner.clock.participant():
            _, request = self._validated(
                lambda: self._request(max_messages, visibility_timeout, wait_time, attempt_id, interrupt)
            )
            wake = asyncio.Event()

            def wake_up() -> None:
                loop.call_soon_threadsafe(wake.set)

            woken = interrupt.waking(wake_up) if interrupt else nullcontext()
            with self._waiting(request, wake_up) as place, woken:
                polls = self._receiver.polls(request, place, lambda: None, attribute_names)
                while True:
                    wake.clear()
                    step = await asyncio.to_thread(next, polls)
                    if isinstance(step, list):
                        return step
                    await self.owner.clock.wait_async(step, wake)

    def _waiting(self, request: Request, wake: Callable[[], None]) -> AbstractContextManager[Place | None]:
        waits = request.deadline() > self.now_micros()
        return self._receiver.waiting(wake) if waits else nullcontext()

    def _request(
        self,
        max_messages: int | None,
        visibility_timeout: Duration | None,
        wait_time: Duration | None,
        attempt_id: str | None,
        interrupt: Interrupt | None = None,
    ) -> Request:
        started = self.now_micros()
        check_wait(self._attributes, wait_time)

        def deadline() -> int:
            if interrupt is not None and interrupt.is_set():
                return started
            # a shard that answered knows the newest attributes; they may name another wait (QUE-25)
            if any(shard.attributes_version > self._row.attributes_version for shard in self._shards):
                self._reload()
            return started + check_wait(self._attributes, wait_time)

        return Request(
            check_max_messages(self._attributes, max_messages),
            None if visibility_timeout is None else self._visibility(visibility_timeout),
            deadline,
            self._attributes.profile_rules.over_limit_on == "end_of_wait",
            check_attempt_id(self._attributes, attempt_id),
        )

    def _visibility(self, given: Duration) -> int:
        """Microseconds of a visibility timeout, judged by the newest attributes if it is refused."""
        return self._validated(lambda: check_visibility_timeout(self._attributes, given))[1]

    # --- settling

    def delete(self, receipt_handle: str) -> None:
        """Deletes a received message; an older receipt does nothing on lenient queues (RCP-6, RCP-10).

        Raises:
            ReceiptHandleIsInvalid: not a handle of this queue (RCP-9).
            InvalidParameterValue: a strict queue, and the receipt is over or not the latest (RCP-7).
        """
        with self.service():
            self._settler.one(receipt_handle, Delete, self.now_micros)

    def delete_batch(self, receipt_handles: Sequence[str]) -> BatchResult:
        """Deletes several messages in one commit per shard, with a result for each (DEL-10).

        Entry ids are the indexes of the handles.
        """
        with self.service():
            return self._settle(list(receipt_handles), [Delete] * len(receipt_handles))

    def change_visibility(self, receipt_handle: str, visibility_timeout: Duration) -> None:
        """Lets a receipt end so many seconds from now; 0 makes the message visible at once (VIS-1, VIS-4).

        Raises:
            ReceiptHandleIsInvalid: not a handle of this queue.
            MessageNotInflight: it was handed back, or on strict queues its time is over (RCP-12).
            InvalidParameterValue: out of range, more than 12 h in all (VIS-9), or not the latest receipt.
        """
        with self.service():
            timeout = self._visibility(visibility_timeout)
            self._settler.one(receipt_handle, change_to(timeout), self.now_micros)

    def change_visibility_batch(self, changes: Sequence[tuple[str, Duration]]) -> BatchResult:
        """Changes several receipts in one commit per shard, with a result for each (BAT-3)."""
        with self.service():
            makers: list[Maker | QueueServiceError] = []
            for _, visibility_timeout in changes:
                try:
                    timeout = self._visibility(visibility_timeout)
                except QueueServiceError as error:
                    makers.append(error)
                else:
                    makers.append(change_to(timeout))
            return self._settle([handle for handle, _ in changes], makers)

    def _settle(self, texts: list[str], makers: Sequence[Maker | QueueServiceError]) -> BatchResult:
        check_batch_ids([str(index) for index in range(len(texts))], self._attributes)
        return self._settler.batch(texts, makers, self.now_micros)

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
        from lakequeue.storage.bulk.manifests import SendKey

        spark = self.owner.require_spark("send_dataframe")
        return self.bulk_send(spark, df, None if send_id is None else SendKey.of_send(send_id), order_by)

    def lease(self, max_messages: int = 1_000_000, visibility_timeout: Duration | None = None) -> Lease | None:
        """Claims up to ``max_messages`` at once under one lease; None if none is available.

        ``Lease.messages`` is their DataFrame. Only the cap on messages in flight limits the number.
        """
        with self.service():
            _check_whole("max_messages", max_messages)
            timeout = None if visibility_timeout is None else self._visibility(visibility_timeout)
            lease_id = receipt_handles.new_lease_id()
            parts, refusal = self._receiver.claim(max_messages, timeout, lease_id)
            if parts:
                return Lease(self, self._row, lease_id, parts)
            if refusal is not None:
                raise refusal
            return None

    # --- the queue itself

    def purge(self) -> None:
        """Removes every message sent before (PUR-1).

        Raises:
            PurgeQueueInProgress: the last purge is less than 60 s old (PUR-2).
        """
        with self.service():
            first, *others = self._shards
            purge = Purge(self.name)
            first.look(lambda machine: machine.check_purge(purge, self.now_micros()))
            steps = Steps("purge")
            # the first shard keeps the pause, so it comes last: a purge that was cut short can be repeated
            for shard in others:
                with steps.step():
                    _raise(shard.command([Purge(self.name, at_any_time=True)], self.now_micros))
            with steps.step():
                _raise(first.command([purge], self.now_micros))

    def rewind(self, to: datetime) -> int:
        """Makes deleted messages that were sent at ``to`` or later consumable again, in their old order (RWD-9).

        What is in flight or was not received yet stays as it is. Returns how many came back.

        Args:
            to: an aware instant, at most the queue's ``rewind_range`` ago; see ``min_rewind_time``.

        Raises:
            UnsupportedOperation: the queue keeps no history (RWD-15).
            InvalidParameterValue: ``to`` is too early (RWD-11), in the future, or no aware instant.
        """
        with self.service():
            try:
                command = Rewind(to_micros(to))
            except (AttributeError, TypeError, ValueError):
                raise InvalidParameterValue(
                    f"Value {to} for parameter RewindTime is invalid. Reason: Must be an instant with a time zone."
                ) from None
            for shard in self._shards:  # a refusal by one must not find the others rewound
                shard.look(lambda machine: machine.check_rewind(command, self.now_micros()))
            count, command, steps = 0, attrs.evolve(command, checked=True), Steps("rewind")
            for shard in self._shards:
                with steps.step():
                    results = shard.command([command], self.now_micros)
                    _raise(results)
                count += results[0].value
            return count

    @property
    def min_rewind_time(self) -> datetime | None:
        """The earliest instant that ``rewind`` takes now and finds messages from; None without rewind (RWD-24)."""
        with self.service():
            self._reload()
            if not self._attributes.rewind_micros:
                return None
            longest = min(self._attributes.rewind_micros, self._attributes.retention_micros)
            return from_micros(self.now_micros() - longest)

    def attributes(self, names: Sequence[str] = ("All",)) -> dict[str, str]:
        """The queue's attributes and counts by their SQS names, as strings (QUE-23).

        Raises:
            InvalidAttributeName: a name that is none.
        """
        with self.service():
            self._reload()
            counts = self.counts()
            settings = self._attributes.to_wire()
            known = {name: value for name, value in settings.items() if name not in HIDDEN} | {
                "ApproximateNumberOfMessages": str(counts.visible),
                "ApproximateNumberOfMessagesNotVisible": str(counts.in_flight),
                "ApproximateNumberOfMessagesDelayed": str(counts.delayed),
                "CreatedTimestamp": str(self._row.created_at // 1_000_000),
                "LastModifiedTimestamp": str(self._row.modified_at // 1_000_000),
                "QueueArn": self.arn,
            }
            return selected(known, names)

    @property
    def arn(self) -> str:
        """Name of the queue in policies and listings of SQS."""
        return redrive_policies.arn(self.region, self.name)

    def set_attributes(self, **changes: Any) -> None:
        """Changes attributes; they hold from this commit on, in every process (QUE-25).

        Raises:
            InvalidAttributeName, InvalidAttributeValue: see ``QueueAttributes``; nothing is changed.
            InvalidParameterValue: a redrive policy is malformed (DLQ-2), or names a queue that is of another
                kind (DLQ-3) or does not allow it (DLQ-6).
            QueueDoesNotExist: the dead-letter queue does not exist.
        """
        self.update_attributes(lambda attributes: changes)

    def update_attributes(self, update: Callable[[QueueAttributes], Mapping[str, Any]]) -> None:
        """Changes attributes to what follows from those that they replace; errors as in ``set_attributes``."""
        with self.service():

            def change(row: QueueRow) -> QueueRow:
                attributes = QueueAttributes.from_wire(row.attributes)
                changes = redrive_policies.located(update(attributes), self.region)
                changed = attributes.with_changes(**changes)
                if {"redrive_policy", "RedrivePolicy"} & changes.keys():
                    self.owner.check_redrive(self.region, self.name, changed)
                # every shard must have seen the last change: what that forgot stays forgotten (RWD-8, RET-6)
                self._adopt(row)
                self.finish()
                return attrs.evolve(
                    row,
                    attributes=changed.to_wire(),
                    attributes_version=row.attributes_version + 1,
                    modified_at=self.now_micros(),
                )

            steps = Steps("set_attributes")
            with steps.step():
                self._adopt(self.owner.update(self._row, change))
            with steps.step():
                self.finish()

    def finish(self) -> None:
        """Brings the catalog's attributes to every shard; ends what a killed process began (QUE-25)."""
        row = self._row
        version = row.attributes_version
        if version == 0:
            return
        command = SetAttributes(dict(row.attributes), version)
        for shard in self._shards:
            _raise(shard.command([command], self.now_micros))
            shard.announce_attributes(version)

    def close(self) -> None:
        """Refuses every further send and command, for good: the first steps of a deletion (QUE-13)."""
        steps = Steps("the deletion")
        for shard in self._shards:
            with steps.step():
                shard.close()
        for shard in self._shards:
            with steps.step(), suppress(QueueDoesNotExist):
                _raise(shard.command([Close()], self.now_micros))

    def counts(self) -> QueueCounts:
        """Messages by state, exact at one snapshot per shard; cheap whatever the backlog.

        A shard with more than about 200,000 runs (scattered receipts) becomes slow.
        """
        return browse.standing(self).counts

    def peek(
        self, where: str | None = None, limit: int = 10, interrupt: Interrupt | None = None
    ) -> list[PeekedMessage]:
        """Looks at the oldest messages without receiving them; nothing changes.

        Args:
            where: a condition in SQL (docs/reference/conditions.md) on ``message_id``, ``body``, ``state``,
                ``receive_count``, ``sent_at``, ``visible_at``, ``age`` (seconds), ``group_id``, ``dedup_id``,
                ``source_queue`` (its name) and ``message_attributes`` (a map from names to texts; binary values in
                base64). NULL is not true.
                All messages are gone through, oldest first, until ``limit`` are found.
            limit: at most so many.
            interrupt: set by another thread, it ends the judging of the condition, by QueueClientError.

        Raises:
            InvalidParameterValue: ``limit`` is below 1, or ``where`` is no such condition, or needs more time or
                memory than it may have.
        """
        with self.service():
            _check_whole("limit", limit)
            return browse.look(self._shards, self.now_micros, browse.predicate(where, interrupt), limit)

    def redrive(
        self,
        max_messages: int | None = None,
        where: str | None = None,
        progress: Callable[[int], None] = lambda moved: None,
        destination: Queue | None = None,
        interrupt: Interrupt | None = None,
    ) -> int:
        """Moves messages of a dead-letter queue back to the queues that they come from; returns how many (DLQ-8).

        They are there as if sent now: never received, with their age beginning anew. Visible messages are moved,
        oldest first; those whose queue is gone, and those that did not come as dead letters, stay.

        Args:
            max_messages: at most so many; None moves all.
            where: which of them, a condition in SQL as for ``peek``.
            progress: called with the number of messages moved so far.
            destination: another queue of the same kind that takes all of them, wherever they come from.
            interrupt: set by another thread, it ends the judging of the condition, by QueueClientError.

        Raises:
            InvalidParameterValue: ``max_messages`` is below 1, ``where`` is no condition, or ``destination`` is of
                the other kind or the queue itself; nothing was moved. Or the condition fails on a message, or
                needs more time or memory than it may have; how many were moved before is said then.
        """
        with self.service():
            _check_whole("max_messages", 1 if max_messages is None else max_messages)
            if destination is not None and (destination.fifo != self.fifo or destination.key == self.key):
                raise InvalidParameterValue(
                    f"Value {destination.name} for parameter destination is invalid. "
                    "Reason: Must be another queue of the same kind."
                )
            key = None if destination is None else destination.key
            return self._mover.redrive(max_messages, browse.predicate(where, interrupt), progress, key)

    def redrivable(self, where: str | None = None, interrupt: Interrupt | None = None) -> dict[str, int]:
        """How many messages such a redrive would move now, by the name of the queue that takes them."""
        with self.service():
            return self._mover.redrivable(browse.predicate(where, interrupt))

    @property
    def move_tasks(self) -> str | None:
        """What the redrives that were asked for through the wire have come to, as their server wrote it."""
        with self.service():
            self._reload()
            return self._row.move_tasks

    def update_move_tasks(self, update: Callable[[str | None], str]) -> None:
        """Writes them anew; ``update`` gets the newest."""
        with self.service():
            self._adopt(
                self.owner.update(self._row, lambda row: attrs.evolve(row, move_tasks=update(row.move_tasks)))
            )

    def compact(self) -> CompactionSummary:
        """Frees what the queue no longer needs, in one pass; changes no answer.

        See ``LakeQueue.compact``, which does it for all queues, and also removes deleted ones.
        """
        from lakequeue.operations.compact import compact_queue

        with self.service():
            self._reload()  # raises if the queue was deleted
            return compact_queue(self)[0]

    def dead_letter_sources(self) -> list[Queue]:
        """The queues of the region whose redrive policies name this one (DLQ-7)."""
        with self.service():
            self._reload()
            return [queue for queue in self.owner.list_all() if queue.dead_letter_queue == self.arn]

    @property
    def dead_letter_queue(self) -> str | None:
        """ARN of the queue that takes what was received too often (DLQ-2)."""
        policy = self._attributes.redrive
        return None if policy is None else policy.dead_letter_queue

    def tags(self) -> dict[str, str]:
        """The queue's tags (QUE-28)."""
        with self.service():
            self._reload()
            return dict(self._row.tags)

    def set_tags(self, tags: Mapping[str, str] | None = None, **more: str) -> None:
        """Adds or overwrites tags; keys are case-sensitive (QUE-28)."""
        added = check_tags(dict(tags or {}) | more)
        with self.service():
            self._adopt(self.owner.update(self._row, lambda row: attrs.evolve(row, tags=dict(row.tags) | added)))

    def remove_tags(self, *keys: str) -> None:
        """Removes tags; unknown keys are passed over (QUE-28)."""
        with self.service():
            self._adopt(
                self.owner.update(
                    self._row,
                    lambda row: attrs.evolve(row, tags={k: v for k, v in row.tags.items() if k not in keys}),
                )
            )

    # --- inside the package

    def finish_moves(self) -> None:
        """Ends the moves to other queues that a killed process began (DLQ-2)."""
        self._mover.finish_all()

    @property
    def shards(self) -> list[ShardService]:
        """The queue's shards in this process."""
        return self._shards

    @property
    def rules(self) -> QueueAttributes:
        """The attributes as this object last saw them."""
        return self._attributes

    def now_micros(self) -> int:
        return self.owner.micros()

    def bulk_send(self, spark: SparkSession, df: DataFrame, name: SendKey | None, order_by: str | None) -> int:
        """Sends the rows of a DataFrame under a name; returns how many, 0 if the name was sent before."""
        from lakequeue.storage.bulk.send import send_frame

        with self.service():
            while True:
                try:
                    rows = send_frame(self._bulk_target(), spark, df, name, self.now_micros, order_by)
                except StaleAttributes:
                    self._renew()
                    continue
                for shard in self._shards:
                    shard.wake()
                return rows

    def batches_of(self, stream: str) -> int:
        """How many micro-batches of a stream the queue has, those without a row not counted at the end."""
        with self.service():
            self._reload()  # raises if the queue was deleted
            target = self._bulk_target()
            return max(target.open(shard).transaction(stream_id(stream)) or 0 for shard in target.shards)

    def complete_bulk_sends(self) -> None:
        """Has every shard reached by the bulk sends that reached some, as their process was killed."""
        from lakequeue.storage.bulk import commit_files

        target = self._bulk_target()
        for manifest in commit_files.abandoned(target):
            commit_files.complete(target, manifest, self.now_micros)
            for shard in manifest.shards:
                self._shards[shard].wake()

    def sweep_manifests(self) -> dict[int, list[str]]:
        """Forgets bulk sends that are complete, or too old to begin; by shard, the files of the others."""
        from lakequeue.storage.bulk import commit_files

        return commit_files.sweep_manifests(self._bulk_target())

    def _bulk_target(self) -> commit_files.Target:
        from lakequeue.storage.bulk import commit_files

        version, attributes = self._row.attributes_version, self._attributes  # in this order, see _adopt
        return commit_files.Target(
            self.owner.engine,
            self.owner.root,
            self._row.key,
            [shard.shard for shard in self._sender.in_turn()],
            attributes,
            version,
            lambda shard: self._shards[shard].room(attributes, self.now_micros()),
            lambda shard: self._shards[shard].holding_sends(),
            lambda shard: self._shards[shard].purged_offset(),
        )

    def _validated(self, check: Callable[[], _Checked]) -> tuple[int, _Checked]:
        """Runs a check; with the version of the attributes that it rests on, or an older one.

        A refusal counts only if those attributes are the newest.
        """
        # the version first: another thread may adopt newer attributes while this one judges
        version = self._row.attributes_version
        try:
            return version, check()
        except QueueServiceError:
            if not self._reload():
                raise
            version = self._row.attributes_version
            return version, check()

    def _reload(self) -> bool:
        """Reads the catalog's row again; whether the attributes changed."""
        row = self.owner.row(self._row.key)
        if row is None or row.deleted_at is not None:
            raise QueueDoesNotExist("The specified queue does not exist.")
        changed = row.attributes_version != self._row.attributes_version
        self._adopt(row)
        return changed

    def _renew(self) -> None:
        """Agrees with the log on the attributes, after it asked for others."""
        if not self._reload():
            self.finish()  # whoever changed them last did not get as far as the log

    def _adopt(self, row: QueueRow) -> None:
        # in this order: who reads the version, then the attributes, never gets older ones than it says
        self._attributes = QueueAttributes.from_wire(row.attributes)
        self._row = row

    @contextmanager
    def service(self) -> Iterator[None]:
        """Gives errors their profile's code, finishes an interrupted deletion, hides storage's own errors."""
        with coded_for(self._attributes.profile):
            try:
                with self.owner.storage_errors():
                    yield
            except QueueDoesNotExist:
                # a deletion begins at the first shard; if that is open, the error speaks of another queue
                if not self._deleted() and self._shards[0].closed():
                    self.owner.finish_deletion(self)
                raise
            except QueueClientError as error:
                if error.outcome_unknown or not self._deleted():
                    raise
                raise QueueDoesNotExist() from error  # its tables are gone

    def _deleted(self) -> bool:
        """Whether the catalog says so."""
        try:
            row = self.owner.row(self._row.key)
        except Exception:
            return False
        if row is not None and row.deleted_at is None:
            return False
        self.owner.forget_shards(self._row.key)
        return True


def _check_whole(parameter: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidParameterValue(
            f"Value {value} for parameter {parameter} is invalid. Reason: Must be a whole number of at least 1."
        )


def _raise(results: Sequence[Result]) -> None:
    for result in results:
        if result.error is not None:
            raise result.error
