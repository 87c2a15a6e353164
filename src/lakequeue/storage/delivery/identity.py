"""The identity of a delivery in the log of its table. Needs no ``deltalake``."""

from __future__ import annotations

import attrs


class CommitRefused(Exception):
    """The commit did not land, or its outcome is unknown. Read the table again."""


@attrs.frozen
class DeliveryIdentity:
    """One delivery, as in the log of its table.

    Attributes:
        app_id: application id of one slot of a shard; see ``application_id``.
        number: number of the claim. The commit of the rows records ``app_id`` with version ``2 * number``. A
            block, the commit that forbids the rows, records ``2 * number + 1``.
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
        """Version of the application id in a block."""
        return 2 * self.number + 1
