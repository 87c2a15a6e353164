"""The compactor frees space and changes no answer."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from concurrency.rig import apart, at_once, check_log, drain, log_rows, shard_of, small_segments
from conformance.bench import Bench, point_only
from conformance.plays import Play
from lakequeue import LakeQueue, Queue, QueueClientError, QueueDoesNotExist, SendEntry, service
from lakequeue.storage import housekeeping, layout, sweep
from lakequeue.storage.engine import DataFile
from lakequeue.storage.point import PointEngine
from lakequeue.testing import ManualClock

DAY = 24 * 3600


def keep_nothing(patch: pytest.MonkeyPatch) -> None:
    """Lets a pass remove at once what else stays for hours, and join and cut what else is too small for it."""
    small_segments(patch)
    for name in ("MESSAGES", "RECEIPTS", "QUEUES", "STATS"):
        patch.setattr(layout, f"{name}_KEPT", layout.Kept(0, 0))
    patch.setattr(housekeeping, "CUT_BYTES", 0)
    patch.setattr("lakequeue.storage.ledger._SPARE_FILES", 0)


def older(root: str | Path, seconds: float) -> None:
    """Sets back when the files below a root were written."""
    for folder, _, names in os.walk(root):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            written = os.stat(path).st_mtime - seconds
            os.utime(path, (written, written))


def files_of(queue: Queue, name: str) -> list[str]:
    """Data files that lie in the directory of a table, live or not."""
    table = Path(queue.owner.root) / "q" / queue.key / name
    found = table.rglob("*.parquet")
    return sorted(str(path.relative_to(table)) for path in found if "_delta_log" not in path.parts)


def live_files(queue: Queue, name: str = "messages") -> int:
    return len(DeltaTable(f"{queue.owner.root}/q/{queue.key}/{name}").file_uris())


def log_files_of(queue: Queue, name: str) -> list[str]:
    return sorted(path.name for path in (Path(queue.owner.root) / "q" / queue.key / name / "_delta_log").iterdir())


def succeeded(summaries: Any) -> Any:
    for summary in summaries if isinstance(summaries, list) else [summaries]:
        assert summary.failures == []
    return summaries


# --- nothing is answered otherwise


def compare(
    tmp_path: Path, open_at: Callable[[str, ManualClock], LakeQueue], seed: int, fifo: bool, steps: int
) -> None:
    """Plays a sequence with a pass after each step, by an entry of its own, and without any."""
    with pytest.MonkeyPatch.context() as patch:
        keep_nothing(patch)
        said = []
        for compacting in (False, True):
            root = str(tmp_path / f"{seed}-{compacting}")
            play, draw = Play(root, fifo, lambda clock, root=root: open_at(root, clock)), random.Random(seed)
            compacted = 0
            for _ in range(steps):
                play.step(draw)
                if compacting:
                    service._stores.clear()
                    for summary in succeeded(open_at(root, play.clock).compact()):
                        compacted += summary.segments_dropped + summary.segments_merged + summary.files_freed
            play.end()
            said.append(play.said)
            assert compacted > 0 or not compacting, "no pass had anything to do"
            shutil.rmtree(root)
        for step, (plain, compacted_answer) in enumerate(zip(*said, strict=True)):
            assert plain == compacted_answer, f"seed {seed}, step {step}"


def through_point(root: str, clock: ManualClock) -> LakeQueue:
    return LakeQueue(root, clock=clock)


@pytest.mark.spec("DLT-7", "RET-9", "RET-8", "RET-11")
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("seed", range(2))
def test_a_pass_after_each_step_changes_no_answer(tmp_path, seed, fifo):
    compare(tmp_path, through_point, seed, fifo, steps=50)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.spec("DLT-7", "RET-9")
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_pass_after_each_step_changes_no_answer_in_a_hundred_sequences(tmp_path, fifo):
    for seed in range(1_000, 1_050):
        compare(tmp_path, through_point, seed, fifo, steps=80)


@pytest.mark.spark
@pytest.mark.spec("DLT-7")
def test_passes_through_spark_change_no_answer(tmp_path, spark):
    def entry(root: str, clock: ManualClock) -> LakeQueue:
        return LakeQueue(root, spark=spark, engine="spark", clock=clock)

    compare(tmp_path, entry, 1, False, steps=8)
