"""Values that a queue returns: messages and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from lakequeue.model import notebook
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros, shown_duration
from lakequeue.model.failures import DeadLetterReason, parse_note, parse_reason
from lakequeue.model.messages import AttributeValue, Message, MessageQueue, attach, select_attributes
from lakequeue.model.states import MessageState
from lakequeue.shard.commands import ClaimedSpan, ClaimResult


class SentRows(int):
    """Number of messages that a bulk send added to a queue.

    Attributes:
        refused: number of rows that broke a rule, and were dropped or diverted.
    """

    refused: int

    def __new__(cls, sent: int, refused: int = 0) -> SentRows:
        made = super().__new__(cls, sent)
        made.refused = refused
        return made


@attrs.frozen
class QueueCounts:
    """Number of messages by state.

    Attributes:
        visible: messages that a receive may return.
        in_flight: received messages, which are hidden until their visibility timeout ends.
        delayed: messages that were sent with a delay, which has not ended.
        rewindable: deleted messages that a rewind can restore.
        oldest_age: seconds since the oldest message was sent; None if there is no message.
        held: messages that were sent while too many messages were delayed. Held messages do not count as delayed.
        undecided: messages whose delivery lease has ended, while it is unknown if the messages' rows arrived.
            Undecided messages do not count as in flight (TAB-5).
    """

    visible: int
    in_flight: int
    delayed: int
    rewindable: int
    oldest_age: float | None
    held: int = 0
    undecided: int = 0

    def _repr_html_(self) -> str:
        return self.table("messages")

    def table(self, caption: str) -> str:
        """Returns the counts as a table for notebooks."""
        cells = self.cells()
        return notebook.table(caption, [*cells], [[*cells.values()]])

    def cells(self) -> dict[str, object]:
        """The counts by title, as notebooks show them."""
        age = None if self.oldest_age is None else shown_duration(self.oldest_age)
        counts = {"visible": self.visible, "in flight": self.in_flight, "delayed": self.delayed, "held": self.held}
        undecided = {"undecided": self.undecided} if self.undecided else {}
        return {**counts, **undecided, "rewindable": self.rewindable, "oldest": age}


@attrs.frozen
class ShardCounts:
    """Number of a shard's messages by state, and number of lost races.

    Attributes:
        shard: number of the shard, from 0.
        visible: as in ``QueueCounts``.
        in_flight: as in ``QueueCounts``.
        delayed: as in ``QueueCounts``.
        held: as in ``QueueCounts``.
        undecided: as in ``QueueCounts``.
    """

    shard: int
    visible: int
    in_flight: int
    delayed: int
    held: int
    commits: int
    """Number of recent commits of all processes to the shard, at most 100."""
    lost_races: int
    """How often processes repeated the commits counted in ``commits``, because another process committed first."""
    undecided: int = 0


@attrs.frozen
class UndecidedDelivery:
    """A delivery whose lease ended before its outcome was known.

    Attributes:
        shard: number of the shard.
        messages: number of messages that wait for the decision.
        since: when the first receipt of the delivery ended.
        application_id: id of the delivery in the table's log. None if the queue no longer has a table.
        version: version that the table's log has for ``application_id`` if the rows arrived.
        lease_id: the lease that delivered.
    """

    shard: int
    messages: int
    since: datetime
    application_id: str | None
    version: int
    lease_id: str


@attrs.frozen
class GroupCounts:
    """Number of visible and in-flight messages of a message group.

    Attributes:
        visible: number of visible messages.
        in_flight: number of messages in flight.
    """

    group_id: str | None
    """Id of the message group. None for messages without a group."""
    visible: int
    in_flight: int
    oldest_age: float | None
    """Seconds since the group's oldest visible message was sent; None if no message is visible."""
    noisy: bool | None
    """True if the group has far more messages than other groups (FAI-3). None on FIFO queues."""


WITH_VISIBLE_AT = (MessageState.VISIBLE, MessageState.IN_FLIGHT, MessageState.DELAYED)
"""States whose messages have a ``visible_at``."""


