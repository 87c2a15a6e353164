"""The compactor in tasks of Spark."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue, SendEntry
from lakequeue.operations import compact
from lakequeue.spark import compaction
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def busy(root: str, *names: str) -> None:
    for name in names:
        queue = LakeQueue(root).create_queue(name)
        queue.send_batch([SendEntry(body) for body in "ab"])
        queue.delete_batch([message.receipt_handle for message in queue.receive(2)])


@pytest.mark.core
@pytest.mark.spec("DLT-7")
def test_tasks_share_the_queues_that_have_changed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, names = str(tmp_path / "root"), ["a", "b", "c"]
    busy(root, *names)
    lq = LakeQueue(root, spark=spark)
    monkeypatch.setattr(compact, "compact_queue", None)  # this process makes no pass
    with warnings.catch_warnings():  # of PySpark about pandas, too, which a job would print
        warnings.simplefilter("error")
        passed = compaction.compact_once(lq, None, spark)
    assert [each.queue for each in passed] == [*names, None]
    assert [(each.segments_dropped, each.failures) for each in passed[:-1]] == [(1, [])] * 3
    assert not lq.check()


def test_a_root_with_a_clock_of_its_own_is_compacted_here(spark: SparkSession, tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark, clock=ManualClock())
    lq.create_queue("orders").send("a")
    assert [each.failures for each in compaction.compact_once(lq, None, spark)] == [[], []]
