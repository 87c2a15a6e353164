"""The identity of a delivery in its table's log. Needs no ``deltalake``."""

from __future__ import annotations

import attrs


class CommitRefused(Exception):
    """The commit did not land, or its outcome is unknown. Read the table again."""


@attrs.frozen
class DeliveryIdentity:
    """One delivery in its table's log.

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
        """Application id's version in the commit of the rows."""
        return 2 * self.number

    @property
    def block(self) -> int:
        """Application id's version in a block. A block is a commit that forbids the rows."""
        return 2 * self.number + 1