@attrs.frozen
class PeekedMessage:
    """A stored message, as ``peek`` shows it.

    Attributes:
        message_id: id that the send returned.
        body: text of the message.
        receive_count: number of receives; None if unknown for a deleted or expired message.
        sent_at: when the message was sent; for a dead letter, the time of its first send (DLQ-4).
        message_attributes: attributes that the sender set, by name.
        group_id: message group; None if the message has no group.
        dedup_id: deduplication id, on FIFO queues.
    """

    message_id: str
    body: str
    state: MessageState
    """State of the message, for example ``visible``. In the history, the state is ``deleted``."""
    receive_count: int | None
    sent_at: datetime
    visible_at: datetime | None
    """When the message becomes or became visible. None in states other than visible, in flight and delayed."""
    message_attributes: dict[str, AttributeValue]
    group_id: str | None = None
    source_queue: str | None = None
    """Name of the queue from which the message was moved (DLQ-4). None if the message was not moved."""
    moved_at: datetime | None = None
    """When the message was moved to this queue. None if the message was not moved."""
    dedup_id: str | None = None
    trace_header: str | None = None
    """``AWSTraceHeader`` of the send (SND-15)."""
    dead_letter_reason: DeadLetterReason | None = None
    """Last failure of a dead letter's handler (DLQ-4). None if no handler reported a failure."""
    consumer: str | None = None
    """Name of the consumer that has the message in flight, or None."""
    attempts: tuple[DeadLetterReason, ...] = ()
    """The last ten failed attempts, oldest first (JOB-10), including attempts in a dead letter's source queue."""
    priority: int = 0
    """Priority of the message; 0 on queues without priorities (JOB-5)."""


class PeekedMessages(list[PeekedMessage]):
    """A list of messages that notebooks show as a table."""

    def _repr_html_(self) -> str:
        columns = ["message", "state", "received", "sent", "visible at", "body"]
        rows = ([m.message_id, m.state, m.receive_count, m.sent_at, m.visible_at, m.body] for m in self)
        return notebook.table(f"{len(self)} messages", columns, rows)


Attributes = Sequence[tuple[str, Mapping[str, Any]]]


def _attributes(stored: Attributes | None) -> dict[str, AttributeValue]:
    return {
        name: AttributeValue(
            value["type"],
            value["binary_value"] if value["string_value"] is None else value["string_value"],
        )
        for name, value in stored or []
    }


def received_message(
    row: Mapping[str, Any],
    claimed: ClaimResult,
    span: ClaimedSpan,
    handle: str,
    names: Sequence[str],
    sequence: str | None,
    settler: MessageQueue,
    priority: int = 0,
) -> Message:
    """Returns a message as a receive returns it, with the message attributes in ``names`` (MSA-4)."""
    system = {"AWSTraceHeader": row["trace_header"]}
    if row["source_receive_count"] is not None:
        system["DeadLetterQueueSourceArn"] = row["source_queue"]
    message = Message(
        message_id=row["message_id"],
        receipt_handle=handle,
        body=row["body"],
        receive_count=span.receive_count,
        sent_at=row["first_sent_at"] or row["sent_at"],
        first_received_at=from_micros(span.first_received_at),
        message_attributes=select_attributes(_attributes(row["message_attributes"]), names),
        group_id=row["group_id"],
        dedup_id=row["dedup_id"],
        sequence_number=sequence,
        sender_id=row["sender_id"],
        system_attributes={name: value for name, value in system.items() if value is not None},
        received_at=from_micros(claimed.received_at),
        visible_at=from_micros(claimed.visible_at),
        dead_letter_reason=parse_note(row["dead_letter_note"])[0],
        moved_at=row["moved_at"],
        last_receive=span.last_receive,
        priority=priority,
    )
    attach(message, settler)
    return message


def peeked_message(row: dict[str, Any], attributes: Attributes, of_queue: QueueAttributes) -> PeekedMessage:
    """Returns a message as ``peek`` shows it, from a row of ``browse.PEEKED`` and typed attributes."""
    row["priority"] = row.pop("shard") % of_queue.classes
    row["state"] = MessageState(row["state"])
    row["dead_letter_reason"] = parse_reason(row["dead_letter_reason"])
    row["attempts"] = tuple(DeadLetterReason(**each) for each in row["attempts"] or ())
    return PeekedMessage(message_attributes=_attributes(attributes), **row)
