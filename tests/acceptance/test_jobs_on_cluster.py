"""The jobs through spark-submit: all of them in local mode, and on a standalone cluster of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acceptance.submitting import environment, measured, play, sources, submit
from lakequeue import LakeQueue, SendEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(1100)]


class Daemon:
    """A master or worker of the installed pyspark; its log is read to the end, so that it never waits."""

    def __init__(self, *args: str) -> None:
        import pyspark

        home = os.path.dirname(pyspark.__file__)
        self._process = subprocess.Popen(
            [f"{home}/bin/spark-class", *args],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment() | {"SPARK_HOME": home, "SPARK_DAEMON_MEMORY": "512m"},
        )
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()

    def says(self, pattern: str) -> str:
        """Waits for a line in the log; the first group of the pattern."""

        def found() -> re.Match[str] | None:
            return next((match for line in self._lines if (match := re.search(pattern, line))), None)

        with self._more:
            assert self._more.wait_for(lambda: found() is not None, 120), "".join(self._lines)
            match = found()
        assert match is not None
        return match[1]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers on loopback, as large as conf/standalone.conf asks for."""
    web = ("--webui-port", "0", "--host", "127.0.0.1")
    daemons = [Daemon("org.apache.spark.deploy.master.Master", "--port", "0", *web)]
    try:
        url = daemons[0].says(r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            place = str(tmp_path_factory.mktemp(f"worker{number}"))
            size = ("--cores", "2", "--memory", "2g", "--work-dir", place)
            daemons.append(Daemon("org.apache.spark.deploy.worker.Worker", *web, *size, url))
        for worker in daemons[1:]:
            worker.says(r"(Successfully registered) with master")
        yield url
    finally:
        for daemon in reversed(daemons):
            daemon.stop()


@pytest.mark.spec("EXM-4")
@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
def test_the_jobs_run_on_a_cluster(master: str, stream: bool, tmp_path: Path, spark: SparkSession) -> None:
    table = play("standalone", master, str(tmp_path / "root"), tmp_path, stream)
    assert measured(spark, table) == sources()[1]


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


@pytest.mark.spec("EXM-4")
def test_the_batch_jobs_run_in_local_mode(tmp_path: Path, spark: SparkSession) -> None:
    table = play("local", None, str(tmp_path / "root"), tmp_path, stream=False)
    assert measured(spark, table) == sources()[1]
