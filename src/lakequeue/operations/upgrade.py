"""Upgrades a root in place: stamps its queues with the layout of this lakequeue, so that older ones refuse them.

Layouts 4 and 5 have the same tables. What differs is what their writers promise: those of layout 5 have synced
what they acknowledged, and exclude each other by other locks. So no older one may write beside them (DUR-43).
"""

from __future__ import annotations

import attrs

from lakequeue.errors import RequestThrottled
from lakequeue.runtime.calls import logged
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.engines.retry import Races


def upgrade(root: Root) -> int:
    """Upgrades the queues of a root, of all regions; returns how many; see ``LakeQueue.upgrade``."""
    with logged("upgrade", ""), root.storage_errors():
        stamped = _stamp(root)
        # a run that was cut off before may have stamped the rows and left this
        for row in root.rows():
            if row.deleted_at is None:
                OpenQueue(root, row).announce_attributes()
        return stamped


def _stamp(root: Root) -> int:
    """Stamps all rows in one commit."""
    races = Races()
    for _ in races:
        with root.lock:
            old = [row for row in root.catalog.rows() if row.layout_version < layout.LAYOUT_VERSION]
            # with newer attributes, too: an older lakequeue that has a queue open reads the catalog then, and ends
            changes = [
                (
                    attrs.evolve(
                        row,
                        layout_version=layout.LAYOUT_VERSION,
                        attributes_version=row.attributes_version + 1,
                    ),
                    root.catalog.changes(row.region, row.name),
                )
                for row in old
            ]
            if not old or root.catalog.put(*changes):
                return sum(row.deleted_at is None for row in old)
        races.lose()
    raise RequestThrottled("the catalog is being changed too often; nothing was changed")
