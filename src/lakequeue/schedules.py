"""``Schedules``: messages that any running process sends at given times."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime

import attrs

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.arguments import check_instant, check_type
from lakequeue.model.messages import SendResult
from lakequeue.model.schedules import Schedule, check_schedule_name
from lakequeue.operations.schedules import OpenSchedules


class Schedules:
    """The schedules of a root and region. Get them from ``LakeQueue.schedules``. Thread-safe.

    Due messages are sent by the commands ``serve``, ``consume`` and ``schedule run``, by the compaction job, by
    ``run_due`` and by ``running``. Several processes together send each message once (JOB-7).
    """

    def __init__(self, runtime: OpenSchedules) -> None:
        self._runtime = runtime

    def add(
        self,
        name: str,
        queue: str,
        body: str,
        *,
        cron: str | None = None,
        tz: str = "UTC",
        at: datetime | None = None,
        missed: str = "last",
        group_id: str | None = None,
        priority: int = 0,
        update: bool = False,
    ) -> Schedule:
        """Adds a schedule. Returns the existing schedule if it is equal, so that every program may begin with this
        call.

        The messages have the attributes ``schedule`` (its name) and ``scheduled_at`` (the due time in UTC). On
        FIFO queues, each message has its own deduplication id.

        Args:
            name: 1 to 80 letters, digits, ``-``, ``_`` and ``.``; unique in the region.
            queue: name of an existing queue.
            body: body of the messages, within the limits of the queue.
            cron: minute, hour, day of month, month, day of week. Example: ``0 2 * * *``. At most 200 characters.
                If a day field begins with ``*``, a day must match both day fields. Otherwise, a day must match one
                day field, as in Debian's cron.
            tz: IANA name of the time zone of ``cron``. When clocks go forward, times in the skipped hour are due
                at once. When clocks go back, a fixed time in the repeated hour is due only the first time.
            at: instant of a single message, instead of ``cron`` and ``tz``. The schedule is removed afterwards.
            missed: which messages are sent late, after a time without a running process. ``last`` sends only the
                message of the last due time, ``all`` sends all messages, 100 each minute, and ``none`` sends no
                message that is more than 5 minutes late.
            group_id: message group, which a FIFO queue needs.
            priority: priority of the messages.
            update: True to replace another schedule of this name. If the other schedule is paused, the new one is
                too. If a message of the other schedule is due, it is still sent.

        Raises:
            InvalidParameterValue: an argument is wrong, the name is taken, or the root has 1,000 schedules.
            QueueDoesNotExist: the queue does not exist.
            QueueServiceError: the queue refuses such a message.

        JOB-7
        """
        if at is not None:
            check_instant("at", at)
        if (cron is None) == (at is None):
            raise InvalidParameterValue.of(cron, "cron", "Give either cron or at.")
        if at is not None and tz != "UTC":
            raise InvalidParameterValue.of(tz, "tz", "Goes with cron; an instant has its own time zone.")
        now = self._runtime.root.clock.now()
        wanted = Schedule(
            name=name,
            region=self._runtime.root.region,
            queue=queue,
            body=body,
            cron=cron,
            tz=tz,
            missed=missed,
            group_id=group_id,
            priority=priority,
            created_at=now,
            next_due=at or now,
            id=uuid.uuid4().hex,
        )
        check_type("update", update, bool, "True or False")
        return self._runtime.add(wanted, update)

    def list(self) -> list[Schedule]:
        """Returns all schedules of the region, by name."""
        return self._runtime.listed()

    def pause(self, name: str) -> None:
        """Stops a schedule until ``resume``. Raises InvalidParameterValue if no schedule has this name."""
        self._change(name, lambda row: attrs.evolve(row, paused=True))

    def resume(self, name: str) -> None:
        """Ends a pause. Due times during the pause are not sent. If no due time is left, removes the schedule.
        Raises InvalidParameterValue if no schedule has this name.
        """
        self._runtime.root.check_clock(f"schedule {name}")
        now = self._runtime.root.clock.now()

        def resumed(row: Schedule) -> Schedule | None:
            following = row.first_after(now) or row.next_due
            if not row.paused:
                return row
            return attrs.evolve(row, paused=False, next_due=following) if following > now else None

        self._change(name, resumed)

    def remove(self, name: str) -> None:
        """Removes a schedule. Sent messages stay. Raises InvalidParameterValue if no schedule has this name."""
        self._change(name, lambda row: None)

    def run_now(self, name: str) -> SendResult:
        """Sends a schedule's message at once, even if paused. The due times do not change.

        Raises:
            InvalidParameterValue: no schedule has this name.
            QueueServiceError: the queue refuses the message, or does not exist.
        """
        check_schedule_name(name)
        return self._runtime.run_now(name)

    def run_due(self) -> int:
        """Sends the due messages. Returns the number of messages sent by this call (JOB-7).

        If the queue refuses a message, the message stays due, and ``last_error`` of its schedule has the reason.
        The other messages are sent.
        """
        return self._runtime.run_due()

    def running(self) -> AbstractContextManager[None]:
        """Sends due messages each minute while the block runs. Uses a thread. Logs failures."""
        return self._runtime.running()

    def _change(self, name: str, change: Callable[[Schedule], Schedule | None]) -> None:
        check_schedule_name(name)
        self._runtime.change(name, change)
