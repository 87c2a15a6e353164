"""Deliveries into a Delta table (TAB): the marks in the ledger, and the application ids in the table."""

from __future__ import annotations

import os
import random
import re
import uuid
from typing import NamedTuple

from lakequeue.model.secrets import hidden

NONCE_BITS = 20
"""Number of random bits in a delivery number. They distinguish the deliveries of two copies of a root."""

DELIVERY_ID = "DeliveryId"
_CATALOG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*){1,2}")


class Mark(NamedTuple):
    """Slot and number of one delivery (TAB-2). The number is an epoch, followed by ``NONCE_BITS`` random bits. A
    later delivery of the same slot has a higher number.
    """

    slot: int
    number: int

    @classmethod
    def of(cls, slot: int, epoch: int, nonce: int) -> Mark:
        return cls(slot, epoch << NONCE_BITS | nonce)

    @property
    def version(self) -> int:
        """Version that the table's Delta log records for the application id when the delivery appends its rows."""
        return 2 * self.number

    @property
    def block(self) -> int:
        """Version that the table's Delta log records for the application id when the delivery is blocked."""
        return 2 * self.number + 1


class DeliveryTarget(NamedTuple):
    """The delivery table of a shard.

    Attributes:
        table: path, URI, or catalog name. None if the queue no longer has a table.
        delivery_id: random id of the queue for this table.
        table_id: id of the Delta table (``metaData.id``). None until it is recorded.
        changed: True if the leased messages were marked for another table or delivery id. Only an operator may
            then decide if these messages were delivered.
        owner: delivery id of the queue when the marks were made.
    """

    table: str | None
    delivery_id: str | None
    table_id: str | None
    changed: bool = False
    owner: str | None = None


class Undecided(NamedTuple):
    """A delivery whose receipts ended at ``since`` (microseconds). It is unknown if the table has the rows."""

    mark: Mark
    lease_id: str
    messages: int
    since: int


def application_id(delivery_id: str, shard: int, slot: int) -> str:
    """Returns a delivery's application id in the table's Delta log."""
    return f"lakequeue-{delivery_id}-{shard}-{slot}"


def new_delivery_id() -> str:
    """Returns a random id for a delivery table (TAB-1)."""
    return uuid.uuid4().hex


def parse_table(value: object) -> str:
    """Parses a table's path, URI or name (TAB-1). Raises ValueError for other texts, or texts with secrets."""
    table = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(table, str) or not table.strip() or not table.isprintable():
        raise ValueError("must be a path, a URI, or the name of a table in a catalog")
    if hidden(table) != table:
        raise ValueError("must have no keys or tokens: give them as table_options")
    return table.strip()


def epoch_above_all(now: int) -> int:
    """Converts ``now`` from microseconds to an epoch that is above the epoch of every ledger (TAB-11)."""
    return now // 1_000


def new_nonce() -> int:
    """Returns random bits for a delivery number."""
    return random.getrandbits(NONCE_BITS)


def is_catalog_name(table: str) -> bool:
    """Returns True for ``schema.table`` and ``catalog.schema.table``. Returns False for a path or URI."""
    return _CATALOG_NAME.fullmatch(table) is not None
