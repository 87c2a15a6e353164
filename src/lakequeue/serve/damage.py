"""Damage that calls of this server found, or that consumers reported. The console shows it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from lakequeue.errors import LakeQueueError
from lakequeue.model.damage import MET_KEPT
from lakequeue.serve.instrumentation import RequestRecord

KEPT = timedelta(microseconds=MET_KEPT)
"""Time for which damage is remembered."""
MOST = 1_000
"""Maximum number of calls that are remembered, each with the damage that it found."""
REST = timedelta(seconds=30)
"""Minimum time between two checks of a damaged queue."""
REST_FACTOR = 20
"""Factor. A check that took a time ``t`` is followed by a pause of at least ``t`` times this factor."""


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="lakequeue-check", daemon=True).start()


class MetDamage:
    """Remembers damaged queues, and which calls found them, for at most ``KEPT``. Forgets the damage if the
    console repeats the call with success, or if a check finds no damage. ``start`` runs a check in the background.
    """

    def __init__(self, start: Callable[[Callable[[], None]], None] = _in_thread) -> None:
        self._met: dict[tuple[str, str, str], tuple[str, datetime]] = {}
        self._start = start
        self._rests: dict[str, datetime] = {}
        self._sound: dict[str, datetime] = {}  # when the last check without a finding began

    def begun(self) -> None: ...

    def ended(self, record: RequestRecord) -> None:
        call = record.call
        if call is None or (call.damaged is None and not self._met):
            return
        key = call.action, call.queue, record.path
        if call.damaged is not None:
            self._met.pop(key, None)
            self._met[key] = call.damaged, record.at
            if len(self._met) > MOST:
                del self._met[next(iter(self._met))]
        elif call.code == "OK" and call.by_console:  # an empty receive proves nothing
            self._met.pop(key, None)

    def reported(self, key: str, consumer: str, at: datetime) -> None:
        """Records damaged messages of a queue that a consumer met, unless a later check found no damage."""
        if key not in self._sound or at > self._sound[key]:
            self._met["consume", key, consumer] = f"/{key}/0/messages", at

    def queues(self, now: datetime) -> set[str]:
        """Returns the keys of the queues in which calls found damage within ``KEPT``."""
        return {_key_of(table) for table, at in list(self._met.values()) if now - at <= KEPT}

    def look_again(self, key: str, now: Callable[[], datetime], is_damaged: Callable[[], bool]) -> None:
        """Checks a damaged queue again, in the background. Runs one check at a time, and pauses between checks.

        Forgets the damage if ``is_damaged``, which reads every file of the queue, returns False.
        """
        begun = now()
        if begun < self._rests.get(key, begun):
            return
        self._rests[key] = begun + KEPT  # while it runs

        def check() -> None:
            try:
                if not is_damaged():
                    self._sound[key] = begun
                    for call, (table, at) in list(self._met.items()):
                        if _key_of(table) == key and at <= begun:
                            self._met.pop(call, None)
            except LakeQueueError:  # such as a queue that was deleted meanwhile
                pass
            finally:
                ended = now()
                self._rests[key] = ended + max(REST, REST_FACTOR * (ended - begun))

        self._start(check)


def _key_of(table: str) -> str:
    parts = table.rsplit("/", 3)
    return parts[1] if len(parts) == 4 else ""
