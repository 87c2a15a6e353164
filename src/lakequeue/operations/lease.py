"""Leases: claims many messages at once, and settles them in one commit per shard."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import InvalidParameterValue, LeaseLost
from lakequeue.model import receipt_handles
from lakequeue.model.arguments import check_visibility_timeout, check_whole
from lakequeue.model.clock import MICROS, Duration, from_micros
from lakequeue.model.deliveries import Mark, Undecided, new_nonce
from lakequeue.model.failures import DeadLetterReason, shortened
from lakequeue.model.messages import is_message_id
from lakequeue.operations import spark_tasks
from lakequeue.operations.claim import ClaimedPart, ClaimPlan
from lakequeue.operations.settle import visibility
from lakequeue.operations.undecided import decide_found
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import (
    Claim,
    ClaimedSpan,
    ClaimResult,
    Command,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
)
from lakequeue.shard.runs import IN_FLIGHT
from lakequeue.storage.bulk import lease_batches
from lakequeue.storage.bulk.lease_batches import LeaseColumns, LeasePlace, LeaseTask, lease_frame
from lakequeue.storage.cleaning import pin_files
from lakequeue.storage.messages.merge_segments import put_in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL_COUNT, SMALL_BYTES = 1_000, 1 << 20
"""A small lease has at most ``SMALL_COUNT`` messages, in files with at most ``SMALL_BYTES`` bytes in total."""


@attrs.frozen
class LeasedMessages:
    """Messages claimed at once under one lease id."""

    queue: OpenQueue
    lease_id: str
    parts: Sequence[ClaimedPart]
    tried: bool = False
    """True if rows may have been appended to the delivery table under this lease."""

    @property
    def mark(self) -> Mark | None:
        """The delivery mark of the messages. None if the messages were not claimed for a delivery."""
        return self.parts[0].claimed.mark

    def part_of(self, spans: Sequence[tuple[int, int]], mark: Mark | None) -> LeasedMessages:
        """Returns the messages in ``spans`` as messages of another delivery, which has the mark ``mark``."""
        [part] = self.parts
        kept = [
            attrs.evolve(span, first=max(span.first, first), last=min(span.last, last))
            for span in part.claimed.spans
            for first, last in spans
            if span.first <= last and first <= span.last
        ]
        claimed = attrs.evolve(part.claimed, spans=tuple(kept), mark=mark, order=())
        return attrs.evolve(self, parts=[part._replace(claimed=claimed)], tried=False)

    @property
    def count(self) -> int:
        return sum(part.claimed.message_count for part in self.parts)

    @property
    def received_at(self) -> int:
        return min(part.claimed.received_at for part in self.parts)

    @property
    def visible_at(self) -> int:
        """Instant in microseconds when the first messages become visible, unless the lease is extended."""
        return min(part.claimed.visible_at for part in self.parts)


def lease(
    queue: OpenQueue,
    max_messages: int,
    visibility_timeout: Duration | None,
    consumer: str | None = None,
    delivers: bool = True,
) -> LeasedMessages | None:
    """Claims messages under one lease. Returns None if no message is available.

    Args:
        visibility_timeout: seconds; None for the queue's timeout.
        delivers: True if the lease may append rows to the queue's delivery table.
    """
    with queue.service("lease") as call:
        check_whole("max_messages", max_messages)
        timeout = None if visibility_timeout is None else visibility(queue, visibility_timeout)
        lease_id = receipt_handles.new_lease_id()
        delivery = new_nonce() if delivers and queue.attributes.table is not None else None
        wanted = Claim(max_messages, timeout, lease_id, consumer=consumer, leased=0, delivery=delivery)
        parts, refusal = ClaimPlan(queue, wanted).run()
        if parts:
            leased = LeasedMessages(queue, lease_id, parts)
            call.messages = leased.count
            return leased
        if refusal is not None:
            raise refusal
        return None


def frame(leased: LeasedMessages) -> DataFrame:
    spark = leased.queue.root.require_spark("Lease.messages")
    return lease_frame(spark, *stored(leased))


def stored(leased: LeasedMessages) -> tuple[list[LeasePlace], LeaseColumns]:
    """Returns where the messages are stored, and the values from which their receipt handles are made."""
    queue = leased.queue
    key = receipt_handles.lease_key(queue.row.handle_key, leased.lease_id)
    columns = LeaseColumns(queue.key, leased.lease_id, key, queue.fifo)
    with queue.service("lease_messages"):
        return [place for part in leased.parts for place in _places(queue, part)], columns


def batches(leased: LeasedMessages, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """Returns the messages of a lease as Arrow record batches, which are read on demand."""
    schema = lease_batches.schema_of(columns)
    places, lease_columns = stored(leased)
    every = LeaseTask(leased.queue.root.engine.store, lease_batches.files_of(places), lease_columns)

    def taken() -> Iterator[pa.RecordBatch]:
        with leased.queue.root.storage_errors():
            yield from every.read(columns)

    return pa.RecordBatchReader.from_batches(schema, taken())


def tasks_of(leased: LeasedMessages) -> list[LeaseTask]:
    """Splits the messages of a lease into tasks of about ``TASK_BYTES`` each. Unless the lease is small, the last
    message gets a task of its own.
    """
    places, columns = stored(leased)
    if not places:
        return []
    last: list[list[list[LeasePlace]]] = []
    if leased.count > SMALL_COUNT or sum({place.path: place.size for place in places}.values()) > SMALL_BYTES:
        *places, end = places
        last = [[[end._replace(whole=False, first_position=end.last_position)]]]
        if end.first_position < end.last_position:
            places.append(end._replace(whole=False, last_position=end.last_position - 1))
    pieces = (piece for of_file in lease_batches.files_of(places) for piece in _pieces(of_file))
    return [
        LeaseTask(leased.queue.root.engine.store, group, columns)
        for group in [*spark_tasks.packed(pieces, spark_tasks.TASK_BYTES), *last]
    ]


def _pieces(places: list[LeasePlace]) -> Iterator[tuple[list[LeasePlace], int]]:
    first, last, size = places[0].first_position, places[-1].last_position, places[0].size
    step = -(-(last - first + 1) // max(1, -(-size // spark_tasks.TASK_BYTES)))
    starts = range(first, last + 1, step)
    for start in starts:
        end = min(start + step - 1, last)
        piece = [
            place._replace(
                whole=False,
                first_position=max(place.first_position, start),
                last_position=min(place.last_position, end),
            )
            for place in places
            if place.first_position <= end and place.last_position >= start
        ]
        if piece:
            yield piece, size // len(starts) + spark_tasks.OPENING


def extend(leased: LeasedMessages, visibility_timeout: Duration) -> tuple[LeaseCounts, int]:
    """Extends the lease. Returns counts of held and lost messages, and the new end in microseconds."""
    timeout = check_visibility_timeout(leased.queue.attributes, visibility_timeout)
    visible_at = leased.queue.now() + timeout
    return settle(leased, lambda part: LeaseExtend(leased.lease_id, part.spans, timeout)), visible_at


def release(leased: LeasedMessages, error: BaseException | None = None, unseen: bool = False) -> LeaseCounts:
    """Makes all messages visible. With ``unseen``, the receive does not count."""
    failure = None if error is None else _reason(leased, error)

    def command(part: ClaimedPart) -> Command:
        together = leased.count if failure is not None else None
        if unseen and part.claimed.halved:
            together = max(2, leased.count)  # else what failed as a batch could become dead letters (DLQ-12)
        return LeaseRelease(leased.lease_id, part.spans, failure, together, unseen, unmark=not leased.tried)

    return settle(leased, command)


def _reason(leased: LeasedMessages, error: BaseException | None) -> DeadLetterReason:
    return DeadLetterReason.of(error, from_micros(leased.queue.now()), f"batch on {socket.gethostname()}")


_NONE_KEPT: Mapping[str, str | None] = {}


def delete(leased: LeasedMessages, kept: Mapping[str, str | None] = _NONE_KEPT) -> LeaseCounts:
    """Deletes all messages of the lease except those in ``kept``, which become visible. Returns the numbers of
    deleted, lost and kept messages.

    Args:
        kept: maps the receipt handle or id of each kept message to the reason why the message failed, or to None.

    Raises:
        ReceiptHandleIsInvalid, InvalidParameterValue: the handle or id is not of this lease.
        LeaseLost: the lease no longer holds any message.
    """
    failures = failures_of(leased, kept)

    def command(part: ClaimedPart) -> Command:
        own = failures.get(part.shard.number, {})
        failure = _reason(leased, None) if own else None
        return LeaseDelete(leased.lease_id, part.spans, frozenset(own), failure, own, unmark=not leased.tried)

    return settle(leased, command)


def failures_of(
    leased: LeasedMessages, failed: Mapping[str, str | None]
) -> dict[int, dict[int, DeadLetterReason]]:
    """Returns the failures of messages by shard, then by offset. ``failed`` has the form of the argument ``kept``
    of ``delete``. Raises the same errors as ``delete``, except LeaseLost.
    """
    queue = leased.queue
    offsets: dict[int, dict[int, str | None]] = {}
    for text, shard, offset in _offsets_of_ids(leased, {text for text in failed if is_message_id(text)}):
        offsets.setdefault(shard, {})[offset] = failed[text]
    for text, reason in failed.items():
        if is_message_id(text):
            continue
        handle = receipt_handles.decode(text, queue.key, queue.row.handle_key)
        if handle.lease_id != leased.lease_id:
            raise InvalidParameterValue.of(text, "receipt_handle", "It is of another lease.")
        offsets.setdefault(handle.shard, {})[handle.offset] = reason
    unsaid = _reason(leased, None)
    said = {text: attrs.evolve(unsaid, text=shortened(text)) if text else unsaid for text in set(failed.values())}
    return {shard: {offset: said[text] for offset, text in own.items()} for shard, own in offsets.items()}


def _offsets_of_ids(leased: LeasedMessages, wanted: set[str]) -> Iterator[tuple[str, int, int]]:
    """Yields id, shard and offset of each message in ``wanted``. Raises InvalidParameterValue for unknown ids."""
    missing = set(wanted)
    for batch in batches(leased, ["message_id", "shard", "offset"]) if wanted else ():
        found = batch.filter(pc.is_in(batch["message_id"], pa.array(wanted, pa.string())))
        rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        missing.difference_update(row[0] for row in rows)
        yield from rows
    for text in sorted(missing)[:1]:
        raise InvalidParameterValue.of(text, "message_id", "It is of no message of the lease.")


def settle(leased: LeasedMessages, command: Callable[[ClaimedPart], Command]) -> LeaseCounts:
    done = lost = released = 0
    steps = Steps("settling the lease")
    with leased.queue.service("settle_lease") as call:
        for part in leased.parts:
            with steps.step():
                counts: LeaseCounts = leased.queue.command(part.shard, command(part))
            done, lost, released = done + counts.done, lost + counts.lost, released + counts.released
        call.messages = done + released
    if not call.messages:
        raise LeaseLost(done, lost)
    return LeaseCounts(done, lost, released)


def _places(queue: OpenQueue, part: ClaimedPart) -> Iterator[LeasePlace]:
    folder = queue.root.engine.store.folder(part.shard.tables.messages)
    pin_files(folder)
    log = part.shard.ledger.log()
    if any(file.is_foreign for first, last in part.spans for file in log.overlapping(first, last)):
        table = queue.root.engine.open(part.shard.tables.messages)  # tasks find a message by the number of its row
        for first, last in part.spans:
            put_in_order(table, first, last)
        log = part.shard.ledger.log()
    for span in part.claimed.spans:
        for file in log.overlapping(span.first, span.last):
            first, last = max(span.first, file.first), min(span.last, file.last)
            yield LeasePlace(
                folder.place(file.file.name),  # Spark opens it by itself
                (first, last) == (file.first, file.last),
                part.shard.number,
                file.base,
                file.opened_at,
                first - file.base,
                last - file.base,
                span.receive_count,
                file.size,
            )


def of_handle(queue: OpenQueue, text: str) -> LeasedMessages | None:
    """Returns the lease of a receipt handle, or None if the lease has ended. Raises ReceiptHandleIsInvalid."""
    leased = held(queue, receipt_handles.decode(text, queue.key, queue.row.handle_key).lease_id)
    return leased and attrs.evolve(leased, tried=False)


def held(queue: OpenQueue, lease_id: str) -> LeasedMessages | None:
    """Returns the messages that a lease still holds, even if its timeout has ended. None without messages."""
    parts = []
    with queue.service("lease_messages"):
        for shard in queue.shards:
            now = queue.now()
            # `stored` first: it drops expired messages. `peek` would copy each run, 20 times as slow
            runs = shard.ledger.query(lambda machine: machine.runs if machine.stored(now) else [])  # noqa: B023
            mine = [run for run in runs if run.lease_id == lease_id and run.state == IN_FLIGHT]
            if mine:
                spans = tuple(
                    ClaimedSpan(run.first, run.last, run.receive_count, run.first_received_at or now)
                    for run in mine
                )
                received_at = min(run.received_at or now for run in mine)
                visible_at = min(run.visible_at or now for run in mine)
                mark = mine[0].mark
                parts.append(ClaimedPart(shard, ClaimResult(spans, received_at, visible_at, lease_id, mark=mark)))
    return LeasedMessages(queue, lease_id, parts, tried=True) if parts else None


def resumed(queue: OpenQueue, lease_id: str, timeout: float | None) -> LeasedMessages | None:
    """Extends the lease of an interrupted batch, and returns the lease. Returns None if the lease has ended. Also
    returns None if the lease delivers to a table, which then decides if the messages are deleted (TAB-31).
    """
    leased = held(queue, lease_id)
    if leased is None:
        return None
    if leased.mark is not None:
        [part] = leased.parts
        decide_found(queue, part.shard, [Undecided(leased.mark, lease_id, leased.count, queue.now())])
        return None
    try:
        extend(leased, queue.attributes.visibility_timeout_micros / MICROS if timeout is None else timeout)
    except LeaseLost:
        return None
    except InvalidParameterValue:  # twelve hours have passed since the messages were received
        release(leased)  # so that nobody deletes them as messages of a batch that has ended
        return None
    return held(queue, lease_id)


def messages_failed_together(queue: OpenQueue, lease_id: str) -> int:
    """Counts the messages of a lease that are visible again because the whole batch failed."""
    now, found = queue.now(), 0
    for shard in queue.shards:
        runs = shard.ledger.query(lambda machine: machine.runs if machine.stored(now) else [])
        found += sum(run.size for run in runs if run.lease_id == lease_id and (run.failed_together or 1) > 1)
    return found


def taken(leased: LeasedMessages) -> bool:
    """True if another lease has received messages that this lease had received."""
    return any(
        run.first <= last and run.lease_id != leased.lease_id
        for part in leased.parts
        for first, last in part.spans
        for run in part.shard.ledger.query(lambda machine: machine.peek(leased.queue.now(), 1, first))  # noqa: B023
    )
