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
    """The schedules of a root and region; get them from ``LakeQueue.schedules``. Thread-safe.

    Due messages are sent by ``lakequeue serve``, ``consume`` and ``schedule run``, the compaction job, and
    programs that use ``run_due`` or ``running``. Each message is sent once, even if several of them run (JOB-7).
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
        """Adds a schedule, or returns an equal one, so that every program may begin with this call.

        Messages have the attributes ``schedule``, its name, and ``scheduled_at``, the due time in UTC. On FIFO
        queues they have deduplication ids of their own.

        Args:
            name: 1 to 80 letters, digits, ``-``, ``_`` and ``.``; unique in the region.
            queue: name of an existing queue.
            body: body of the messages, within the limits of the queue.
            cron: minute, hour, day of the month, month and day of the week, as ``0 2 * * *``; at most 200
                characters. As in Debian's cron, a day must match both day fields if one begins with ``*``, else
                either.
            tz: IANA name of the time zone of ``cron``. A time that is skipped when clocks go forward is due at
                that moment. In an hour that comes twice, a fixed time is due the first time.
            at: instead of ``cron`` and ``tz``, the only time. The schedule is removed afterwards.
            missed: which times are sent late, if no process was running then: the ``last``; ``all``, 100 each
                minute; or ``none`` older than 5 minutes.
            group_id: message group, which a FIFO queue needs.
            priority: priority of the messages.
            update: True to replace another schedule of this name. A paused schedule stays paused, and a message
                that is due already is still sent.

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
        """Ends a pause, without sends for times during the pause. Removes a schedule without a later time. Raises
        InvalidParameterValue if no schedule has this name.
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
        """Sends the message of a schedule at once, even if it is paused. Its times do not change.

        Raises:
            InvalidParameterValue: no schedule has this name.
            QueueServiceError: the queue refuses the message, or does not exist.
        """
        check_schedule_name(name)
        return self._runtime.run_now(name)

    def run_due(self) -> int:
        """Sends the due messages. Returns the number of messages that this call sent (JOB-7).

        A refused message keeps its due time, and the reason as ``last_error``. The other messages are sent.
        """
        return self._runtime.run_due()

    def running(self) -> AbstractContextManager[None]:
        """Sends due messages each minute while the block runs. Uses a thread. Logs failures."""
        return self._runtime.running()

    def _change(self, name: str, change: Callable[[Schedule], Schedule | None]) -> None:
        check_schedule_name(name)
        self._runtime.change(name, change)
