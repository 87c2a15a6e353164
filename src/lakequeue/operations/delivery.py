"""Deliveries of leased messages into the table of a queue: as rows, or by the user's own write (TAB)."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from lakequeue.errors import LeaseLost, QueueClientError, UnsupportedOperation
from lakequeue.model import receipt_handles
from lakequeue.model.clock import Duration
from lakequeue.model.deliveries import is_catalog_name, new_nonce
from lakequeue.model.failures import DeadLetterReason
from lakequeue.model.messages import Message
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations import lease as leases
from lakequeue.operations.delivery_protocol import DeliveryStatus, OpenedDeliveryTable
from lakequeue.operations.lease import LeasedMessages
from lakequeue.operations.receive import read
from lakequeue.operations.undecided import LedgerMarks, target_of
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.shard.commands import Command, LeaseCounts, LeaseRelease, Remark
from lakequeue.shard.spans import ranges
from lakequeue.storage.delivery.identity import DeliveryIdentity

if TYPE_CHECKING:
    import pyarrow as pa

_AT_ONCE: Mapping[Any, int] = {}


class Delivering:
    """Delivers the messages of a lease into the queue's table. Not thread-safe.

    Attributes:
        settle: function that deletes the messages after the append.
        leased: the messages that were not released.
        counts: numbers of messages that were deleted, and of messages that the lease had lost.
    """

    def __init__(
        self, leased: LeasedMessages, settle: Callable[[LeasedMessages], LeaseCounts] = leases.delete
    ) -> None:
        self.leased = leased
        self.settle = settle
        self.counts = LeaseCounts(0, 0)
        self._opened: OpenedDeliveryTable | None = None

    @property
    def queue(self) -> OpenQueue:
        return self.leased.queue

    @property
    def has_opened_table(self) -> bool:
        return self._opened is not None

    @property
    def _shard(self) -> OpenShard:
        return self.leased.parts[0].shard

    def _marked(self) -> LedgerMarks:
        mark = self.leased.mark
        if mark is None:
            if self.queue.attributes.table is None:
                raise UnsupportedOperation(f"{self.queue.name} has no delivery table: set its attribute table.")
            raise UnsupportedOperation("The messages were claimed before the queue had a delivery table.")
        leased = self.leased
        target = leased.parts[0].claimed.target
        recorded = target is not None and target.table_id is not None
        return LedgerMarks.of(
            self.queue, self._shard, mark, leased.lease_id, lambda: self.settle(leased), recorded
        )

    # --- the messages

    def messages(self) -> list[Message]:
        """Returns the messages with their bodies, oldest first. Releases messages that cannot be read (DUR-8)."""
        try:
            found = read(self.queue, self.leased.parts)
        except Exception:
            with suppress(Exception):  # the error of the read says more
                self._give_up_unread(self._held_but(()))
            raise
        unread = self._held_but({self._offset(each.receipt_handle) for each in found})
        if unread:  # if this fails, nothing is appended: the delivery of the others would delete them
            self._give_up_unread(unread)
            gone = {offset for first, last in unread for offset in range(first, last + 1)}
            self.leased = self.leased.part_of(self._held_but(gone), self.leased.mark)
        return found

    def _give_up_unread(self, spans: Sequence[tuple[int, int]]) -> None:
        self._command([LeaseRelease(self.leased.lease_id, spans, unread=True)])

    def _offset(self, handle: str) -> int:
        return receipt_handles.decode(handle, self.queue.key, self.queue.row.handle_key).offset

    def extend(self, visibility_timeout: Duration) -> None:
        """Makes the receipts end in ``visibility_timeout`` seconds. Raises LeaseLost if no receipt is left."""
        leases.extend(self.leased, visibility_timeout)

    def release(self, error: BaseException | None = None, unseen: bool = False) -> None:
        """Makes all messages visible, or undecided if an append was tried (TAB-26)."""
        leases.release(self.leased, error, unseen)

    def hand_back(self) -> None:
        """Makes the messages visible, or undecided if the table may have the rows. The receive does not count."""
        try:
            parts = self.anew() or () if self.leased.tried else [self]
        except QueueClientError:
            parts = [self]
        for part in parts:
            part.release(unseen=True)

    def release_failed(
        self,
        failed: Mapping[str, DeadLetterReason | None],
        together: bool = False,
        delays: Mapping[str, int] = _AT_ONCE,
    ) -> None:
        """Makes failed messages visible. Raises LeaseLost if the lease no longer holds all failed messages.

        Args:
            failed: reason by receipt handle. If the reason is None, the receive does not count.
            together: True if all messages that have a reason failed because of the same error. The next receive
                then takes only half of these messages (DLQ-12).
            delays: microseconds until messages become visible, by receipt handle; without a delay, at once.
        """
        later = {self._offset(handle): delay for handle, delay in delays.items()}
        self._release({self._offset(handle): reason for handle, reason in failed.items()}, together, later)

    def release_named(self, failed: Mapping[str, str | None]) -> int:
        """Releases messages by handle or id, and returns how many. Raises ReceiptHandleIsInvalid or LeaseLost."""
        by_offset = leases.failures_of(self.leased, failed).get(self._shard.number, {})
        self._release(by_offset)
        return len(by_offset)

    def _release(
        self,
        by_offset: Mapping[int, DeadLetterReason | None],
        together: bool = False,
        delays: Mapping[int, int] = _AT_ONCE,
    ) -> None:
        lease_id = self.leased.lease_id
        alike = dict[tuple[DeadLetterReason | None, int], list[int]]()
        for offset, reason in sorted(by_offset.items(), key=lambda item: item[0]):
            alike.setdefault((reason, delays.get(offset, 0)), []).append(offset)
        commands: list[Command] = [
            LeaseRelease(lease_id, ranges(each), unseen=True, unmark=True)
            if reason is None
            else LeaseRelease(
                lease_id, ranges(each), reason, len(each) if together else None, unmark=True, delay=delay
            )
            for (reason, delay), each in alike.items()
        ]
        if self._command(commands) < len(by_offset):
            raise LeaseLost()
        self.leased = self.leased.part_of(self._held_but(by_offset), self.leased.mark)

    def _command(self, commands: Sequence[Command]) -> int:
        with self.queue.service("settle_lease"):
            results = self._shard.ledger.command(commands, self.queue.now)
        for result in results:
            if result.error is not None:
                raise result.error
        return sum(result.value.released + result.value.done for result in results)

    def _held_but(self, offsets: Container[int]) -> list[tuple[int, int]]:
        spans = self.leased.parts[0].spans
        return ranges([each for start, end in spans for each in range(start, end + 1) if each not in offsets])

    # --- the table

    def _try(self) -> bool:
        """Records that an attempt to append rows begins. Returns True if an earlier attempt was recorded."""
        tried, self.leased = self.leased.tried, attrs.evolve(self.leased, tried=True)
        return tried

    def _open(
        self, marked: LedgerMarks, schema: Callable[[], pa.Schema] | None
    ) -> tuple[OpenedDeliveryTable, protocol.DeliverySnapshot]:
        self._opened, snapshot = OpenedDeliveryTable.of(target_of(self.queue, marked.table), marked, schema)
        return self._opened, snapshot

    def append(self, rows: object, merge_schema: bool = False) -> int:
        """Appends rows once, deletes the messages, and sets ``counts`` (TAB-25). Returns the number of rows.

        Raises:
            RowsRefused: nothing was appended. Call ``anew`` before another attempt.
            LeaseLost: the lease has lost the messages, or another process has blocked the delivery.
            TableUnavailable: ``outcome_unknown`` is set if rows may be in the table.
        """
        from lakequeue.storage.delivery.rows import is_frame, new_schema, table_of

        if is_frame(rows):
            return self._append_frame(rows, merge_schema)
        with self.queue.service("append") as call:
            given = rows if isinstance(rows, (list, tuple)) else table_of(rows, None)
            if not len(given):
                self.counts = self.settle(self.leased)
                return 0
            marked = self._marked()
            _, snapshot = self._open(marked, lambda: new_schema(table_of(given, None)))
            converted = table_of(given, snapshot.schema)
            self._deliver(snapshot, marked, converted, merge_schema)
            call.messages = self.counts.done
            return int(converted.num_rows)

    def _append_frame(self, df: Any, merge_schema: bool) -> int:
        """Appends a Spark DataFrame (TAB-30). The lease stays valid if the DataFrame's files cannot be written."""
        from lakequeue.storage.delivery.frames import FrameRows
        from lakequeue.storage.delivery.spark_catalog import create

        with self.queue.service("delivery"):
            marked = self._marked()
            rows: Any = FrameRows(df, merge_schema)
            if marked.table is not None and is_catalog_name(marked.table) and marked.table_id() is None:
                create(self.queue.root.require_spark("append"), marked.table, rows.schema)
            _, snapshot = self._open(marked, rows.schema)
        files = rows.files(snapshot)  # its errors are the DataFrame's, and not the storage's
        with self.queue.service("append") as call:
            if files:
                self._deliver(snapshot, marked, rows, merge_schema)
            else:
                self.counts = self.settle(self.leased)
            call.messages = self.counts.done
            return int(rows.num_rows)

    def _deliver(
        self, snapshot: protocol.DeliverySnapshot, marked: LedgerMarks, rows: Any, merge_schema: bool
    ) -> None:
        assert self._opened is not None
        options = {"merge_schema": merge_schema, "tried": self._try()}
        self.counts = protocol.deliver(self._opened, snapshot, marked, rows, **options)

    def open(self) -> tuple[DeliveryIdentity, Any]:
        """Returns the delivery and the table, for the user's own write. Raises LeaseLost or TableUnavailable."""
        with self.queue.service("delivery"):
            marked = self._marked()
            opened, _ = self._open(marked, None)
            snapshot = opened.read()
            if protocol.state_of(snapshot, marked.delivery) is not DeliveryStatus.OPEN:
                raise LeaseLost()
            self._try()
            return marked.delivery, snapshot.handle

    def delivered(self) -> LeaseCounts:
        """Deletes the messages if the table has the delivery's commit. Raises QueueClientError or LeaseLost."""
        with self.queue.service("delivered") as call:
            marked = self._marked()
            opened, _ = self._open(marked, None)
            snapshot = opened.read()
            state = protocol.state_of(snapshot, marked.delivery)
            if state is DeliveryStatus.OPEN:
                raise QueueClientError(
                    f"{opened.table.uri} has no commit with the id {marked.delivery.app_id} and the version "
                    f"{marked.delivery.version}. A write that changed no row may record none: then append an "
                    "empty frame with them"
                )
            if state is not DeliveryStatus.ARRIVED:
                raise LeaseLost()
            opened.table.sync(snapshot.version)
            counts = marked.delete()
            call.messages = counts.done
            return counts

    def anew(self, parts: Sequence[Sequence[str]] | None = None) -> list[Delivering] | None:
        """Blocks a refused delivery, and makes a new delivery for each part of its messages (TAB-27). ``parts``
        are the receipt handles of each part; None for a single part. Returns None if the rows had arrived after
        all; the messages are then deleted.

        Raises:
            LeaseLost: the lease no longer holds all of these messages.
            TableUnavailable: the table cannot be reached.
        """
        [held] = self.leased.parts
        with self.queue.service("divide_delivery"):
            marked = self._marked()
            if self.leased.tried and self._opened is not None:
                state, snapshot = protocol.close(self._opened, marked.delivery)
                if state is DeliveryStatus.ARRIVED:
                    self._opened.table.sync(snapshot.version)
                    marked.delete()
                    return None
                if state is not DeliveryStatus.BLOCKED:
                    raise LeaseLost()
            spans = [held.spans] if parts is None else [ranges(sorted(map(self._offset, part))) for part in parts]
            command = Remark(self.leased.lease_id, *marked.mark, spans, new_nonce())
            marks = self.queue.command(self._shard, command)
            if marks is None:
                raise LeaseLost()
            return [Delivering(self.leased.part_of(part, mark)) for part, mark in zip(spans, marks, strict=True)]


def claim(
    queue: OpenQueue, most: int, visibility_timeout: Duration | None, consumer: str | None
) -> Delivering | None:
    """Claims messages of one shard for a delivery. Returns None if there is no message to receive."""
    leased = leases.lease(queue, most, visibility_timeout, consumer)
    return None if leased is None else Delivering(leased)
