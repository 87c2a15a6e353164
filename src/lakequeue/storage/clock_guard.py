"""Doubts about a clock: a year ahead it would let all messages expire, and time in a shard never runs back.

Far behind it would send messages as of the last commit, or as of its own time, when they may have expired already.
"""

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
from lakequeue.storage.engines.interface import is_storage_failure
from lakequeue.storage.folder import Folder
from lakequeue.storage.layout import queues_path
from lakequeue.storage.roots import local_path
from lakequeue.storage.stores import Store

AHEAD = "LAKEQUEUE_CLOCK_AHEAD"
"""Variable of the environment: seconds that a commit may be ahead of the last one before the clock is doubted."""
DAY = 24 * 3600.0
TOLERANCE = 900.0
"""Seconds that a clock may differ from that of the storage. S3 refuses requests of clocks that differ more."""
SECOND_LOOK = 2.0
"""Seconds until the clock of a machine is read again, which may be set some time after a start."""
_SLACK = 10 * MICROS
_STAMP = "_clock"
"""File of a table whose age is that of the last look at the storage's clock."""
_STAMP_SECONDS = 60.0
"""Seconds for which such a look is good."""
_stamps: dict[str, tuple[float, float]] = {}
"""The time that the last look found, and by the monotonic clock when it was, by object store."""

Doubt: TypeAlias = Callable[[int, int, str, Callable[[], bool]], None]
"""``ClockGuard.check_expiry``."""

_log = logging.getLogger("lakequeue")


class ClockGuard:
    """Doubts the clock of this process when a commit would be far ahead of the last one (DUR-82). Thread-safe.

    Args:
        store: the root's, which has a clock of its own.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._believed: float | None = None  # that clock minus the monotonic one, in seconds
        self._incomparable: float | None = None  # the same, when a read could not compare it with the storage's
        self.now: Callable[[], int] | None = None
        """The process's clock; None: one that is set by hand, as in tests, which is never doubted."""
        self.ahead = _ahead()
        """Microseconds that a commit may be ahead of the last one in any case."""

    def was_set_back(self, instant: int) -> bool:
        """Whether an instant that the clock has shown lies ahead of it."""
        return self.now is not None and instant > self.now() + _SLACK

    def is_behind(self, instant: int, last: int) -> bool:
        """Whether an instant that the clock has shown lies too far before that of the last commit."""
        return self.now is not None and last - instant > TOLERANCE * MICROS

    def check(self, instant: int, last: int, where: str, *, create: bool = True) -> None:
        """Checks that a commit may be made at an instant, the last one having been at ``last``.

        On object stores the store's clock decides. On a disk, whose clock is the machine's, it is read again after
        ``SECOND_LOOK``. What was believed once is believed until the clock is set.

        Args:
            instant, last: in microseconds.
            where: the table.
            create: whether a local root may get the file whose time is compared; else it must be there.

        Raises:
            QueueClientError: the clock is not believed; nothing was changed.
        """
        if self.now is None or (before := self._doubted(self.now)) is None:
            return
        pause, says = timedelta(microseconds=abs(instant - last)), from_micros(instant)
        when = f"{pause} {'after' if instant > last else 'before'} the last commit"
        doubt = f"{where}: the clock says {says:%Y-%m-%d %H:%M}, {when}"
        _log.warning("%s; it is compared with that of the storage", doubt)
        if local_path(self._store.root) is not None and instant > last:
            time.sleep(SECOND_LOOK)
        difference = self._difference(self.now, create)
        if abs(self._offset(self.now) - before) > TOLERANCE or abs(difference) > TOLERANCE:
            raise QueueClientError(
                f"{doubt}, and is {_told(difference)} the storage's, or was just set. "
                f"Nothing was changed: set it right, or {AHEAD} to more seconds"
            )
        self._believed = before

    def check_expiry(
        self, instant: int, last: int, where: str, expired: Callable[[], bool] = lambda: True
    ) -> None:
        """Checks the clock by which messages expire that a read leaves out, as ``check`` does.

        The clock of a process that may not write cannot be compared, and is believed. It costs nothing once the
        clock is believed, or within ``ahead`` of the last commit: then ``expired`` is not called.

        Raises:
            QueueClientError: ``expired`` returns True, and the clock is not believed.
        """
        if instant - last <= self.ahead or not self.is_doubted() or not expired():
            return
        assert self.now is not None
        before = self._offset(self.now)
        try:
            self.check(instant, last, where, create=False)  # a read makes no file (DUR-74)
        except Exception as error:
            if isinstance(error, QueueClientError) or not is_storage_failure(error):
                raise
            self._incomparable = before

    def is_doubted(self) -> bool:
        """True if a read may compare the clock with the storage's: it did not do so since the clock was set."""
        if self.now is None or self._doubted(self.now) is None:
            return False
        return self._incomparable is None or abs(self._offset(self.now) - self._incomparable) >= TOLERANCE

    def check_now(self, what: str) -> None:
        """Checks the clock by which a queue begins or ends; no commit before tells that it is wrong (DUR-82).

        Raises:
            QueueClientError: it differs from the storage's by more than ``TOLERANCE``; nothing was changed.
        """
        if self.now is None or (before := self._doubted(self.now)) is None:
            return
        difference = self._difference(self.now)
        if abs(difference) > TOLERANCE:
            raise QueueClientError(
                f"{what}: the clock says {from_micros(self.now()):%Y-%m-%d %H:%M}, and is {_told(difference)} "
                "the storage's. Nothing was changed: set it right"
            )
        if local_path(self._store.root) is None:  # else both may be wrong: a commit far ahead is looked at twice
            self._believed = before

    def _difference(self, now: Callable[[], int], create: bool = True) -> float:
        """Seconds by which the clock is ahead of the storage's, however long that takes to answer."""
        before, stamp = now() / MICROS, _stamped(self._store.folder(queues_path(self._store.root)), create)
        return before - stamp if before > stamp else min(0.0, now() / MICROS - stamp)

    def _doubted(self, now: Callable[[], int]) -> float | None:
        """The offset of a clock that is not the one believed; None for that one."""
        offset = self._offset(now)
        return offset if self._believed is None or abs(offset - self._believed) >= TOLERANCE else None

    @staticmethod
    def _offset(now: Callable[[], int]) -> float:
        return now() / MICROS - time.monotonic()


def _ahead() -> int:
    given = os.environ.get(AHEAD) or str(DAY)
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidParameterValue(f"{AHEAD} must be a number of seconds, not {given}")
    return round(seconds * MICROS)


def storage_now(table: Folder) -> float:
    """The time by the clock that stamps the files of a table, in seconds: ages of files count from there (DUR-84).

    Raises:
        QueueClientError: this machine's clock differs from it by more than ``TOLERANCE``, so one of them is wrong.
    """
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
            f"this machine's clock is {_told(ahead)} that of the storage of {table.uri}; "
            "nothing was removed: set it right"
        )
    return now


def _told(ahead: float) -> str:
    """A difference of clocks, in seconds, before the name of the other one."""
    return f"{timedelta(seconds=round(abs(ahead)))} {'ahead of' if ahead > 0 else 'behind'}"


def _stamped(table: Folder, create: bool = True) -> float:
    """When a file was written that is written now; without ``create`` a local file must be there."""
    if table.local is not None:
        return no_links.stamp(table.path(_STAMP), create=create)
    table.write(_STAMP, b"")
    return table.entry(_STAMP).modified + 1.0  # they tell whole seconds
