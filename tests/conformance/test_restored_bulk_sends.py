"""A bulk send that was half done in a backup, and is completed in the restored root at another time."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from conformance.damage import send_to_one_shard
from lakequeue import LakeQueue, QueueClientError
from lakequeue.testing import ManualClock


@pytest.mark.spec("DUR-80")
def test_its_delays_begin_when_it_is_sent(tmp_path: Path, clock: ManualClock) -> None:
    root, backup = tmp_path / "root", tmp_path / "backup"
    queue = LakeQueue(str(root), clock=clock).create_queue("orders", shards=2)
    rows = pa.table({"body": [str(n) for n in range(400)], "delay_seconds": [100.0] * 400})
    send_to_one_shard(queue, rows)
    shutil.copytree(root, backup)
    queue.send_arrow(rows, send_id="s1")  # completes it
    assert queue.counts().delayed == 400 and not queue.receive(10)
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    clock.advance(90)
    with suppress(QueueClientError):  # told once
        queue.send_arrow(rows, send_id="s1")
    queue.send_arrow(rows, send_id="s1")
    clock.advance(20)  # the first half was sent before the backup
    assert queue.counts().visible == 200 and queue.counts().delayed == 200
