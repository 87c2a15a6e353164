"""Messages that failed on the last receive before they become dead letters, and wait to be moved together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakequeue.consumer.jobs import Done, State

if TYPE_CHECKING:
    from lakequeue.entry_verbs import FreeHands
    from lakequeue.model.failures import DeadLetterReason


class Letters:
    """Messages of a pool that failed on their last receive, and wait for each other (HBN-28). Not thread-safe.

    One move to a dead-letter queue takes three commits for any number of messages, so waiting saves commits.

    Attributes:
        more: True if the last claim brought messages, or lacked a free hand for some, so that further messages may
            fail soon. If False, messages are moved without waiting.
        asked: True if a claim began and has brought no message yet.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Done, DeadLetterReason | None]] = []
        self.more = self.asked = False

    def __len__(self) -> int:
        return len(self._waiting)

    def may_wait(self, done: Done, until: int) -> bool:
        """Returns True if a failed message may wait for others. ``until`` is 0 if its receipt allows no wait."""
        last = done.job.context.message.last_receive and done.again_in == 0
        return self.more and last and until > 0

    def add(self, done: Done, until: int, reason: DeadLetterReason | None) -> None:
        """Adds a failed message with the reason. The message may wait until an instant."""
        done.job.state, done.until = State.FINISHED, until
        self._waiting.append((done, reason))

    def claimed(self, messages: bool, claim: FreeHands | None) -> None:
        """Records whether a claim brought messages, or skipped messages because no hand was free."""
        self.more, self.asked = messages or (claim is not None and claim.passed > 0), False

    @property
    def until(self) -> int | None:
        """The instant until which all of the messages may wait; None without messages."""
        return min((done.until for done, _ in self._waiting), default=None)

    def due(self, now: int) -> list[tuple[Done, DeadLetterReason | None]]:
        """Returns an empty list while all of the messages may wait. Otherwise removes and returns all of them."""
        if self.more and (self.until is None or now < self.until):
            return []
        waiting, self._waiting = self._waiting, []
        for done, _ in waiting:
            done.until = 0
        return waiting
