"""The states of a message and how it gets from one to another, under one name each everywhere (STA-1 to STA-13)."""

from __future__ import annotations

from enum import Enum


class MessageState(str, Enum):
    """What may be done with a message now.

    The Python API, SQL, the command line, the console and the runs in `receipts` all use these words. The state
    follows from what is stored and the instant at which it is asked for: the end of a delay, of a visibility timeout
    or of the retention period needs no commit.
    """

    VISIBLE = "visible"
    """A receive may return it. CMQ calls it Active."""
    IN_FLIGHT = "in_flight"
    """Received and hidden from others until its visibility timeout ends, unless it is deleted first. CMQ calls it
    Inactive."""
    DELAYED = "delayed"
    """Sent with a delay that is not over; it was never received."""
    HELD = "held"
    """Sent while as many messages were delayed as the queue allows; visible or delayed once there are fewer (INF-9)."""
    DELETED = "deleted"
    """Deleted by a consumer. Where the queue has rewind on, it is kept and may become visible again; final otherwise."""
    EXPIRED = "expired"
    """Older than the retention period. Final."""
    PURGED = "purged"
    """Removed by a purge. Final; no view shows it."""
    MOVING = "moving"
    """On its way to another queue, as a dead letter or by a redrive; nobody can receive it. Counts as in flight."""
    MOVED = "moved"
    """Another queue has it. Final here; SQL shows it as deleted until its storage is freed."""

    def __str__(self) -> str:
        return self.value


TRANSITIONS: dict[MessageState, frozenset[MessageState]] = {
    MessageState.DELAYED: frozenset({MessageState.VISIBLE, MessageState.EXPIRED, MessageState.PURGED}),
    MessageState.HELD: frozenset({MessageState.VISIBLE, MessageState.DELAYED, MessageState.EXPIRED, MessageState.PURGED}),
    # to delayed by a longer delay of its FIFO queue, if it was never received
    MessageState.VISIBLE: frozenset({MessageState.IN_FLIGHT, MessageState.DELAYED, MessageState.DELETED, MessageState.MOVING, MessageState.EXPIRED, MessageState.PURGED}),
    MessageState.IN_FLIGHT: frozenset({MessageState.VISIBLE, MessageState.DELETED, MessageState.EXPIRED, MessageState.PURGED}),
    # back, or purged, only what a rewind may bring back; to delayed by the delay of its FIFO queue
    MessageState.DELETED: frozenset({MessageState.VISIBLE, MessageState.DELAYED, MessageState.EXPIRED, MessageState.PURGED}),
    # to visible when the other queue is gone
    MessageState.MOVING: frozenset({MessageState.MOVED, MessageState.VISIBLE, MessageState.EXPIRED, MessageState.PURGED}),
    MessageState.MOVED: frozenset({MessageState.EXPIRED}),
    MessageState.EXPIRED: frozenset(),
    MessageState.PURGED: frozenset(),
}
"""The states that may follow each state (STA-13)."""
