"""The policy of a consumer while storage fails: how it waits, when it logs, when it gives up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeGuard

import attrs

from lakequeue.entry_verbs import is_permanent
from lakequeue.errors import DamagedTable, InvalidOptions, QueueClientError
from lakequeue.model.clock import NEVER, Clock, Duration, duration_micros, to_micros
from lakequeue.model.damage import DamagedReads
from lakequeue.model.option_checks import duration, or_none, problems_of

_LASTS = timedelta(seconds=5)  # then other processes are told of an outage
_log = logging.getLogger("lakequeue")


@attrs.frozen
class Outage:
    """The policy of a consumer while storage fails. By default, the consumer waits until storage works again.

    Handlers continue during an outage, and deletes and renewals are repeated. Errors that waiting cannot fix end
    the consumer at once. Examples are a deleted queue and denied access. A damaged message is no outage: the
    consumer logs the damage once, with the command that repairs it, and receives the other messages.

    Args:
        give_up_after: seconds of an outage after which ``Consumer.run`` raises the error; None if never. If
            receives meet damaged messages for so many seconds, the run ends, too.
        first_pause: seconds until the first repetition. Each further pause is twice as long.
        longest_pause: maximum pause in seconds.
        log_every: seconds between log records during an outage. Begin and end of an outage are always logged.

    Raises:
        InvalidOptions: an option is out of range. The text names all of them.
    """

    give_up_after: Duration | None = None
    first_pause: Duration = 0.5
    longest_pause: Duration = 30
    log_every: Duration = 60

    def __attrs_post_init__(self) -> None:
        pauses = dict.fromkeys(("first_pause", "longest_pause", "log_every"), duration(1))
        problems = problems_of(self, give_up_after=or_none(duration(0)), **pauses)
        if not problems and _delta(self.longest_pause) < _delta(self.first_pause):
            problems = [
                f"longest_pause: must be at least first_pause ({self.first_pause}), not {self.longest_pause}"
            ]
        if problems:
            raise InvalidOptions(problems)

    def pause(self, failures: int) -> timedelta:
        """Returns the pause after a number of consecutive failures, 1 or more."""
        doubled = _delta(self.first_pause) * (1 << min(failures - 1, 30))
        return min(doubled, _delta(self.longest_pause))


@attrs.frozen
class Health:
    """The state of a consumer.

    Attributes:
        running: True during ``Consumer.run``.
        paused: True if the consumer receives nothing until ``Consumer.resume``.
        active: number of messages that are received and not settled yet.
        outage_since: instant at which storage or the delivery table began to fail; None while both work.
        last_error: text of the last failure of the outage; None without an outage.
        failing_table: path of the delivery table if the outage is the table's; None for an outage of storage.
        begun: number of active messages that a handler has begun.
        round_seconds: seconds of the slowest recent commit that settled and claimed; 0 before the first commit.
    """

    running: bool
    paused: bool
    active: int
    outage_since: datetime | None
    last_error: str | None
    begun: int = 0
    round_seconds: float = 0.0
    failing_table: str | None = None

    @property
    def ok(self) -> bool:
        """True if the consumer runs without an outage."""
        return self.running and self.outage_since is None


class OutageMonitor:
    """Follows outages of storage by the outcome of every call, and logs their begin and end. Thread-safe.

    An outage lasts until a call commits, or until each kind of call that failed has worked again. A receive that
    finds an empty queue commits nothing, and only ends the outage if no other kind of call has failed.

    Args:
        wake: called when a call other than a receive notices that an outage began or lasts too long.
        damage, repair: the damaged messages that receives met, and the command that repairs the queue.
        subject: returns what fails, for the log. By default, the storage of the queue.

    Attributes:
        since: instant at which the outage began; None without an outage.
        listeners: called when an outage has lasted five seconds, and at its end.
        error: the last failure.
    """

    def __init__(
        self,
        policy: Outage,
        name: str,
        clock: Clock,
        wake: Callable[[], None],
        damage: DamagedReads,
        repair: str,
        subject: Callable[[], str] | None = None,
    ) -> None:
        self._subject = subject or (lambda: f"storage of {name}")
        self.policy = policy
        self.listeners: list[Callable[[], None]] = []
        self._told = False  # the listeners of this outage
        self._damage = damage
        self._repair = repair
        self._began = to_micros(clock.now())
        self._name = name
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._log_at = NEVER  # when to log again during the outage
        self.since: datetime | None = None
        self.error: QueueClientError | None = None
        self._final: QueueClientError | None = None

    @property
    def final(self) -> QueueClientError | None:
        """A failure after which the consumer gives up."""
        after, met = self.policy.give_up_after, self._damage
        lasts = after is not None and met.last - max(met.first, self._began) >= duration_micros(after)
        return met.error if lasts else self._final

    def failed(self, doing: str, error: QueueClientError) -> bool:
        """Records a failed call and returns True. If waiting cannot fix the error, records nothing and returns
        False.

        Args:
            doing: the kind of call: ``receiving``, ``extending``, ``deleting`` or ``delivering``.
        """
        if is_permanent(error):
            return False
        now = self._clock.now()
        if _is_of_messages(error):  # they were claimed, so storage works
            if self._damage.met(error, to_micros(now)):
                text = "%s has damaged messages, and its other messages are received: %s; repair it: %s"
                _log.error(text, self._name, error.damage, self._repair)
            if self.final is not None:
                self._wake()
            return True
        with self._lock:
            first, self.error = self.since is None, error
            self._failing.add(doing)
            if self.since is None:
                self.since, self._log_at = now, now + _delta(self.policy.log_every)
                fails = "%s fails, the consumer waits until it is back: %s: %s"
                _log.warning(fails, self._subject(), doing, error)
            elif now >= self._log_at:
                self._log_at = now + _delta(self.policy.log_every)
                elapsed = (now - self.since).total_seconds()
                _log.warning("%s has failed for %.0f s: %s: %s", self._subject(), elapsed, doing, error)
            if (gives_up_at := self._gives_up_at) is not None and now >= gives_up_at:
                self._final = error
            tells = not self._told and now - self.since >= _LASTS
            self._told |= tells
        if tells:
            self._tell()
        if (first or self._final is not None) and doing != "receiving":
            self._wake()
        return True

    def worked(self, doing: str, committed: bool = True) -> None:
        """Records that storage answered a kind of call. Ends the outage if the call ``committed``, or if no other
        kind of call has failed.
        """
        if self.since is None:
            return
        with self._lock:
            self._failing.discard(doing)
            if committed:
                self._failing.clear()
            if not self._failing and self.since is not None:
                elapsed = (self._clock.now() - self.since).total_seconds()
                _log.warning("%s works again after %.0f s", self._subject(), elapsed)
                self.since = self.error = self._final = None
            tells = self._told and self.since is None
            self._told &= not tells
        if tells:
            self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    def next_try(self, failures: int) -> datetime:
        """Returns the earlier of two instants: when to try again, and when the consumer gives up."""
        now, gives_up_at = self._clock.now(), self._gives_up_at
        then = now + self.policy.pause(failures)
        return then if gives_up_at is None or gives_up_at <= now else min(then, gives_up_at)

    @property
    def _gives_up_at(self) -> datetime | None:
        since, after = self.since, self.policy.give_up_after
        return None if since is None or after is None else since + _delta(after)


def _delta(duration: Duration) -> timedelta:
    return timedelta(microseconds=duration_micros(duration))


def _is_of_messages(error: QueueClientError) -> TypeGuard[DamagedTable]:
    """True if claimed messages cannot be read, as their file is damaged. False if a table was replaced."""
    return isinstance(error, DamagedTable) and error.outcome_unknown and (error.file or "").endswith(".parquet")
