"""The jobs and the data source through spark-submit, on a standalone cluster of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.spark_cluster import cluster
from acceptance.submitting import submit


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.timeout(1100)
@pytest.mark.spec("EXM-4")
def test_the_data_source_and_the_jobs_run_on_a_cluster(tmp_path: Path) -> None:
    driver = str(Path(__file__).with_name("driver_on_cluster.py"))
    with cluster(tmp_path / "cluster") as running:
        done = submit("standalone", running.url, driver, str(tmp_path / "root"), str(tmp_path))
    assert done.status == 0, done.out + done.err
