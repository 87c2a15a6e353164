"""``Schedules``: messages that are sent at times, by whichever process looks."""

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
    """The schedules of a root and region; get them from ``LakeQueue.schedules``. Thread-safe.

    What is due is sent by ``lakequeue serve``, ``consume`` and ``schedule run``, the compaction job, and programs
    that call ``run_due`` or are inside ``running``: each message once, whichever of them do (JOB-7).
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
        """Adds a schedule, or returns the one that is the same, so that every program may begin with this call.

        One with ``at`` is gone once it was sent, and would then be another.
        Its messages have the attributes ``schedule``, its name, and ``scheduled_at``, when they were due, in UTC.
        On FIFO queues they have deduplication ids of their own.

        Args:
            name: 1 to 80 letters, digits, ``-``, ``_`` and ``.``; unique in the region.
            queue: name of the queue, which exists.
            body: what is sent, within the limits of the queue.
            cron: minute, hour, day of the month, month and day of the week, as ``0 2 * * *``; at most 200
                characters. Days must fit both if one of them begins with ``*``, else either, as in Debian's cron.
            tz: IANA name of the time zone in which ``cron`` counts. A time that clocks set forward leave out is
                due as they are set; of an hour that comes twice, a fixed time is due in the first.
            at: instead of ``cron`` and ``tz``: the only time; then the schedule is removed.
            missed: which of the times are sent at which no process was there to send: the ``last`` one; ``all``,
                100 each minute; or ``none`` that is more than 5 minutes ago.
            group_id: message group, which a FIFO queue needs.
            priority: that of the messages.
            update: whether another schedule of this name is replaced, as by a new release of a program. It stays
                paused if it is; what is due already is still sent.

        Raises:
            InvalidParameterValue: an argument is wrong, another schedule has this name and ``update`` is False, or
                the root has 1,000.
            QueueDoesNotExist: there is no such queue.
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
        """All schedules of the region, by name."""
        return self._runtime.listed()

    def pause(self, name: str) -> None:
        """Sends nothing for a schedule until ``resume``; InvalidParameterValue if there is none of this name."""
        self._change(name, lambda row: attrs.evolve(row, paused=True))

    def resume(self, name: str) -> None:
        """Ends a pause; times in it are not sent, so one with none left is removed.

        Raises:
            InvalidParameterValue: there is none of this name.
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
        """Removes a schedule; messages that it sent stay. InvalidParameterValue if there is none of this name."""
        self._change(name, lambda row: None)

    def run_now(self, name: str) -> SendResult:
        """Sends the message of a schedule at once, also of one that is paused; its times stay as they are.

        Raises:
            InvalidParameterValue: there is none of this name.
            QueueServiceError: the queue refuses the message, or does not exist.
        """
        check_schedule_name(name)
        return self._runtime.run_now(name)

    def run_due(self) -> int:
        """Sends what is due now; returns the number of messages that this call sent.

        A schedule whose message is refused keeps its time, and the reason as ``last_error``; the others go on.

        JOB-7
        """
        return self._runtime.run_due()

    def running(self) -> AbstractContextManager[None]:
        """A block in which what is due is sent at the start of each minute, in a thread; failures are logged."""
        return self._runtime.running()

    def _change(self, name: str, change: Callable[[Schedule], Schedule | None]) -> None:
        check_schedule_name(name)
        self._runtime.change(name, change)
