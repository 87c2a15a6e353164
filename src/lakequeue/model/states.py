"""States of a message, and their transitions (STA-1 to STA-13)."""

from __future__ import annotations

from enum import Enum


class MessageState(str, Enum):
    """State of a message at an instant. It changes without a commit when a period, such as a timeout, ends."""

    VISIBLE = "visible"
    """A receive may return the message. CMQ calls this Active."""
    IN_FLIGHT = "in_flight"
    """Received, and hidden until the visibility timeout ends. CMQ calls this Inactive."""
    UNDECIDED = "undecided"
    """The receipt for a delivery ended before the outcome was known. The message is deleted if the table has its
    rows. Otherwise, the message becomes visible again (TAB-5).
    """
    DELAYED = "delayed"
    """No receive can return the message until its delay ends."""
    HELD = "held"
    """Sent while too many messages were delayed. Released when fewer messages are delayed (INF-9)."""
    DELETED = "deleted"
    """Deleted by a consumer. Final, unless a rewind makes the message visible again."""
    EXPIRED = "expired"
    """Older than the retention period. Final."""
    PURGED = "purged"
    """Removed by a purge. Final, and no longer shown."""
    MOVING = "moving"
    """Being moved to another queue, as a dead letter or by a redrive. Counts as in flight."""
    MOVED = "moved"
    """Moved to another queue. Final. SQL shows the message as deleted until its storage is freed."""

    def __str__(self) -> str:
        return self.value


STORED = ("visible", "in_flight", "delayed", "held", "moving", "undecided")
"""The states of stored messages, in display order."""

TRANSITIONS = {
    MessageState(before): frozenset(map(MessageState, after.split()))
    for before, after in {
        # held becomes deleted only by an erasure, delayed also by the last holder of a rescheduled message
        "delayed": "visible deleted expired purged",
        "held": "visible delayed deleted expired purged",
        # visible becomes delayed if rescheduled, or by a longer delay of its FIFO queue if never received
        "visible": "in_flight delayed deleted moving expired purged",
        "in_flight": "visible undecided deleted expired purged",
        # becomes in_flight if a lease extends its receipt, expired by a later decision
        "undecided": "in_flight visible deleted expired purged",
        # becomes visible only by a rewind
        "deleted": "visible expired purged",
        # becomes visible if the other queue is gone
        "moving": "moved visible expired purged",
        "moved": "expired",
        "expired": "",
        "purged": "",
    }.items()
}
"""The states that may follow each state (STA-13)."""
