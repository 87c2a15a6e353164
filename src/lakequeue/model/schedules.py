"""Schedules (JOB-7). A schedule sends messages by a cron expression, or one message at an instant."""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import chain, islice, takewhile
from zoneinfo import ZoneInfo

import attrs
from cronsim import CronSim, CronSimError

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.arguments import check_instant, check_string, check_text, check_type
from lakequeue.model.names import is_name

MISSED = ("last", "all", "none")
"""Values of ``Schedule.missed``: send a message for the last missed due time, for all of them, or for none."""
LATE = timedelta(minutes=5)
"""Delay after which a due time is overdue. With ``missed='none'``, an overdue time gets no message."""
SKEW = timedelta(minutes=15)
"""Maximum difference between the clocks of processes. A larger difference is an error."""
MOST_AT_ONCE = 100
"""Maximum number of messages that a schedule with ``missed='all'`` sends in one check."""
LONGEST_CRON = 200
_LONGEST_ZONE = 64
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_ID = re.compile("[0-9a-f]{32}")


@attrs.frozen
class Schedule:
    """A message to be sent to a queue repeatedly, or once.

    Attributes:
        name: unique in its region.
        region: region of the schedule and its queue.
        queue: name of the queue.
        body: body of the messages.
        cron: five fields, for example ``0 2 * * *``. None: the message is sent once, at ``next_due``.
        tz: IANA name of the time zone for ``cron``.
        missed: due times that get a late message: ``last``, ``all`` or ``none``.
        group_id: message group, or None.
        priority: priority of the messages.
        created_at: when the schedule was added.
        next_due: when the next message is due.
        paused: True if nothing is sent.
        last_due: due time of the last message that was sent.
        last_error: why the last attempt failed. None if the last attempt succeeded.
        id: id of the schedule. Replaced when the schedule is added again.
    """

    name: str
    region: str
    queue: str
    body: str
    cron: str | None
    tz: str
    missed: str
    group_id: str | None
    priority: int
    created_at: datetime
    next_due: datetime
    id: str
    paused: bool = False
    last_due: datetime | None = None
    last_error: str | None = None

    def check(self) -> None:
        """Raises InvalidParameterValue for the first invalid field."""
        check_schedule_name(self.name)
        check_text("region", self.region)
        check_text("body", self.body)
        check_string("tz", self.tz)
        check_string("cron", self.cron, optional=True)
        check_string("group_id", self.group_id, optional=True)
        check_type("priority", self.priority, int, "a whole number")
        check_instant("created_at", self.created_at)
        check_instant("next_due", self.next_due)
        if not is_name(self.queue):
            raise InvalidParameterValue.of(self.queue, "queue", "Must be the name of a queue.")
        if self.missed not in MISSED:
            raise InvalidParameterValue.of(self.missed, "missed", f"Must be one of {', '.join(MISSED)}.")
        if not isinstance(self.id, str) or not _ID.fullmatch(self.id):
            raise InvalidParameterValue.of(self.id, "id", "Must be 32 hexadecimal digits.")
        if self.cron is not None and self.first_after(self.created_at) is None:
            raise InvalidParameterValue.of(self.cron, "cron", "No time in the next 50 years fits it.")

    def is_like(self, other: Schedule) -> bool:
        """Returns True if both schedules send the same messages at the same times."""
        names = ["queue", "body", "cron", "tz", "missed", "group_id", "priority"]
        names += ["next_due"] if self.cron is None else []
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def replaced_by(self, other: Schedule) -> Schedule:
        """Returns ``other`` with this schedule's pause. Also keeps this schedule's due time if it has passed."""
        if self.paused or other.cron is None or self.next_due > other.created_at:
            return attrs.evolve(other, paused=self.paused)
        return attrs.evolve(other, id=self.id, next_due=self.next_due, last_due=self.last_due)

    def moved_on(self, sent: Schedule | None, now: datetime) -> Schedule | None:
        """Called on the stored schedule after a send. Returns the schedule to store; None to remove the schedule.

        ``sent`` is the schedule as the sending process changed it, or None if the schedule has no more messages to
        send. If another process changed the stored schedule during the send, and the stored schedule has a
        ``cron``, the result is next due after ``now``.
        """
        if self.cron is None or (sent is not None and self.is_like(sent)):
            return sent and attrs.evolve(sent, paused=self.paused)
        last = sent or self
        following = self.first_after(now) or self.next_due
        return attrs.evolve(self, next_due=following, last_due=last.last_due, last_error=last.last_error)

    def first_after(self, instant: datetime) -> datetime | None:
        """Returns the next due time after an instant, or None. Raises InvalidParameterValue for a bad ``cron``."""
        return None if self.cron is None else next(self._after(self.cron, instant), None)

    def is_ahead(self, now: datetime, last: datetime | None = None) -> bool:
        """Returns True if a fast clock moved the schedule into the future. ``last``: due time of the last send."""
        limit = now + SKEW
        if last is not None and last > limit:
            return True
        return (
            self.cron is not None and self.next_due > limit and self.next_due > (self.first_after(limit) or limit)
        )

    def set_back(self, now: datetime, last: datetime | None) -> Schedule:
        """Returns a copy in which ``created_at`` and ``last_due`` are not after ``now``. If ``is_ahead``, and the
        schedule has a ``cron``, the copy's ``next_due`` is the first due time after ``now``.
        """
        then = None if self.last_due is None else min(self.last_due, now)
        known = attrs.evolve(self, created_at=min(self.created_at, now), last_due=then)
        if not self.is_ahead(now, last):
            return known
        following = self.first_after(now) or self.next_due
        return attrs.evolve(known, next_due=following, id=uuid.uuid4().hex, last_error=None)

    def is_overdue(self, now: datetime) -> bool:
        """Returns True if the next message is overdue by more than ``LATE``."""
        return not self.paused and now - self.next_due > LATE

    def why_silent(self) -> str:
        """Explains why nothing is sent: a fast clock moved the schedule into the future. Names the remedy."""
        then = "its next times lie before its last one, as a clock was ahead"
        return f"{then}; lakequeue repair {self.queue} --clock sets it back"

    def due(self, now: datetime) -> list[datetime]:
        """Returns the due times for which a message must be sent now. ``missed`` selects among missed times."""
        if self.cron is None:
            times = [self.next_due]
        elif self.missed == "all":
            later = takewhile(lambda time: time <= now, self._after(self.cron, self.next_due))
            return list(islice(chain([self.next_due], later), MOST_AT_ONCE))
        else:
            times = [self._last(self.cron, now)]
        return [time for time in times if self.missed != "none" or now - time <= LATE]

    def _last(self, cron: str, now: datetime) -> datetime:
        """Returns the latest due time up to ``now``. Searches back from ``now``, in growing time spans."""
        span = timedelta(hours=1)
        while True:
            start = max(self.next_due, now - span)
            found = deque(takewhile(lambda time: time <= now, self._after(cron, start)), maxlen=1)
            if found or start == self.next_due:
                return found[0] if found else start
            span *= 8

    def _after(self, cron: str, instant: datetime) -> Iterator[datetime]:
        zone = _zone(self.tz)
        if len(cron) > LONGEST_CRON:
            raise InvalidParameterValue.of(cron, "cron", f"Must be at most {LONGEST_CRON} characters.")
        try:
            if (fields := len(cron.split())) != 5:
                raise CronSimError(f"it has {fields}")
            for time in CronSim(cron, instant.astimezone(zone)):
                # in the second pass of a repeated hour, CronSim still yields times of the first pass
                if (found := time.astimezone(timezone.utc)) > instant:
                    yield found
                    instant = found
        except (CronSimError, AssertionError, OverflowError) as error:
            reason = f"Must be five fields, such as 0 2 * * *: {str(error) or 'it cannot be read'}."
            raise InvalidParameterValue.of(cron, "cron", reason) from None


def check_schedule_name(name: object) -> None:
    """Raises InvalidParameterValue unless a schedule can have this name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        reason = "Can only include letters, digits, hyphens, underscores and dots. 1 to 80 in length."
        raise InvalidParameterValue.of(name, "name", reason)


def _zone(name: str) -> ZoneInfo:
    if len(name) <= _LONGEST_ZONE:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # unknown, not a name of a zone, or a directory of zones
            pass
    raise InvalidParameterValue.of(name, "tz", "Must be an IANA time zone, such as Europe/Berlin or UTC.")
