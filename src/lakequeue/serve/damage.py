"""Damage found by calls of this server, for the console's page of problems."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from lakequeue.serve.instrumentation import RequestRecord

KEPT = timedelta(hours=1)
"""Damage is remembered for this time."""
MOST = 1_000
"""Maximum number of remembered calls."""


class MetDamage:
    """Remembers which call found which damaged table, for ``KEPT`` or until the call succeeds in the console."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, str, str], tuple[str, datetime]] = {}

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

    def tables(self, now: datetime) -> Iterator[str]:
        """Yields the paths of damaged tables that calls found within ``KEPT``."""
        for table, at in list(self._met.values()):
            if now - at <= KEPT:
                yield table
