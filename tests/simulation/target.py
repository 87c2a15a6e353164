"""A delivery table of the world: its log in memory, and a commit in the two steps that `deltalake` takes.

The code under test decides by it as by a Delta table (`operations.delivery_protocol`). The rules of commits are
those of `storage.delivery.table`, which `tests/conformance/test_delivery_table.py` shows on real tables.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

import attrs
import pyarrow as pa

from lakequeue.errors import RowsRefused, TableUnavailable
from lakequeue.storage.delivery.identity import CommitRefused, DeliveryIdentity
from simulation.object_store import LANDS, PATIENCE
from simulation.scheduler import World

SCHEMA = pa.schema([("body", pa.string()), ("alone", pa.bool_())])


class Entry(NamedTuple):
    """An entry of the log; ``app_id`` is empty for those of other programs."""

    app_id: str = ""
    version: int = -1
    rows: tuple[str, ...] = ()
    lease_id: str | None = None


class TableLog:
    """The log that all processes share.

    Attributes:
        entries: all that were ever committed and seen; those below ``start`` are cleaned up.
        durable: number of entries that a power cut keeps.
    """

    def __init__(self, world: World, on_disk: bool) -> None:
        self.world, self.on_disk = world, on_disk
        self.exists = False
        self.entries: list[Entry] = []
        self.start = self.durable = 0

    def rows(self) -> Counter[str]:
        return Counter(body for entry in self.entries for body in entry.rows)

    def cut(self, seed: int) -> None:
        """Keeps what was synced, and any number of the entries after that."""
        del self.entries[random.Random(seed).randint(self.durable, len(self.entries)) :]

    def clean(self) -> None:
        """Leaves only the checkpoint, as the cleanup of another program does; it syncs nothing that is needed."""
        if self.on_disk:
            self.durable = len(self.entries)
        self.start = len(self.entries)

    def request(self, commits: bool = False) -> str | None:
        """Takes a step; returns ``lose`` or ``late`` for a commit whose answer does not come.

        Raises:
            TableUnavailable, CommitRefused: the store refuses the request.
        """
        steps = ("open", "link") if self.on_disk else ("request", "commit")
        action = self.world.step(steps[commits])
        if action is None or self.on_disk:
            return None
        kind, seconds = action
        if kind == "slow":
            self.world.sleep(seconds)
        elif commits and kind != "refuse":
            return str(kind)
        elif kind != "lose":
            raise CommitRefused("busy") if commits else TableUnavailable("the table", "is busy")
        return None

    def add(self, entry: Entry, place: int) -> bool:
        """Creates the entry of a version; False if that exists."""
        if place == len(self.entries):
            self.entries.append(entry)
        # an entry below those that were cleaned up is created, and nobody ever sees it
        return place == len(self.entries) - 1 and self.entries[place] is entry or place < self.start


@attrs.define
class SimulatedTable:
    """The table in a process, as `storage.delivery.table.DeltaDeliveryTable`."""

    log: TableLog
    uri: str = "the table"
    _kept: list[SimulatedSnapshot] = attrs.field(factory=list)

    def read(self) -> SimulatedSnapshot | None:
        self.log.request()
        return SimulatedSnapshot(self.log, tuple(self.log.entries)) if self.log.exists else None

    def latest(self) -> SimulatedSnapshot | None:
        known = self._kept.pop() if self._kept else None
        if known is not None:
            self.log.request()
            at = len(known.entries)
            if self.log.start < at and tuple(self.log.entries[:at]) == known.entries:
                return known
        return self.read()

    def keep(self, snapshot: SimulatedSnapshot) -> None:
        self._kept.append(snapshot)

    def create(self, schema: pa.Schema) -> None:
        self.log.request()
        self.log.exists = True

    def sync(self, version: int) -> None:
        if self.log.on_disk:
            self.log.world.step("open")
            self.log.durable = max(self.log.durable, version)


@attrs.define
class SimulatedSnapshot:
    """One version of the table. A commit moves it forward, as `deltalake` does."""

    log: TableLog
    entries: tuple[Entry, ...]
    table_id: str = "id"
    schema: pa.Schema = SCHEMA

    @property
    def version(self) -> int:
        return len(self.entries)

    @property
    def handle(self) -> SimulatedSnapshot:
        return self

    def check(self) -> None:
        pass

    def delivered(self, app_id: str) -> int:
        return next((entry.version for entry in reversed(self.entries) if entry.app_id == app_id), -1)

    def search(self, delivery: DeliveryIdentity) -> tuple[int, str | None] | None:
        for entry in self.entries[self.log.start :]:
            if entry.app_id == delivery.app_id and entry.version in (delivery.version, delivery.block):
                return entry.version, entry.lease_id
        return None if self.log.start else (-1, None)

    def append(self, delivery: DeliveryIdentity, rows: pa.Table, merge_schema: bool = False) -> None:
        if rows.num_rows > 1 and any(rows["alone"].to_pylist()):
            raise RowsRefused("rows that must be alone are not")
        bodies = tuple(rows["body"].to_pylist())
        self._commit(Entry(delivery.app_id, delivery.version, bodies, delivery.lease_id))

    def block(self, *deliveries: DeliveryIdentity) -> None:
        [delivery] = deliveries  # only a repair blocks several
        self._commit(Entry(delivery.app_id, delivery.block, (), delivery.lease_id))

    def _commit(self, entry: Entry) -> None:
        log, base = self.log, len(self.entries)
        while True:
            try:
                log.request()
            except TableUnavailable as error:
                raise CommitRefused("busy") from error
            if base < log.start and base < len(log.entries):
                raise CommitRefused("entries to compare with are cleaned up")
            if any(each.app_id == entry.app_id for each in log.entries[base:]):
                raise CommitRefused("Concurrent transaction failed")
            base = len(log.entries)
            fault = log.request(commits=True)
            if fault == "late":
                log.world.at(log.world.chance.choice(LANDS), lambda at=base: log.add(entry, at))  # type: ignore[misc]
                log.world.sleep(PATIENCE)
                raise CommitRefused("operation timed out")
            landed = log.add(entry, base)
            if fault == "lose":
                raise CommitRefused("the answer is lost")
            log.world.step("linked" if log.on_disk else "answer")
            if landed:
                self.entries = tuple(log.entries[: base + 1])
                return


def target_of(log: TableLog, queue: Any, table: str | None) -> SimulatedTable:
    """As `operations.undecided.target_of`: one object for each process."""
    tables: dict[Any, Any] = queue.delivery.tables
    found: SimulatedTable = tables.setdefault(table, SimulatedTable(log))
    return found
