"""Commands to a shard, and the answers to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs

from lakequeue.errors import QueueServiceError
from lakequeue.model.deliveries import DeliveryTarget, Mark, Undecided
from lakequeue.model.failures import DeadLetterReason
from lakequeue.shard.runs import Destination, Head, Run

Spans = Sequence[tuple[int, int]]


@attrs.frozen
class Claim:
    """Receives up to ``max_messages`` under a new lease. Answers with a ``ClaimResult``.

    Attributes:
        visibility_timeout: microseconds; None for the queue's timeout (RCV-5).
        attempt_id: a repeated attempt gets the same messages again (ATT-3); FIFO shards only.
        dead_letter_queues: destinations of dead letters, by the ARN of their dead-letter queue. A destination of
            None leaves the dead letters here.
        consumer: name of the receiver; not recorded with an ``attempt_id``.
        hands: number of free handlers; None for no limit. A message on its last receive is claimed only if a
            handler is free for it and the claim has no earlier message of its FIFO group, so that no message
            becomes a dead letter unseen (HBN-23).
        leased: number of messages that the receive already has from other shards; None if the receive makes no
            lease. If set, the claim ends before a failed batch. If the failed batch comes first, the claim takes
            half of this batch and nothing else, or nothing if ``leased`` is not 0 (DLQ-12).
        tokens: number of messages that the rate limit allows; None if this shard keeps the bucket and is charged.
        delivery: random bits for the mark of a delivery to a table (TAB-2); None for a receive. If not None, the
            claim ignores ``attempt_id``, and takes nothing while messages have marks of an earlier table or
            delivery id.
        one_each: True to take at most one message of each FIFO group.
    """

    max_messages: int
    visibility_timeout: int | None
    lease_id: str
    attempt_id: str | None = None
    dead_letter_queues: Mapping[str, Destination | None] = attrs.field(factory=dict)
    consumer: str | None = None
    hands: int | None = None
    leased: int | None = None
    tokens: int | None = None
    delivery: int | None = None
    one_each: bool = False


@attrs.frozen
class Charge:
    """Takes rate-limit tokens for messages of another shard (JOB-11). A negative ``count`` returns tokens."""

    count: int


@attrs.frozen
class Delete:
    """Deletes one message by receipt. Answers with True if this command removed the message (DEL-2, RCP-6)."""

    offset: int
    lease_id: str
    handle_text: str = ""


@attrs.frozen
class ChangeVisibility:
    """Makes a receipt end ``timeout`` microseconds from now. 0 makes the message visible (VIS-1, VIS-4)."""

    offset: int
    lease_id: str
    timeout: int
    handle_text: str = ""


@attrs.frozen
class RecordFailure:
    """Stores a handler's failure with its message (JOB-10), unless the message was received again."""

    offset: int
    lease_id: str
    failure: DeadLetterReason


@attrs.frozen
class LeaseDelete:
    """Deletes the messages that a lease still holds. The messages at ``except_offsets`` become visible instead.

    Attributes:
        failure: why the excepted messages failed.
        reasons: by offset, the reasons that replace ``failure`` for single messages.
    """

    lease_id: str
    spans: Spans
    except_offsets: Collection[int] = ()
    failure: DeadLetterReason | None = None
    reasons: Mapping[int, DeadLetterReason] = attrs.field(factory=dict)
    unmark: bool = False


@attrs.frozen
class LeaseExtend:
    """Makes a lease's receipts end ``timeout`` microseconds from now. 0 releases the messages."""

    lease_id: str
    spans: Spans
    timeout: int


