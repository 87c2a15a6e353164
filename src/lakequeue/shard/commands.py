"""Commands to a shard, and its answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs

from lakequeue.errors import QueueServiceError
from lakequeue.model.deliveries import Mark, Target, Undecided
from lakequeue.model.failures import DeadLetterReason
from lakequeue.shard.runs import Destination, Head, Run

Spans = Sequence[tuple[int, int]]


@attrs.frozen
class Claim:
    """Receive up to ``max_messages`` under one new lease; the answer is a ``ClaimResult``.

    ``visibility_timeout`` None: the queue's (RCV-5). A claim that repeats a live ``attempt_id`` gets the same
    messages again (ATT-3); FIFO shards only. ``dead_letter_queues`` maps ARNs of dead-letter queues to where their
    messages go; None: the queue does not exist, and the messages stay. ``consumer`` names who receives, unless
    there is an ``attempt_id``. With ``hands``, the number of handlers that begin at once, a message is claimed for
    its last receive before it becomes a dead letter only for one of them, and as the first of its FIFO group: no
    message becomes one that no handler has seen (HBN-23). ``leased`` is for a batch: how many messages it has from
    other shards. Of messages that failed as one batch it takes at most half as many, and no others with
    them (DLQ-12). ``tokens``: how many messages the queue's rate limit lets through, whose bucket is in another
    shard; None: the bucket is in this shard, and the claim charges it. ``delivery``: random bits for the mark of a
    delivery into the queue's table (TAB-2). Such a claim ignores ``attempt_id``. It takes nothing while there are
    marks of an earlier table or delivery id.
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


@attrs.frozen
class Charge:
    """Takes tokens for messages that will be claimed in another shard; the answer is how many there were (JOB-11).

    A negative ``count`` gives tokens back.
    """

    count: int


@attrs.frozen
class Delete:
    """Deletes one message by receipt; the answer is whether this command removed it (DEL-2, RCP-6)."""

    offset: int
    lease_id: str
    handle_text: str = ""


@attrs.frozen
class ChangeVisibility:
    """Lets the receipt of one message end ``timeout`` from now; 0 hands it back at once (VIS-1, VIS-4)."""

    offset: int
    lease_id: str
    timeout: int
    handle_text: str = ""


@attrs.frozen
class RecordFailure:
    """Keeps why the handler of one message failed, with those that failed before (JOB-10).

    The answer is None; nothing happens if the receipt is no longer the latest.
    """

    offset: int
    lease_id: str
    failure: DeadLetterReason


@attrs.frozen
class LeaseDelete:
    """Deletes the messages of ``spans`` that a lease still holds; ``except_offsets`` become visible instead.

    ``failure``: why these failed; kept as by ``RecordFailure``. ``reasons``: the same by offset, for
    messages that have their own. ``unmark``: see ``LeaseRelease``, for the excepted messages.
    """

    lease_id: str
    spans: Spans
    except_offsets: Collection[int] = ()
    failure: DeadLetterReason | None = None
    reasons: Mapping[int, DeadLetterReason] = attrs.field(factory=dict)
    unmark: bool = False


@attrs.frozen
class LeaseExtend:
    """Lets the receipts that a lease still holds end ``timeout`` from now; 0 hands them back."""

    lease_id: str
    spans: Spans
    timeout: int


@attrs.frozen
class LeaseRelease:
    """Hands back at once the messages that a lease still holds; ``unseen`` ones count as never received by it.

    ``unread`` ones do so, too, and stay hidden until their timeout: storage cannot read them now.
    ``failure``: see ``LeaseDelete``; ``failed_together``: of how many messages, if they failed as one batch.
    ``unmark``: no append of the lease's delivery can land any more, because its holder has not begun one, or has
    blocked the number. Without it, marked messages that somebody saw become undecided instead of visible (TAB-6).
    """

    lease_id: str
    spans: Spans
    failure: DeadLetterReason | None = None
    failed_together: int | None = None
    unseen: bool = False
    unread: bool = False
    unmark: bool = False


@attrs.frozen
class Move:
    """Begins to move the visible messages of ``spans`` to another queue; the answer is their number.

    It is None while an earlier move is unfinished. They arrive as if sent there for the first time (DLQ-8).
    """

    spans: Spans
    target: Destination


@attrs.frozen
class Moved:
    """Removes the messages that a move appended at its target; the answer is their number."""

    number: int


@attrs.frozen
class MoveBack:
    """Makes visible again the messages of a move whose target is gone; the answer is their number."""

    number: int


@attrs.frozen
class Discard:
    """Deletes the visible messages of ``spans`` without a receipt; the answer is their number."""

    spans: Spans


@attrs.frozen
class Erase:
    """Deletes the messages of ``spans`` in whatever state and without a receipt.

    The answer is their number, and whether one of them is on its way to another queue, which must end first.
    ``for_good``: also from the history.
    """

    spans: Spans
    for_good: bool = True


@attrs.frozen
class MakeVisible:
    """Makes the delayed messages of ``spans`` visible now; the answer is the number of those made visible.

    ``in_flight``: also end the receipts of those in flight, whoever has them. With ``at``, an instant, delayed and
    visible ones become visible then, and are delayed until that.
    """

    spans: Spans
    in_flight: bool = False
    at: int | None = None


@attrs.frozen
class Purge:
    """Removes every message sent so far (PUR-1); ``queue_name`` is for the error message.

    ``at_any_time`` skips the check of PUR-2, which only the shard that is purged last makes.
    """

    queue_name: str = ""
    at_any_time: bool = False


