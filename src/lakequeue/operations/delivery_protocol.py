"""The protocol of deliveries into a table (TAB-25); see ``docs/guides/tables.md``.

The table's log accepts either the rows of a delivery, or an entry that blocks the delivery, and never both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import attrs
import pyarrow as pa

from lakequeue.errors import LeaseLost, TableUnavailable
from lakequeue.shard.commands import LeaseCounts
from lakequeue.storage.delivery.identity import CommitRefused, DeliveryIdentity

_TRIES = 8
"""Maximum number of attempts at a commit. Each attempt opens the table again."""
_CONFLICT = (
    "has a newer delivery than the ledger of this queue knows: another root delivers under the same id, or the "
    "ledger was put back; `lakequeue repair {queue} --new-delivery-id` gives this queue an id of its own"
)
_ANOTHER = (
    "is another table (id {}) than before (id {}): put the earlier table back; if that is impossible, decide with "
    "`lakequeue decide {queue}`, then run `lakequeue repair {queue} --new-delivery-id`"
)
_GONE = (
    "is not there: put it back; if it is gone for good, run `lakequeue decide {queue} --again`, "
    "then `lakequeue repair {queue} --new-delivery-id`"
)


class DeliverySnapshot(Protocol):
    """One version of a delivery table."""

    @property
    def table_id(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def handle(self) -> Any:
        """The table as a ``deltalake`` object, to which the user can write."""
        ...

    def check(self) -> None: ...
    def delivered(self, app_id: str) -> int: ...
    def search(self, delivery: DeliveryIdentity) -> tuple[int, str | None] | None: ...
    def append(self, delivery: DeliveryIdentity, rows: Any, merge_schema: bool) -> None: ...
    def block(self, *deliveries: DeliveryIdentity) -> None:
        """Makes one commit, after which appends of these deliveries fail. Their application ids must differ."""
        ...


class DeliveryTable(Protocol):
    """A delivery table, which may not exist yet."""

    @property
    def uri(self) -> str: ...
    def latest(self) -> DeliverySnapshot | None:
        """Returns the snapshot from ``keep``, or else the newest. Returns None if the table is missing."""
        ...

    def keep(self, snapshot: Any) -> None:
        """Keeps a snapshot for a later call of ``latest``. The snapshot must not have been used for a commit."""
        ...

    def read(self) -> DeliverySnapshot | None:
        """Returns a snapshot of the newest version. Returns None if the table is missing."""
        ...

    def create(self, schema: pa.Schema) -> None: ...
    def sync(self, version: int) -> None: ...


class DeliveryMarks(Protocol):
    """The messages that the ledger of a shard has marked for one delivery. The mark is a slot and a number."""

    @property
    def queue_name(self) -> str: ...
    @property
    def delivery(self) -> DeliveryIdentity: ...
    @property
    def was_recorded(self) -> bool:
        """True if the ledger already had the table's id when the messages were marked."""
        ...

    def table_id(self) -> str | None:
        """Returns the id of the table in the ledger: None if missing, "" if the marks are for an earlier table."""
        ...

    def record(self, table_id: str) -> str | None:
        """Records the table's id if the ledger has no id. Returns the ledger's id, or None if the mark is gone."""
        ...

    def delete(self) -> LeaseCounts: ...

    def is_there(self) -> bool:
        """True if messages in the newest ledger still have the delivery's mark."""
        ...

    def decide(self, delivered: bool, unrecorded: bool = False) -> int:
        """Deletes the marked messages if they were ``delivered``, and otherwise releases them. With
        ``unrecorded``, does so only if the ledger has no table id. Returns the number of messages.
        """
        ...


class DeliveryStatus(Enum):
    """State of a delivery, according to the log of its table."""

    OPEN = "open"
    """The log has neither the rows of the delivery, nor an entry that blocks them. The rows may still arrive."""
    ARRIVED = "arrived"
    BLOCKED = "blocked"
    """The table will never get the rows, because the delivery was blocked."""
    TAKEN = "taken"
    """The table will never get the rows, because another copy of the root has used the delivery's number."""
    UNKNOWN = "unknown"
    """The log no longer shows if the rows arrived, because a newer delivery has used the same application id."""


def state_of(snapshot: DeliverySnapshot, delivery: DeliveryIdentity) -> DeliveryStatus:
    """Returns the state of a delivery (TAB-25). The snapshot must come from a newly opened table."""
    version = snapshot.delivered(delivery.app_id)
    if version < delivery.version:
        return DeliveryStatus.OPEN
    if version == delivery.block:
        return DeliveryStatus.BLOCKED
    found = snapshot.search(delivery)
    if found is None and version > delivery.block:
        return DeliveryStatus.UNKNOWN
    landed, lease_id = found or (version, None)
    if landed != delivery.version:
        return DeliveryStatus.BLOCKED
    return DeliveryStatus.ARRIVED if lease_id in (None, delivery.lease_id) else DeliveryStatus.TAKEN


