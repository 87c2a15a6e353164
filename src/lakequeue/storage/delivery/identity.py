"""The identity of a delivery in the log of its table. Needs no ``deltalake``."""

from __future__ import annotations

import attrs


class CommitRefused(Exception):
    """Raised if a commit did not land, or if its outcome is unknown. The caller reads the table again."""


@attrs.frozen
class DeliveryIdentity:
    """Identifies one delivery in the log of its table.

    Attributes:
        app_id: application id of one slot of a shard; see ``application_id``.
        number: number of the claim; see ``version`` and ``block``.
        at: instant in microseconds, stored with the application id.
    """

    app_id: str
    number: int
    lease_id: str
    at: int

    @property
    def version(self) -> int:
        """Version of the application id in the commit of the rows."""
        return 2 * self.number

    @property
    def block(self) -> int:
        """Version of the application id in a block. A block is a commit after which the rows cannot land."""
        return 2 * self.number + 1
