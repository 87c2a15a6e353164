"""A process that sends rows of Arrow and kills itself on the way."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa

from concurrency.worker import die
from lakequeue import LakeQueue
from lakequeue.storage.bulk import arrow_files, arrow_rows, manifests, staged_files
from lakequeue.storage.engines.point import Table

MOMENTS: dict[str, tuple[Any, str, str]] = {
    "file begun": (arrow_files, "_stored", "before"),
    "file written": (staged_files.NumberedFile, "described", "after"),
    "file moved": (staged_files, "move_file", "after"),
    "no manifest": (manifests, "write_manifest", "before"),
    "manifest": (manifests, "write_manifest", "after"),
    "committed": (Table, "add", "after"),
}

ROWS = 60


def rows(queue: str) -> pa.Table:
    columns = {"body": [f"body {number}" for number in range(ROWS)]}
    if queue.endswith(".fifo"):
        columns |= {"group_id": [f"g{number % 9}" for number in range(ROWS)]}
        columns |= {"dedup_id": [f"d{number}" for number in range(ROWS)]}
    return pa.table(columns)


def send(root: str, queue: str) -> int:
    """Sends in small files, so that each shard gets some."""
    with patch.object(arrow_rows, "ROW_GROUP", 100), patch.object(arrow_files, "FILE", 100):
        return LakeQueue(root).queue(queue).send_arrow(rows(queue).to_reader(max_chunksize=5), send_id="load")


def main(root: str, queue: str, moment: str, count: int) -> None:
    """Sends ``rows(queue)``, and dies when it comes to a moment for the given time, from 1 on."""
    owner, name, when = MOMENTS[moment]
    die(count, when, [(owner, name)])
    send(root, queue)