@attrs.frozen
class OpenedDeliveryTable:
    """A delivery table whose id is recorded in the ledger."""

    table: DeliveryTable
    table_id: str
    queue_name: str
    """Name of the queue that delivers, for commands in errors."""

    @classmethod
    def of(
        cls, table: DeliveryTable, marked: DeliveryMarks, schema: Callable[[], pa.Schema] | None
    ) -> tuple[OpenedDeliveryTable, DeliverySnapshot]:
        """Opens the delivery table, and records its id in the ledger (TAB-22). Creates a missing table with the
        schema that the function ``schema`` returns. If ``schema`` is None, a missing table is an error.

        Raises:
            TableUnavailable: the table is missing, or has another id.
            LeaseLost: no message has the delivery's mark any more.
        """
        known, snapshot = marked.table_id(), table.latest()
        if snapshot is None and known is None and schema is not None:
            table.create(schema())
            snapshot = table.read()
        if snapshot is None:
            raise TableUnavailable(table.uri, _GONE.format(queue=marked.queue_name) if known else "does not exist")
        snapshot.check()
        if known is None or not marked.was_recorded:  # else the mark may be gone without a block
            known = marked.record(snapshot.table_id)
            if known is None:
                raise LeaseLost()
        opened = cls(table, known, marked.queue_name)
        opened._compare(snapshot)
        return opened, snapshot

    def read(self) -> DeliverySnapshot:
        """Opens the table again. Raises TableUnavailable if the table is missing, or has another id."""
        snapshot = self.table.read()
        if snapshot is None:
            raise TableUnavailable(self.table.uri, _GONE.format(queue=self.queue_name))
        self._compare(snapshot)
        snapshot.check()
        return snapshot

    def _compare(self, snapshot: DeliverySnapshot) -> None:
        if snapshot.table_id != self.table_id:
            ids = snapshot.table_id, self.table_id
            raise TableUnavailable(self.table.uri, _ANOTHER.format(*ids, queue=self.queue_name))


def append(
    opened: OpenedDeliveryTable,
    snapshot: DeliverySnapshot,
    marked: DeliveryMarks,
    rows: Any,
    *,
    merge_schema: bool = False,
    tried: bool = False,
) -> None:
    """Appends the rows of a delivery (TAB-25). On return, the rows are on disk, and the messages can be deleted.
    ``tried`` is True if rows may have been appended before, under the same lease.

    Raises:
        RowsRefused: the table does not accept these rows. Block the delivery before another attempt.
        LeaseLost: another process has blocked the delivery.
        TableUnavailable: ``outcome_unknown`` is set if rows may be in the table.
    """
    delivery, reason = marked.delivery, ""
    for _ in range(_TRIES):
        state = state_of(snapshot, delivery)
        if state is DeliveryStatus.ARRIVED and tried:
            opened.table.sync(snapshot.version)
            opened.table.keep(snapshot)
            return
        if snapshot.delivered(delivery.app_id) == delivery.block:
            raise LeaseLost()
        if state is not DeliveryStatus.OPEN:
            if not marked.is_there():
                raise LeaseLost()
            raise TableUnavailable(opened.table.uri, _CONFLICT.format(queue=opened.queue_name))
        tried = True
        try:
            snapshot.append(delivery, rows, merge_schema)
        except CommitRefused as refused:
            reason = f": {refused}"
        try:
            snapshot = opened.read()
        except TableUnavailable as error:
            raise error.unknown() from error
    raise TableUnavailable(opened.table.uri, f"refused {_TRIES} commits{reason}", outcome_unknown=True)


def deliver(
    opened: OpenedDeliveryTable, snapshot: DeliverySnapshot, marked: DeliveryMarks, rows: Any, **options: bool
) -> LeaseCounts:
    """Appends the rows of a delivery, and deletes its messages. Returns counts of deleted and lost messages."""
    append(opened, snapshot, marked, rows, **options)
    return marked.delete()


def close(opened: OpenedDeliveryTable, delivery: DeliveryIdentity) -> tuple[DeliveryStatus, DeliverySnapshot]:
    """Blocks a delivery that is ``OPEN`` (TAB-26). Returns the state in which the delivery is then, and the
    snapshot of the table that shows this state. Raises TableUnavailable.
    """
    reason = ""
    for _ in range(_TRIES):
        snapshot = opened.read()
        state = state_of(snapshot, delivery)
        if state is not DeliveryStatus.OPEN:
            return state, snapshot
        try:
            snapshot.block(delivery)
        except CommitRefused as refused:
            reason = f": {refused}"
    raise TableUnavailable(opened.table.uri, f"refused {_TRIES} blocks{reason}")


def block_all(table: DeliveryTable, deliveries: Sequence[DeliveryIdentity]) -> None:
    """Blocks these deliveries, and all earlier deliveries of their slots, in one commit (TAB-11). Each delivery
    must have a slot of its own. Raises TableUnavailable.
    """
    reason = ""
    for _ in range(_TRIES):
        snapshot = table.read()
        if snapshot is None:
            raise TableUnavailable(table.uri, "is not there")
        left = [each for each in deliveries if snapshot.delivered(each.app_id) < each.block]
        if not left:
            return
        try:
            snapshot.block(*left)
        except CommitRefused as refused:
            reason = f": {refused}"
    raise TableUnavailable(table.uri, f"refused {_TRIES} blocks{reason}")


def decide(table: DeliveryTable, marked: DeliveryMarks) -> bool:
    """Decides a delivery whose receipt has ended (TAB-26). Returns False if an operator must decide. Raises
    TableUnavailable if nothing was decided, because the table cannot be reached.
    """
    known = marked.table_id()
    if known is None:  # no append begins before the id is recorded, which needs the mark
        marked.decide(False, unrecorded=True)
        return True
    if known == "":
        return False
    opened = OpenedDeliveryTable(table, known, marked.queue_name)
    state, snapshot = close(opened, marked.delivery)
    if state is DeliveryStatus.ARRIVED:
        opened.table.sync(snapshot.version)
    elif state is DeliveryStatus.UNKNOWN:
        # usually another process decided this mark, and the slot has been used since
        return not marked.is_there()
    marked.decide(state is DeliveryStatus.ARRIVED)
    return True