@attrs.frozen
class LeaseRelease:
    """Makes the messages visible that a lease still holds.

    Attributes:
        failed_together: number of messages, if they failed as one batch.
        unseen: True to count the messages as not received by this lease.
        unread: as ``unseen``, but the messages stay hidden until their timeout, because they cannot be read.
        unmark: True if the delivery can no longer append rows. Else, marked messages become undecided (TAB-6).
        delay: microseconds for which failed messages stay hidden, unless their receipt has ended (TAB-29).
    """

    lease_id: str
    spans: Spans
    failure: DeadLetterReason | None = None
    failed_together: int | None = None
    unseen: bool = False
    unread: bool = False
    unmark: bool = False
    delay: int = 0


@attrs.frozen
class Move:
    """Moves visible messages (DLQ-8). Answers with their number, or None if another move is unfinished."""

    spans: Spans
    target: Destination


@attrs.frozen
class Moved:
    """Removes the moved messages after the target queue has appended them. Answers with their number."""

    number: int


@attrs.frozen
class MoveBack:
    """Undoes a move because the target queue is gone. Answers with the number of its messages."""

    number: int


@attrs.frozen
class Discard:
    """Deletes visible messages without a receipt. Answers with the number of deleted messages."""

    spans: Spans


@attrs.frozen
class Erase:
    """Deletes messages that are not moving to another queue. Answers with their number, and True if other messages
    were moving. With ``for_good``, also deletes the messages from the history.
    """

    spans: Spans
    for_good: bool = True


@attrs.frozen
class MakeVisible:
    """Makes delayed messages visible, now or at an instant. Answers with their number.

    Attributes:
        in_flight: True to also end the receipts of messages in flight.
        at: instant until which delayed and visible messages are hidden; None to show delayed messages now.
    """

    spans: Spans
    in_flight: bool = False
    at: int | None = None


@attrs.frozen
class Purge:
    """Removes all messages (PUR-1). With ``at_any_time``, ignores the limit of one purge in 60 seconds (PUR-2)."""

    queue_name: str = ""
    at_any_time: bool = False


@attrs.frozen
class Rewind:
    """Restores the deleted messages that were sent at ``to`` or later (RWD-9). Answers with their number."""

    to: int
    checked: bool = False


@attrs.frozen
class SetAttributes:
    """Adopts the queue's attributes, given by wire name. Ignores attributes whose ``version`` is not newer."""

    attributes: dict[str, str]
    version: int


@attrs.frozen
class Close:
    """Marks the shard as deleted. From then on, the shard refuses all commands (QUE-13)."""


@attrs.frozen
class Expire:
    """Commits the removal of expired messages. Answers with the number of removed messages."""


@attrs.frozen
class Rewrite:
    """Makes a commit without a change of messages. The caller then writes all runs anew."""


@attrs.frozen
class MarkEmptying:
    """Announces a removal of message bodies. A ledger that did not announce the log's last removal is outdated."""

    mark: int
    """Random positive number that identifies the removal."""
    known: int
    """Random number that identifies the last removal of bodies from the log; 0 if there was no removal."""


@attrs.frozen
class Decide:
    """Ends a delivery: deletes its messages if ``delivered``, else makes them visible (TAB-5).

    Attributes:
        failure: why the delivery failed; its messages are then claimed in halves (DLQ-12).
        unrecorded: True to change nothing if the ledger has a table id: rows may already be in the table (TAB-4).
    """

    slot: int
    number: int
    delivered: bool
    failure: DeadLetterReason | None = None
    unrecorded: bool = False


@attrs.frozen
class Remark:
    """Divides a blocked or untried delivery into parts (TAB-7). Answers with the marks of the parts.

    Each part becomes a delivery with its own number. Messages outside the parts become visible. Answers with None
    if a message lacks the mark or a valid receipt, and then changes nothing.
    """

    lease_id: str
    slot: int
    number: int
    parts: Sequence[Spans]
    nonce: int
    failure: DeadLetterReason | None = None


@attrs.frozen
class RecordTable:
    """Records the id of the delivery table, if none is recorded (TAB-4). Answers with the recorded id, or None if
    the delivery with this mark may no longer append rows.
    """

    slot: int
    number: int
    table_id: str


