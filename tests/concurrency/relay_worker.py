"""A process that relays a table in small pieces and kills itself on the way."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from concurrency.worker import die
from lakequeue import LakeQueue
from lakequeue.storage import source_rows
from lakequeue.storage.bulk import manifests, staged_files
from lakequeue.storage.engines.point import Table

MOMENTS: list[tuple[Any, str, str]] = [
    (staged_files.NumberedFile, "described", "after"),
    (manifests, "write_manifest", "before"),
    (manifests, "write_manifest", "after"),
    (Table, "add", "before"),
    (Table, "add", "after"),
    (manifests, "forget", "before"),
    (manifests, "forget", "after"),
]
"""Steps of a relay: of a piece, or of the commit that says where it begins."""


def relay(root: str, table: str, name: str) -> int:
    """Relays in pieces of seven rows."""
    lq = LakeQueue(root)
    queue = lq.queue(name)
    with patch.object(source_rows, "PIECE_ROWS", 7), patch.object(source_rows, "_BATCH", 3):
        return lq.relay(table, queue, start=1, group_column="id" if queue.fifo else None)


def main(root: str, table: str, name: str, moment: int, count: int) -> None:
    """Relays, and dies when a moment comes for the given time, from 1 on."""
    owner, method, when = MOMENTS[moment]
    die(count, when, [(owner, method)])
    relay(root, table, name)
