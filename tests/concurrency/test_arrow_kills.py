"""A killed ``send_arrow`` that is repeated with its send id adds every row once, wherever it was killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from concurrency import arrow_worker
from concurrency.faults import exit_code
from lakequeue import LakeQueue

SHARDS = 3
QUICK = [("file written", 2), ("manifest", 1), ("committed", 1)]
OTHERS = [
    *[("file begun", 1), ("file begun", 2), ("file moved", 1), ("file moved", 2), ("no manifest", 1)],
    *[("committed", shard) for shard in range(2, SHARDS + 1)],
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]


@pytest.mark.spec("DLT-7", "SND-17", "QUE-33")
@pytest.mark.parametrize("name", ["orders", pytest.param("orders.fifo", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("moment", "count"), CASES)
def test_a_killed_send_is_completed_by_its_repetition(tmp_path: Path, name: str, moment: str, count: int) -> None:
    root = str(tmp_path / "root")
    scope = {"fifo": True, "deduplication_scope": "message_group"} if name.endswith(".fifo") else {}
    queue = LakeQueue(root).create_queue(name, shards=SHARDS, **scope)
    assert exit_code(arrow_worker.main, root, name, moment, count) == -signal.SIGKILL
    reached = queue.counts().visible
    assert (reached > 0) == (moment == "committed")
    assert reached < arrow_worker.ROWS or (moment, count) == ("committed", SHARDS)

    assert arrow_worker.send(root, name) == arrow_worker.ROWS - reached
    assert arrow_worker.send(root, name) == 0
    lease = queue.lease()
    assert lease is not None
    found = lease.arrow(["body", "message_id", "shard"])
    assert sorted(found["body"].to_pylist()) == sorted(arrow_worker.rows(name)["body"].to_pylist())
    assert len(set(found["message_id"].to_pylist())) == arrow_worker.ROWS
    assert len(set(found["shard"].to_pylist())) == SHARDS