Command = (
    Claim
    | Charge
    | Delete
    | ChangeVisibility
    | RecordFailure
    | LeaseDelete
    | LeaseExtend
    | LeaseRelease
    | Move
    | Moved
    | MoveBack
    | Discard
    | Erase
    | MakeVisible
    | Purge
    | Rewind
    | SetAttributes
    | Close
    | Expire
    | Rewrite
    | MarkEmptying
    | Decide
    | Remark
    | RecordTable
)


@attrs.frozen
class ClaimedSpan:
    """A range of claimed messages. They have the same receive count and the same first receive."""

    first: int
    last: int
    receive_count: int
    first_received_at: int
    last_receive: bool = False


@attrs.frozen
class ClaimResult:
    """The claimed messages, lowest offset first (RCV-14).

    A result with ``moving`` or ``unresolved`` has no messages: first move the dead letters, then claim again.

    Attributes:
        lease_id: lease of this claim, or of the claim that this claim repeats.
        order: on FIFO shards, claimed offsets as ranges in the order of delivery (FIF-5).
        moving: True if a move must be completed first.
        unresolved: dead-letter queue that the next claim must have in ``dead_letter_queues``.
        last: number of claimed messages on their last receive.
        passed: number of messages left because no handler was free for their last receive; one per FIFO group.
        halved: True if the messages next in order include a failed batch, so that the claim took only a part of
            these messages (DLQ-12). The receive then asks no further shard.
        unpaid: if the claim has no rate-limit tokens, number of messages that it would take with enough tokens.
        undecided: the undecided deliveries of the shard, oldest first.
        target: the delivery table of ``mark`` and ``undecided``.
    """

    spans: tuple[ClaimedSpan, ...]
    received_at: int
    visible_at: int
    lease_id: str
    order: Spans = ()
    moving: bool = False
    unresolved: str | None = None
    last: int = 0
    passed: int = 0
    halved: bool = False
    unpaid: int = 0
    mark: Mark | None = None
    undecided: tuple[Undecided, ...] = ()
    target: DeliveryTarget | None = None

    @property
    def message_count(self) -> int:
        return sum(span.last - span.first + 1 for span in self.spans)

    def left_nothing(self, command: Claim) -> bool:
        """True if the claim surely took all available messages. False if messages may be left."""
        left = self.moving or self.unresolved or self.passed or self.halved or self.unpaid
        limited = command.attempt_id is not None or command.tokens is not None
        limited = limited or (command.hands is not None and self.last >= command.hands)
        hidden = self.visible_at > self.received_at
        return hidden and not left and not limited and self.message_count < command.max_messages


@attrs.frozen
class LeaseCounts:
    """Numbers of messages of a lease, counted by a command that changed the lease.

    Attributes:
        done: messages that were deleted, released or extended.
        lost: messages that the lease no longer holds.
        released: failed messages that ``delete_except`` made visible.
    """

    done: int
    lost: int
    released: int = 0


@attrs.frozen
class Result:
    """Answer to one command. If ``changed`` is True, the answer is valid only after the decision's commit."""

    value: Any = None
    error: QueueServiceError | None = None
    changed: bool = False


@attrs.frozen
class Decision:
    """Answers to commands, and rows to commit if ``commit`` is True. ``head`` then has the next epoch."""

    results: list[Result]
    commit: bool
    puts: list[Run]
    deletes: list[int]
    head: Head
    settled_puts: list[Run] = attrs.field(factory=list)
    settled_deletes: list[int] = attrs.field(factory=list)
    counts: dict[str, int] = attrs.field(factory=dict)
    """Number of changed messages by command, such as ``delete``. Stored in the table's commit info."""


@attrs.frozen
class StateCounts:
    """Numbers of messages of a shard by state (QUE-23)."""

    visible: int
    in_flight: int
    delayed: int
    rewindable: int = 0
    held: int = 0
    undecided: int = 0
