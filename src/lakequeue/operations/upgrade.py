"""Brings a root of layout 5 to layout 6."""

from __future__ import annotations

from lakequeue.runtime.root import Root


def upgrade(root: Root) -> int:
    """Upgrades the queues of a root, of all regions; returns how many; see ``LakeQueue.upgrade``."""
    with root.storage_errors():
        root.rows()
    return 0
