"""The states of a message, and the transitions between them (STA-1 to STA-13)."""

from __future__ import annotations

from enum import Enum


class MessageState(str, Enum):
    """The state of a message at an instant.

    The Python API, SQL, the command line, the console and the runs in ``receipts`` all use these words. The state
    follows from the stored data and the current time: no commit is needed when a delay, a visibility timeout or
    the retention period ends.
    """

    VISIBLE = "visible"
    """A receive may return it. CMQ calls it Active."""
    IN_FLIGHT = "in_flight"
    """Received and hidden from others until its visibility timeout ends, unless it is deleted first. CMQ calls it
    Inactive."""
    DELAYED = "delayed"
    """Sent with a delay that is not over; it was never received."""
    HELD = "held"
    """Sent while as many messages were delayed as the queue allows; released once there are fewer (INF-9)."""
    DELETED = "deleted"
    """Deleted by a consumer. Final, unless the queue has rewind on: then it may become visible again."""
    EXPIRED = "expired"
    """Older than the retention period. Final."""
    PURGED = "purged"
    """Removed by a purge. Final; no view shows it."""
    MOVING = "moving"
    """On its way to another queue, as a dead letter or by a redrive. Counts as in flight."""
    MOVED = "moved"
    """Another queue has it. Final here; SQL shows it as deleted until its storage is freed."""

    def __str__(self) -> str:
        return self.value


STORED = ("visible", "in_flight", "delayed", "held", "moving")
"""The states of what a queue stores, in the order in which they are shown."""

TRANSITIONS = {
    MessageState(before): frozenset(map(MessageState, after.split()))
    for before, after in {
        # from held to deleted by an erasure only, from delayed also by the last holder of one that was rescheduled
        "delayed": "visible deleted expired purged",
        "held": "visible delayed deleted expired purged",
        # to delayed by being rescheduled; or by a longer delay of its FIFO queue, if it was never received
        "visible": "in_flight delayed deleted moving expired purged",
        "in_flight": "visible deleted expired purged",
        # only what a rewind may bring back
        "deleted": "visible expired purged",
        # to visible when the other queue is gone
        "moving": "moved visible expired purged",
        "moved": "expired",
        "expired": "",
        "purged": "",
    }.items()
}
"""The states that may follow each state (STA-13)."""
