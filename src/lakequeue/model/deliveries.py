"""Deliveries into a Delta table: the marks in the ledger, and the application ids in the table (TAB)."""

from __future__ import annotations

import os
import random
import re
import uuid
from typing import NamedTuple

from lakequeue.model.secrets import hidden

NONCE_BITS = 20
"""Number of random bits in the number of a mark, so that two copies of a root use different numbers."""

DELIVERY_ID = "DeliveryId"
"""Name of the attribute in the tables."""
_CATALOG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*){1,2}")


class Mark(NamedTuple):
    """Slot and number of the messages of one delivery (TAB-2).

    Attributes:
        slot: the lowest slot of the shard that no other delivery used at the claim.
        number: the epoch of the claim's commit, followed by ``NONCE_BITS`` random bits. Numbers of a slot grow.
    """

    slot: int
    number: int

    @classmethod
    def of(cls, slot: int, epoch: int, nonce: int) -> Mark:
        return cls(slot, epoch << NONCE_BITS | nonce)

    @property
    def version(self) -> int:
        """Version of the application id in an append of the delivery."""
        return 2 * self.number

    @property
    def block(self) -> int:
        """Version of the application id in a block of the delivery."""
        return 2 * self.number + 1


class DeliveryTarget(NamedTuple):
    """The delivery table of a shard.

    Attributes:
        table: path, URI, or name in a catalog. None if the queue no longer has a table.
        delivery_id: random id of the queue for this table.
        table_id: id of the Delta table (``metaData.id``). None until a process has recorded it.
        changed: True if the marks belong to an earlier table or delivery id. Only an operator decides these.
        owner: delivery id to which the marks belong.
    """

    table: str | None
    delivery_id: str | None
    table_id: str | None
    changed: bool = False
    owner: str | None = None


class Undecided(NamedTuple):
    """A mark whose receipt has ended while it is unknown if the rows arrived.

    Attributes:
        mark: slot and number.
        lease_id: the lease that delivered.
        messages: number of messages.
        since: end of the receipt, in microseconds.
    """

    mark: Mark
    lease_id: str
    messages: int
    since: int


def application_id(delivery_id: str, shard: int, slot: int) -> str:
    """Returns the id of an append into the table in Delta's log."""
    return f"lakequeue-{delivery_id}-{shard}-{slot}"


def new_delivery_id() -> str:
    """Returns a random id that names a queue in the Delta log of its delivery table (TAB-1)."""
    return uuid.uuid4().hex


def parse_table(value: object) -> str:
    """Parses a table as the owner of the queue named it.

    Raises:
        ValueError: the text does not name a table, or has a password or an access token (TAB-1).
    """
    table = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(table, str) or not table.strip() or not table.isprintable():
        raise ValueError("must be a path, a URI, or the name of a table in a catalog")
    if hidden(table) != table:
        raise ValueError("must have no keys or tokens: give them as table_options")
    return table.strip()


def epoch_above_all(now: int) -> int:
    """Returns an epoch above all epochs that a ledger with unknown commits had before ``now`` (in microseconds).

    A commit takes over a millisecond, so no shard has had as many commits as milliseconds (TAB-11).
    """
    return now // 1_000


def new_nonce() -> int:
    """Returns random bits for the number of a mark."""
    return random.getrandbits(NONCE_BITS)


def is_catalog_name(table: str) -> bool:
    """Returns True for ``schema.table`` and ``catalog.schema.table``, False for a path or URI."""
    return _CATALOG_NAME.fullmatch(table) is not None
