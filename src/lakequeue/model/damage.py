"""Findings of a check, damage that receives met, and results of a repair."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from datetime import datetime

import attrs

from lakequeue.errors import DamagedTable
from lakequeue.model.clock import MICROS

MET_KEPT = 3600 * MICROS
"""Microseconds after which damage counts as repaired, unless a receive meets it again."""


@attrs.frozen
class Finding:
    """A problem that ``LakeQueue.check`` found (DUR-30).

    Attributes:
        queue: name of the queue. None for the root itself.
        region: region of the queue. None for the root itself.
        table: path of the table or directory.
        file: path of the file below ``table``. None for the table as a whole.
        problem: description of the problem.
        repair: effect of ``LakeQueue.repair``, or another remedy.
        damage: True if messages or answers are or will be wrong. False for a warning.
    """

    queue: str | None
    region: str | None
    table: str
    file: str | None
    problem: str
    repair: str
    damage: bool = True


class DamagedReads:
    """Damaged messages of a queue that receives of this process met within ``MET_KEPT``. Thread-safe.

    Attributes:
        error: the damage that was met last. None if no damage was met.
        first: when damage was first met, in microseconds.
        last: when damage was last met, in microseconds.
        listeners: functions that are called when a damaged file is met that was not known.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files = set[tuple[str, str | None]]()
        self.error: DamagedTable | None = None
        self.first = self.last = 0
        self.listeners: list[Callable[[], None]] = []

    def met(self, error: DamagedTable, now: int) -> bool:
        """Records damage that was met. Returns True if the file is not known as damaged yet."""
        with self._lock:
            if now - self.last > MET_KEPT:
                self.first, self._files = now, set()
            known, self.error, self.last = len(self._files), error, now
            self._files.add((error.table, error.file))
            new = len(self._files) > known
        for listener in self.listeners if new else ():
            listener()
        return new

    @property
    def files(self) -> Collection[tuple[str, str | None]]:
        """Tables and files of the damage."""
        with self._lock:
            return [*self._files]

    def forget(self, repaired: Collection[tuple[str, str | None]]) -> None:
        """Forgets files that are ``repaired``. Forgets the error, too, unless other files are left."""
        with self._lock:
            self._files -= {*repaired}
            if not self._files:
                self.error, self.first, self.last = None, 0, 0

    def last_met(self, now: int) -> int | None:
        """Returns ``last``, or None if no damage was met within ``MET_KEPT``."""
        return None if self.error is None or now - self.last > MET_KEPT else self.last


@attrs.frozen
class Repair:
    """A repair of a shard or of the catalog by ``LakeQueue.repair`` (DUR-31 to DUR-36).

    Attributes:
        queue: name of the queue. None for the catalog.
        region: region of the queue. None for the catalog.
        shard: number of the shard. None for the catalog. Also None for a queue that is listed again.
        steps: the steps in order, one sentence each.
        lost: stored messages that are gone, as inclusive ranges of offsets.
        lost_ids: the known message ids in ``lost``, by offset.
        lost_sent: earliest and latest possible send time for each range of ``lost``. None for an unknown time.
        again: received or deleted messages that may be received again, as inclusive ranges of offsets.
        again_ids: the known message ids in ``again``, by offset.
        unknown: reasons why lost or repeated messages are unknown. The repair then needs ``force``.
        notes: remarks, for example about damage that cannot be repaired.
        applied: True if the repair was done.
    """

    queue: str | None
    region: str | None
    shard: int | None
    steps: list[str]
    lost: list[tuple[int, int]] = attrs.field(factory=list)
    lost_ids: dict[int, str] = attrs.field(factory=dict)
    lost_sent: list[tuple[datetime | None, datetime | None]] = attrs.field(factory=list)
    again: list[tuple[int, int]] = attrs.field(factory=list)
    again_ids: dict[int, str] = attrs.field(factory=dict)
    unknown: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    applied: bool = False
