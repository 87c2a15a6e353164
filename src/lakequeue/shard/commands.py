"""What may be asked of a shard, and what it answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import attrs

from lakequeue.errors import QueueServiceError
from lakequeue.shard.runs import Head, Run

Spans = Sequence[tuple[int, int]]


@attrs.frozen
class Claim:
    """Receive up to `max_messages` under one new lease; the answer is a `ClaimResult`.

    `visibility_timeout` None stands for the queue's (RCV-5). `at_limit` says what a full shard answers:
    OverLimit, an empty result, or what the type of the queue prescribes (INF-3, INF-4). A claim that
    repeats a live `attempt_id` answers what that one got (ATT-3); on FIFO shards only. `dead_letter_keys` tells
    the keys of dead-letter queues by their ARNs; None for one that is not there, whose letters stay.
    """

    max_messages: int
    visibility_timeout: int | None
    lease_id: str
    at_limit: Literal["error", "empty", "default"] = "default"
    attempt_id: str | None = None
    dead_letter_keys: Mapping[str, str | None] = attrs.field(factory=dict)


@attrs.frozen
class Delete:
    """Delete one message by receipt; the answer is whether this call removed it (DEL-2, RCP-6)."""

    offset: int
    lease_id: str
    handle_text: str = ""


@attrs.frozen
class ChangeVisibility:
    """Let the receipt of one message end `timeout` from now; 0 hands it back at once (VIS-1, VIS-4)."""

    offset: int
    lease_id: str
    timeout: int
    handle_text: str = ""


@attrs.frozen
class LeaseDelete:
    """Delete what a lease still holds of `spans`; `except_offsets` become visible instead."""

    lease_id: str
    spans: Spans
    except_offsets: Collection[int] = ()


@attrs.frozen
class LeaseExtend:
    """Let the receipts that a lease still holds end `timeout` from now."""

    lease_id: str
    spans: Spans
    timeout: int


@attrs.frozen
class LeaseRelease:
    """Hand back at once what a lease still holds."""

    lease_id: str
    spans: Spans


@attrs.frozen
class Move:
    """Begin to move the visible messages of `spans` to another queue; the answer is how many that are.

    None while an earlier move is unfinished. They arrive as if sent there for the first time (DLQ-8).
    """

    spans: Spans
    target_key: str


@attrs.frozen
class Moved:
    """Remove what a move has brought to its target; the answer is how many messages that were."""

    number: int


@attrs.frozen
class MoveBack:
    """Make visible again what a move could not bring away; the answer is how many messages that were."""

    number: int


@attrs.frozen
class Purge:
    """Remove every message sent so far (PUR-1); `queue_name` is for the text of the error.

    `at_any_time` leaves the pause of PUR-2 to the shard of the queue that is purged last.
    """

    queue_name: str = ""
    at_any_time: bool = False


@attrs.frozen
class Rewind:
    """Make deleted messages visible again that were sent at `to` (an instant) or later (RWD-9).

    The answer is how many that were. `checked`: all shards were asked already whether they would refuse.
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
    """Mark the shard as deleted: it refuses every later command (QUE-13)."""


@attrs.frozen
class Expire:
    """Commit what retention has removed; the answer is how many messages that were."""


@attrs.frozen
class Rewrite:
    """Change nothing, but commit: the caller writes all runs anew."""


Command = (
    Claim
    | Delete
    | ChangeVisibility
    | LeaseDelete
    | LeaseExtend
    | LeaseRelease
    | Move
    | Moved
    | MoveBack
    | Purge
    | Rewind
    | SetAttributes
    | Close
    | Expire
    | Rewrite
)


@attrs.frozen
class ClaimedSpan:
    """Messages of one claim that have the same receive count and first receipt."""

    first: int
    last: int
    receive_count: int
    first_received_at: int


@attrs.frozen
class ClaimResult:
    """What a claim took, lowest offset first; no spans when nothing was available (RCV-14).

    `lease_id` is that of the claim, or of an earlier one that it repeats. `order` holds the same offsets as
    ranges in the order of delivery on FIFO shards, where that differs (FIF-5); elsewhere it is empty. Before a
    claim hands out anything, messages that were received too often have to go: `moving` says that a move is to
    be finished, `unresolved` names the dead-letter queue whose key is wanted; claim again after that.
    """

    spans: tuple[ClaimedSpan, ...]
    received_at: int
    visible_at: int
    lease_id: str
    order: Spans = ()
    moving: bool = False
    unresolved: str | None = None

    @property
    def message_count(self) -> int:
        """Messages claimed."""
        return sum(span.last - span.first + 1 for span in self.spans)


@attrs.frozen
class Outgoing:
    """A move that is not finished: ranges `(first, last, receive_count)`, lowest first.

    A count of 0 means a redrive, which forgets where and how often the message was received.
    """

    number: int
    target_key: str
    parts: tuple[tuple[int, int, int], ...]


@attrs.frozen
class LeaseCounts:
    """Messages of a lease that a command reached, and those that the lease no longer held."""

    done: int
    lost: int


@attrs.frozen
class Result:
    """Answer to one command.

    `changed` says that the answer stands or falls with the commit: the command, or one before it in the
    same decision, changed the state. Else it was read from the state and is as fresh as that.
    """

    value: Any = None
    error: QueueServiceError | None = None
    changed: bool = False


@attrs.frozen
class Decision:
    """Answers, and the rows to commit: at most one put or delete per first offset, and likewise in the history.

    `head` carries the next epoch. Nothing needs to be committed when `commit` is false.
    """

    results: list[Result]
    commit: bool
    puts: list[Run]
    deletes: list[int]
    head: Head
    settled_puts: list[Run] = attrs.field(factory=list)
    settled_deletes: list[int] = attrs.field(factory=list)


@attrs.frozen
class Counts:
    """Messages of a shard by what may be done with them (QUE-23)."""

    visible: int
    in_flight: int
    delayed: int
    rewindable: int = 0
    oldest_offset: int | None = None
    held: int = 0
