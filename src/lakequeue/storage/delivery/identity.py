"""The identity of a delivery in the log of its table. Needs no ``deltalake``."""

from __future__ import annotations

import attrs


class CommitRefused(Exception):
    """Raised if a commit failed, or may have failed. The caller reads the table to find out."""


@attrs.frozen
class DeliveryIdentity:
    """Identifies a delivery in the log of the delivery table.

    Attributes:
        app_id: application id of one slot of a shard; see ``application_id``.
        number: number of the claim, from which ``version`` and ``block`` are computed.
        at: instant in microseconds, stored with the application id.
    """

    app_id: str
    number: int
    lease_id: str
    at: int

    @property
    def version(self) -> int:
        """Version that the commit of the rows gives to the application id."""
        return 2 * self.number

    @property
    def block(self) -> int:
        """Version that a block gives to the application id. A block is a commit that keeps the rows out."""
        return 2 * self.number + 1
