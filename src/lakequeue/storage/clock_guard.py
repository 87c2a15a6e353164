"""Detects a wrong clock before a commit. A clock that is ahead would expire messages for good."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.model.clock import MICROS, from_micros
from lakequeue.storage import no_links
from lakequeue.storage.engines.commit_failures import is_storage_failure
from lakequeue.storage.folder import Folder
from lakequeue.storage.layout import queues_path
from lakequeue.storage.roots import local_path
from lakequeue.storage.stores import Store

AHEAD = "LAKEQUEUE_CLOCK_AHEAD"
"""Environment variable: seconds without a commit after which a commit checks the clock. Default: a day."""
DAY = 24 * 3600.0
TOLERANCE = 900.0
"""Seconds by which a clock may differ from the storage's clock. S3 refuses requests beyond this difference."""
SECOND_LOOK = 2.0
"""Seconds before a clock that looks wrong is compared with the storage's: a starting machine may still set it."""
_SLACK = 10 * MICROS
_STAMP = "_clock"
"""Name of a file that is written into a table's directory, because the file's time shows the storage's clock."""
_STAMP_SECONDS = 60.0
"""Seconds for which a reading of the storage's clock is used."""
_stamps: dict[str, tuple[float, float]] = {}
"""The last reading of each object store's clock: the reported time and the monotonic time then, in seconds."""

Doubt: TypeAlias = Callable[[int, int, str, Callable[[], bool]], None]
"""Type of a function with the signature of ``ClockGuard.check_expiry``."""

_log = logging.getLogger("lakequeue")


class ClockGuard:
    """Compares the process's clock with the storage's clock after long pauses (DUR-82). Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._believed: float | None = None  # Offset of the trusted clock from the monotonic one, in seconds.
        # Offset at which a read could not compare the clock with the storage's.
        self._incomparable: float | None = None
        self.now: Callable[[], int] | None = None
        """Function that reads the process's clock. None for a manual clock, which is never checked."""
        self.ahead = _ahead()
        """Longest pause between two commits, in microseconds, that needs no clock check."""

    def was_set_back(self, instant: int) -> bool:
        """True if the clock was set back: it has shown ``instant`` already, and now shows an earlier time."""
        return self.now is not None and instant > self.now() + _SLACK

    def is_behind(self, instant: int, last: int) -> bool:
        """True if a commit at ``instant`` would be over ``TOLERANCE`` seconds before the last commit."""
        return self.now is not None and last - instant > TOLERANCE * MICROS

    def check(self, instant: int, last: int, where: str, *, create: bool = True) -> None:
        """Compares the clock with the storage's clock before a commit. Raises QueueClientError if it is wrong.

        Args:
            instant, last: instants of this commit and of the last commit, in microseconds.
            where: path of the table, for the error.
            create: True to create the local file whose time is compared.
        """
        if self.now is None or (before := self._doubted(self.now)) is None:
            return
        pause, says = timedelta(microseconds=abs(instant - last)), from_micros(instant)
        when = f"{pause} {'after' if instant > last else 'before'} the last commit"
        doubt = f"{where}: the clock says {says:%Y-%m-%d %H:%M}, {when}"
        _log.info("%s; comparing it with the storage's clock", doubt)
        if local_path(self._store.root) is not None and instant > last:
            time.sleep(SECOND_LOOK)
        difference = self._difference(self.now, create)
        if abs(self._offset(self.now) - before) > TOLERANCE or abs(difference) > TOLERANCE:
            raise QueueClientError(
                f"{doubt}, and is {_offset_text(difference)} the storage's, or was just set. "
                f"Nothing was changed: set it right, or {AHEAD} to more seconds"
            )
        self._believed = before

    def check_expiry(
        self, instant: int, last: int, where: str, expired: Callable[[], bool] = lambda: True
    ) -> None:
        """Compares the clock with the storage's clock before a read omits messages as expired.

        Does nothing if the last commit is recent, or ``expired`` returns False. Raises QueueClientError if the
        clock is wrong.
        """
        if instant - last <= self.ahead or not self.is_doubted() or not expired():
            return
        assert self.now is not None
        before = self._offset(self.now)
        try:
            self.check(instant, last, where, create=False)  # A read creates no file (DUR-74).
        except Exception as error:
            if isinstance(error, QueueClientError) or not is_storage_failure(error):
                raise
            self._incomparable = before

    def is_doubted(self) -> bool:
        """True if a read should check the clock, because it was never checked or was set since the last check."""
        if self.now is None or self._doubted(self.now) is None:
            return False
        return self._incomparable is None or abs(self._offset(self.now) - self._incomparable) >= TOLERANCE

    def check_now(self, what: str) -> None:
        """Raises QueueClientError if the clock is over ``TOLERANCE`` seconds from the storage's clock (DUR-82)."""
        if self.now is None or (before := self._doubted(self.now)) is None:
            return
        difference = self._difference(self.now)
        if abs(difference) > TOLERANCE:
            raise QueueClientError(
                f"{what}: the clock says {from_micros(self.now()):%Y-%m-%d %H:%M}, and is "
                f"{_offset_text(difference)} the storage's. Nothing was changed: set it right"
            )
        # On a disk both may be wrong, so the first commit far ahead is still checked.
        if local_path(self._store.root) is None:
            self._believed = before

    def _difference(self, now: Callable[[], int], create: bool = True) -> float:
        """Returns the seconds by which the clock is ahead of the storage's clock. Negative if it is behind."""
        before, stamp = now() / MICROS, _stamped(self._store.folder(queues_path(self._store.root)), create)
        return before - stamp if before > stamp else min(0.0, now() / MICROS - stamp)

    def _doubted(self, now: Callable[[], int]) -> float | None:
        """Returns None if nobody has set the clock since its check. Otherwise returns ``_offset``, in seconds."""
        offset = self._offset(now)
        return offset if self._believed is None or abs(offset - self._believed) >= TOLERANCE else None

    @staticmethod
    def _offset(now: Callable[[], int]) -> float:
        return now() / MICROS - time.monotonic()


def _ahead() -> int:
    text = os.environ.get(AHEAD) or str(DAY)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidParameterValue(f"{AHEAD} must be a number of seconds, not {text}")
    return round(seconds * MICROS)


def storage_now(table: Folder) -> float:
    """Returns the storage's time in seconds (DUR-84). Raises QueueClientError if this machine's clock is wrong."""
    place = "/".join(table.uri.split("/")[:3])
    stamp, at = _stamps.get(place, (0.0, -_STAMP_SECONDS))
    now = stamp + time.monotonic() - at
    if (
        table.local is not None
        or not 0 <= time.monotonic() - at < _STAMP_SECONDS
        or abs(time.time() - now) > TOLERANCE
    ):
        now = _stamped(table)
        _stamps[place] = now, time.monotonic()
    ahead = time.time() - now
    if abs(ahead) > TOLERANCE:
        raise QueueClientError(
            f"this machine's clock is {_offset_text(ahead)} the clock of the storage of {table.uri}; "
            "nothing was removed: set it right"
        )
    return now


def _offset_text(ahead: float) -> str:
    return f"{timedelta(seconds=round(abs(ahead)))} {'ahead of' if ahead > 0 else 'behind'}"


def _stamped(table: Folder, create: bool = True) -> float:
    """Writes a file, and returns its time in seconds. A local file must exist, unless ``create`` is True."""
    if table.local is not None:
        return no_links.stamp(table.path(_STAMP), create=create)
    table.write(_STAMP, b"")
    return table.entry(_STAMP).modified + 1.0  # Stores report whole seconds.