@attrs.frozen
class Rewind:
    """Makes deleted messages visible again that were sent at ``to`` (an instant) or later (RWD-9).

    The answer is their number. ``checked``: all shards were already asked whether they refuse.
    """

    to: int
    checked: bool = False


@attrs.frozen
class SetAttributes:
    """Adopt the queue's attributes (wire names), unless the shard has this version or a later one."""

    attributes: dict[str, str]
    version: int


@attrs.frozen
class Close:
    """Marks the shard as deleted: it refuses every later command (QUE-13)."""


@attrs.frozen
class Expire:
    """Commit what retention has removed; the answer is the number of messages."""


@attrs.frozen
class Rewrite:
    """Commit without a change, so that the caller can rewrite all runs."""


@attrs.frozen
class MarkEmptying:
    """Announces an emptying of the log, so that the ledger by which it is made is known by its mark."""

    mark: int
    """Random, positive."""
    known: int
    """The mark that the log has; 0 if it was never emptied."""


@attrs.frozen
class Decide:
    """Ends a delivery by its outcome: deletes its messages, or makes them visible (TAB-5).

    The answer is their number; 0 if the mark is gone. Messages that become visible again come in halves (DLQ-12),
    with ``failure`` as why. ``unrecorded``: the answer is also 0 if the id of a table is recorded, into which a
    holder may have appended meanwhile (TAB-4).
    """

    slot: int
    number: int
    delivered: bool
    failure: DeadLetterReason | None = None
    unrecorded: bool = False


@attrs.frozen
class Remark:
    """Splits a delivery whose number is blocked: each part gets a new number, with a slot of its own (TAB-7).

    The answer has the mark of each part. It is None, and nothing changes, if the lease does not hold all messages
    of the parts under the mark, by a receipt that has not ended. Messages of the mark in no part become visible,
    with ``failure``. ``nonce``: random bits for the numbers.
    """

    lease_id: str
    slot: int
    number: int
    parts: Sequence[Spans]
    nonce: int
    failure: DeadLetterReason | None = None


@attrs.frozen
class RecordTable:
    """Records the id of the delivery table, as long as a mark is there; the first id stays (TAB-4).

    The answer is the recorded id, or None if the mark is gone.
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
    """Messages of one claim with the same receive count and first receipt; ``last_receive``: see ``Message``."""

    first: int
    last: int
    receive_count: int
    first_received_at: int
    last_receive: bool = False


@attrs.frozen
class ClaimResult:
    """What a claim took, lowest offset first; no spans when nothing was available (RCV-14).

    ``lease_id`` identifies the claim, or the earlier claim that it repeats. On FIFO shards ``order`` holds the
    same offsets as ranges in the order of delivery (FIF-5); elsewhere it is empty. Dead letters must move before a
    claim hands out anything: ``moving`` says that a move must be completed, ``unresolved`` names the dead-letter
    queue whose key is needed; claim again after that. Of what was claimed, ``last`` are for their last receive;
    ``passed`` were left, as no handler could begin them at once. ``halved``: messages that failed as one batch
    were met, so the batch is complete. ``unpaid``: number of messages that the claim would have taken with more
    tokens, if it had none. ``mark``: of the claimed messages, if the claim is for a delivery. ``undecided``: the
    undecided deliveries of the shard, oldest first. ``target``: the delivery table of both.
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
    target: Target | None = None

    @property
    def message_count(self) -> int:
        """Messages claimed."""
        return sum(span.last - span.first + 1 for span in self.spans)

    def left_nothing(self, command: Claim) -> bool:
        """Returns True if the claim took all messages that there were."""
        left = self.moving or self.unresolved or self.passed or self.halved or self.unpaid
        limited = command.attempt_id is not None or command.tokens is not None
        limited = limited or (command.hands is not None and self.last >= command.hands)
        hidden = self.visible_at > self.received_at
        return hidden and not left and not limited and self.message_count < command.max_messages


@attrs.frozen
class LeaseCounts:
    """What a verb of a lease did.

    Attributes:
        done: number of messages that it deleted, released or extended.
        lost: number of messages that the lease no longer held.
        released: number of failed messages that ``delete_except`` made visible.
    """

    done: int
    lost: int
    released: int = 0


@attrs.frozen
class Result:
    """Answer to one command.

    ``changed``: the answer is valid only if the decision is committed, as this command or one before it changed
    the state. Otherwise it was read from the state and is as fresh as that.
    """

    value: Any = None
    error: QueueServiceError | None = None
    changed: bool = False


@attrs.frozen
class Decision:
    """Answers, and the rows to commit: at most one put or delete per first offset, in runs and history each.

    ``head`` carries the next epoch. Nothing needs to be committed when ``commit`` is false.
    """

    results: list[Result]
    commit: bool
    puts: list[Run]
    deletes: list[int]
    head: Head
    settled_puts: list[Run] = attrs.field(factory=list)
    settled_deletes: list[int] = attrs.field(factory=list)
    told: dict[str, int] = attrs.field(factory=dict)
    """The rules that changed the shard, each with its number of messages, for the history of the table."""


@attrs.frozen
class Counts:
    """Number of messages of a shard by state (QUE-23)."""

    visible: int
    in_flight: int
    delayed: int
    rewindable: int = 0
    held: int = 0
    undecided: int = 0
