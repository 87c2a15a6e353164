"""The jobs and the data source through spark-submit, on a standalone cluster of this machine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from acceptance.killing import ORDER
from acceptance.spark_cluster import cluster
from acceptance.submitting import submit
from lakequeue import LakeQueue


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.timeout(1100)
@pytest.mark.spec("EXM-4", "DLT-3", "DLT-7")
def test_the_data_source_and_the_jobs_run_on_a_cluster_whose_processes_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, root = str(Path(__file__).with_name("driver_on_cluster.py")), str(tmp_path / "root")
    monkeypatch.setenv(ORDER, str(tmp_path / "order"))
    with cluster(tmp_path / "cluster") as running:
        done = submit("standalone", running.url, driver, root, str(tmp_path))
    # a task has killed the driver in a pass of the compactor
    assert done.status == -signal.SIGKILL and (tmp_path / "order.done").exists(), done.out + done.err
    lq = LakeQueue(root)
    assert not any(summary.failures for summary in lq.compact()) and not lq.check()
    left = [str(number) for number in range(2, 24)]
    assert [[message.body for message in lq.queue(f"merged{n}").receive(100)] for n in range(4)] == [left] * 4
