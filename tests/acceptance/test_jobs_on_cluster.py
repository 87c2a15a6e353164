"""The jobs through spark-submit: all of them in local mode, and on a standalone cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptance.spark_cluster import cluster
from acceptance.submitting import measured, play, sources, submit
from lakequeue import LakeQueue, SendEntry

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(1100)]

SOURCE = str(Path(__file__).with_name("source_on_cluster.py"))


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running.url


@pytest.mark.spec("EXM-4")
def test_a_batch_producer_and_a_stream_run_on_a_cluster(master: str, tmp_path: Path) -> None:
    table = play("standalone", master, str(tmp_path / "root"), str(tmp_path), "batch", "stream")
    assert measured(table) == sources()[1]


def test_a_job_on_a_cluster_says_in_one_line_why_it_failed(master: str, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    queue = LakeQueue(root).create_queue("orders")
    queue.send_batch([SendEntry("a"), SendEntry("b")])
    here = ("--root", root, "--queue", "orders", "--output", str(tmp_path / "results"))
    failed = submit("standalone", master, "consume_batch", *here, "--handler", "handlers:fail_in_a_worker")
    assert failed.status == 3
    # spark-submit passes on what Python says through its own standard output
    [line] = [line for line in (failed.out + failed.err).splitlines() if line.startswith("error: ")]
    assert "JSONDecodeError" in line
    assert (queue.counts().visible, queue.counts().in_flight) == (2, 0)


def test_the_data_source_runs_on_a_cluster(master: str, tmp_path: Path) -> None:
    done = submit("standalone", master, SOURCE, str(tmp_path / "root"), str(tmp_path))
    assert done.status == 0, done.out + done.err


@pytest.mark.spec("EXM-4")
def test_a_stream_of_files_and_a_batch_consumer_run_in_local_mode(tmp_path: Path) -> None:
    table = play("local", None, str(tmp_path / "root"), str(tmp_path), "stream", "batch")
    assert measured(table) == sources()[1]
