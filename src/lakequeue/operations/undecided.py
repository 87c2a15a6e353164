"""Undecided deliveries, and how the delivery table decides them (TAB-26)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from lakequeue.errors import (
    MissingPackage,
    QueueClientError,
    TableUnavailable,
    UnsupportedOperation,
    counted,
)
from lakequeue.model.clock import MICROS
from lakequeue.model.deliveries import Mark, Undecided, application_id, is_catalog_name
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.runtime.root import Root
from lakequeue.shard.commands import Decide, LeaseCounts, RecordTable
from lakequeue.storage.delivery.identity import DeliveryIdentity
from lakequeue.storage.providers import scheme_of
from lakequeue.storage.roots import local_path

if TYPE_CHECKING:
    from lakequeue.storage.delivery.table import DeltaDeliveryTable

DECIDE_EVERY = 30 * MICROS
"""After a failed decision, minimum microseconds until the next attempt to decide a delivery of the same slot."""
_log = logging.getLogger("lakequeue")


@attrs.frozen
class LedgerMarks:
    """The messages of a shard that the ledger has marked for one delivery."""

    queue: OpenQueue
    shard: OpenShard
    mark: Mark
    table: str | None
    """Path, URI or name of the delivery table, according to the ledger."""
    delivery: DeliveryIdentity
    delete: Callable[[], LeaseCounts]
    """Deletes the messages under the lease of the delivery."""
    was_recorded: bool = False

    @classmethod
    def of(
        cls,
        queue: OpenQueue,
        shard: OpenShard,
        mark: Mark,
        lease_id: str,
        delete: Callable[[], LeaseCounts] = lambda: LeaseCounts(0, 0),
        was_recorded: bool = False,
    ) -> LedgerMarks:
        target = shard.ledger.query(lambda machine: machine.target)
        app_id = application_id(target.delivery_id or "", shard.number, mark.slot)
        delivery = DeliveryIdentity(app_id, mark.number, lease_id, queue.now())
        return cls(queue, shard, mark, target.table, delivery, delete, was_recorded)

    @property
    def queue_name(self) -> str:
        return self.queue.name

    def table_id(self) -> str | None:
        target = self.shard.ledger.query(lambda machine: machine.target)
        return "" if target.changed else target.table_id

    def record(self, table_id: str) -> str | None:
        found: str | None = self.queue.command(self.shard, RecordTable(*self.mark, table_id))
        return found

    def is_there(self) -> bool:
        return self.shard.ledger.query(lambda machine: any(run.mark == self.mark for run in machine.runs))

    def decide(self, delivered: bool, unrecorded: bool = False) -> int:
        return int(self.queue.command(self.shard, Decide(*self.mark, delivered, unrecorded=unrecorded)))


def target_of(queue: OpenQueue, table: str | None) -> DeltaDeliveryTable:
    """Returns the delivery table of a queue. Raises UnsupportedOperation, TableUnavailable or MissingPackage."""
    if table is None:
        raise UnsupportedOperation("The queue has no delivery table; set its attribute table.")
    if is_catalog_name(table):
        table = _in_catalog(queue.root, table)
    if table not in queue.delivery.tables:
        queue.delivery.tables.setdefault(table, _opened(queue.root, table, queue.delivery.options))
    found: DeltaDeliveryTable = queue.delivery.tables[table]
    return found


def table_of(root: Root, table: str) -> DeltaDeliveryTable:
    """Returns a delivery table, opened with the root's storage options. Raises as ``target_of`` does."""
    return _opened(root, _in_catalog(root, table) if is_catalog_name(table) else table, None)


def _opened(root: Root, table: str, options: Mapping[str, str] | None) -> DeltaDeliveryTable:
    from lakequeue.storage.delivery.table import DeltaDeliveryTable

    store = root.engine.store
    if options is None:
        alike = local_path(table) is None and scheme_of(table) == scheme_of(store.root)
        options = store.options if alike else {}
    return DeltaDeliveryTable(table, options, store.root, store.syncs)


def _in_catalog(root: Root, name: str) -> str:
    spark = root.spark
    if spark is None:
        raise UnsupportedOperation(f"{name} is a name in a catalog, which only Spark can deliver into.")
    from lakequeue.storage.delivery.spark_catalog import location

    found = location(spark, name)
    if found is None:
        raise TableUnavailable(name, "does not exist")
    return found


def unable_to_decide(queue: OpenQueue) -> str | None:
    """Returns why the table of undecided deliveries cannot decide, such as "does not exist". None if the table can
    decide, or if this process cannot read the table.
    """
    now = queue.now()
    for shard in queue.shards:
        found, target = shard.ledger.query(lambda machine: (machine.undecided(now), machine.target))
        if not found or target.changed or not target.table_id:  # without a recorded id, no rows can have arrived
            continue
        try:
            snapshot = target_of(queue, target.table).read()
        except (QueueClientError, UnsupportedOperation, MissingPackage):
            return None
        if snapshot is None:
            return "does not exist"
        if snapshot.table_id != target.table_id:
            return f"is another table than before: its id is {snapshot.table_id}, not {target.table_id}"
    return None


def decide_in_catalog(queue: OpenQueue) -> None:
    """Decides undecided deliveries to a catalog's table. A stream's readers cannot, without a Spark session."""
    if is_catalog_name(queue.attributes.table or ""):
        decide_all(queue)


def decide_all(queue: OpenQueue) -> None:
    with queue.service("decide"):
        for shard in queue.shards:
            now = queue.now()
            decide_found(queue, shard, shard.ledger.query(lambda machine: machine.undecided(now)))  # noqa: B023


def decide_found(queue: OpenQueue, shard: OpenShard, found: Iterable[Undecided]) -> int:
    """Decides deliveries whose receipts have ended (TAB-26). Returns the number of decided deliveries. If a
    decision fails, skips its slot for the next 30 seconds.
    """
    done = 0
    for each in found:
        place, now = (shard.number, each.mark.slot), queue.now()
        if 0 <= now - queue.delivery.failed.get(place, now - DECIDE_EVERY) < DECIDE_EVERY:
            continue
        queue.delivery.failed[place] = now
        try:
            marked = LedgerMarks.of(queue, shard, each.mark, each.lease_id)
            decided = protocol.decide(target_of(queue, marked.table), marked)
        except MissingPackage:
            return done
        except (QueueClientError, UnsupportedOperation) as error:
            what = counted(each.messages, "message")
            _log.warning("a delivery of %s is undecided, with %s: %s", queue.name, what, error)
            continue
        if not decided:
            _log.warning(
                "a delivery of %s is undecided, with %s, and the table cannot say if their rows arrived; "
                "look, then run `lakequeue decide %s`",
                *(queue.name, counted(each.messages, "message"), queue.name),
            )
            continue
        queue.delivery.failed.pop(place)
        done += 1
    return done
