"""Pauses of queues and message groups (JOB-1). Receives skip paused queues and groups."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs

from lakequeue.model.clock import from_micros, to_micros

NO_REASON = "paused"
"""Reason that is stored for a pause without a reason. Texts about the pause do not show this word."""
ENDS = "ends the pause"
"""Effect of ``Pause.command``, in words."""
_RESUMED = "\n"
"""Key under which ``started`` stores the queue's last resume. No message group can have this name."""


@attrs.frozen
class Pause:
    """A pause of a queue or of a message group.

    Attributes:
        group: the message group. None for the whole queue.
        since: start of the pause. None if an older lakequeue paused the queue.
    """

    group: str | None
    reason: str
    since: datetime | None

    def __str__(self) -> str:
        return self._words if self.group is None else f"group {self.group} {self._words}"

    @property
    def _words(self) -> str:
        began = "" if self.since is None else f" since {self.since:%F %T}Z"
        return self.with_reason(f"paused{began}")

    def with_reason(self, text: str) -> str:
        """Returns the text, followed by the reason if there is one."""
        return text if self.reason == NO_REASON else f"{text}: {self.reason}"

    def of(self, queue: str) -> str:
        """Returns a line that says since when this queue or group is paused, and why."""
        be = "is" if self.since is None else "has been"
        return f"{queue if self.group is None else f'group {self.group} of {queue}'} {be} {self._words}"

    def advice(self, queue: str) -> str:
        """Returns the line from ``of()``, followed by the command that ends the pause."""
        return f"{self.of(queue)}; {self.command(queue)} {ENDS}"

    def command(self, queue: str) -> str:
        group = "" if self.group is None else f" --group {shlex.quote(self.group)}"
        return f"lakequeue resume {queue}{group}"


def pauses(reason: str | None, groups: Mapping[str, str] | None, since: str | None) -> list[Pause]:
    """Returns the queue's pause, then the pauses of its groups. ``since``: the result of ``started``."""
    began = json.loads(since or "{}")
    reasons = ({"": reason} if reason else {}) | dict(groups or {})
    return [
        Pause(group or None, why, from_micros(began[group]) if group in began else None)
        for group, why in reasons.items()
    ]


def resumed_at(since: str | None) -> datetime | None:
    """Returns when a queue was last resumed. None if never, or if paused. ``since``: the result of ``started``."""
    at = json.loads(since or "{}").get(_RESUMED)
    return None if at is None else from_micros(at)


def started(found: Sequence[Pause], before: Sequence[Pause], now: int, earlier: str | None = None) -> str | None:
    """Returns JSON with the start of each pause, and with the last resume, in microseconds. ``before`` are the
    pauses until now; a pause that is among them keeps its start. ``earlier`` is the JSON that the previous call
    returned.
    """
    known = {(pause.group, pause.reason): pause.since for pause in before}
    began = {pause.group or "": known.get((pause.group, pause.reason)) for pause in found}
    micros = {group: now if since is None else to_micros(since) for group, since in began.items()}
    was, is_paused = (any(pause.group is None for pause in each) for each in (before, found))
    resumed = None if is_paused else from_micros(now) if was else resumed_at(earlier)
    if resumed is not None:
        micros[_RESUMED] = to_micros(resumed)
    return json.dumps(micros) if micros else None
