"""The session: what it is set to, and how it fails when Spark cannot start."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest

from lakequeue import LakeQueue
from lakequeue.errors import QueueClientError
from lakequeue.spark import compiled_home as compiled_homes
from lakequeue.spark import session
from lakequeue.spark.compiled_home import compiled_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.core
@pytest.mark.spark
def test_the_session_is_utc_and_knows_delta(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark._jvm.java.util.TimeZone.getDefault().getID() == "UTC"
    assert int(spark.conf.get("spark.databricks.delta.snapshotPartitions")) <= 2
    assert "DeltaCatalog" in spark.conf.get("spark.sql.catalog.spark_catalog")
    assert session.build_session().sparkContext is spark.sparkContext


@pytest.mark.core
@pytest.mark.spark
def test_python_workers_import_compiled_files(spark: SparkSession) -> None:
    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        for module in (pyspark, py4j):  # of a directory, or of a zip
            compiled = os.path.exists(module.__cached__) or module.__file__.endswith(".pyc")
            yield pa.record_batch({"name": [module.__name__], "compiled": [compiled]})

    rows = spark.range(0, 1, 1, 1).mapInArrow(loaded, "name string, compiled boolean").collect()
    assert {row.name for row in rows if row.compiled} == {"pyspark", "py4j"}


@pytest.mark.parametrize(
    ("master", "changed"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*,4]", True),
        ("local-cluster[2,1,512]", False),
        ("yarn", False),
    ],
)
@pytest.mark.parametrize("before", [None, "given"])
def test_only_a_jvm_that_runs_the_workers_gets_a_home_with_links(
    monkeypatch: pytest.MonkeyPatch, master: str, changed: bool, before: str | None
) -> None:
    home = None
    monkeypatch.setattr(compiled_homes, "_is_compiled", lambda _: False)  # .ci/compile_pyspark may have been here
    monkeypatch.setattr(compiled_homes, "_linked_home", compiled_homes._linked_home.__wrapped__)  # not kept
    if before is None:
        monkeypatch.delenv("SPARK_HOME", raising=False)
    else:
        home = os.path.dirname(pyspark.__file__)
        monkeypatch.setenv("SPARK_HOME", home)
    with compiled_home(master):
        linked = os.environ.get("SPARK_HOME")
    assert (linked != home) == changed
    assert os.environ.get("SPARK_HOME") == home
    if changed:
        assert os.path.samefile(f"{linked}/jars", f"{os.path.dirname(pyspark.__file__)}/jars")


@pytest.mark.parametrize("compiled", [{"pyspark", "py4j"}, {"pyspark"}])
def test_a_home_whose_zips_have_compiled_files_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: set[str]
) -> None:
    (tmp_path / "python" / "lib").mkdir(parents=True)
    for package in "pyspark", "py4j":
        with zipfile.ZipFile(tmp_path / "python" / "lib" / f"{package}.zip", "w") as zipped:
            zipped.writestr(f"{package}/__init__.py{'c' if package in compiled else ''}", b"")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_homes, "_linked_home", compiled_homes._linked_home.__wrapped__)  # not kept
    with compiled_home("local"):
        assert (os.environ["SPARK_HOME"] == str(tmp_path)) == (len(compiled) == 2)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("root", "told"),
    [
        ("s3a://bucket/queues", "org.apache.hadoop:hadoop-aws:"),
        ("gs://bucket/queues", "org.apache.hadoop:hadoop-gcp:"),
        ("az://box/queues", "abfss://<container>@<account>"),
    ],
)
def test_a_session_that_cannot_reach_a_store_is_refused_in_one_line(
    spark: SparkSession, root: str, told: str
) -> None:
    queues = LakeQueue(root, spark=spark)
    with pytest.raises(QueueClientError) as caught:
        queues._runtime.require_spark("send_dataframe")
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.spark
def test_commits_through_spark_on_s3_are_refused(spark: SparkSession) -> None:
    with pytest.raises(QueueClientError, match=r"two commits could overwrite.*engine=\"auto\" can"):
        LakeQueue("s3://bucket/queues", spark=spark, engine="spark")


def test_importing_does_not_import_pyspark() -> None:
    code = "import sys, lakequeue.spark.session; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_without_java_the_error_is_one_line(home: str | None, tmp_path) -> None:
    code = (
        "from lakequeue.errors import QueueClientError\n"
        "from lakequeue.spark.session import build_session\n"
        "try: build_session()\n"
        "except QueueClientError as error: print(error)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    if home is not None:
        environment["JAVA_HOME"] = home
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    (line,) = done.stdout.splitlines()
    assert "Java 17" in line
    assert (home or "PATH") in line


def test_settings_that_are_not_spark_s_are_refused() -> None:
    with pytest.raises(QueueClientError, match="mastr"):
        session.build_session(mastr="local")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            ["\t:: io.delta#delta-spark_4.2_2.13;4.4.0: not found\n"]
            + ['Exception in thread "main" java.lang.RuntimeException: '
               "[unresolved dependency: io.delta#delta-spark_4.2_2.13;4.4.0: not found]\n"],
            "unresolved dependency: io.delta#delta-spark_4.2_2.13;4.4.0",
        ),
        (["[download failed: io.delta#delta-storage;4.4.0!delta-storage.jar]\n"], "pom but no jar"),
        (["something else\n"], "something else"),
        ([], "without a message"),
    ],
)  # fmt: skip
def test_a_failed_start_is_reported_in_one_line(said: list[str], reason: str) -> None:
    text = session._reason(said)
    assert reason in text
    assert "\n" not in text


def test_a_stream_that_is_stopped_leaves_no_errors_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    write = "ERROR WriteToDataSourceV2Exec: Data source write support MicroBatchWrite[epoch: 1, writer: Write@1f]"
    said = [
        *(f"26/11/27 04:28:30 {write} {what}.\n" for what in ("is aborting", "failed to abort", "aborted")),
        "26/11/27 04:28:30 ERROR Utils: Aborting task\n",
        "org.apache.spark.TaskKilledException: Stage cancelled: [SPARK_JOB_CANCELLED] Job 2 cancelled\n",
        "\tat org.apache.spark.TaskContextImpl.killTaskIfInterrupted(TaskContextImpl.scala:267)\n",
        "26/11/27 04:28:30 ERROR DataWritingSparkTask: Aborting commit for partition 1 (task 4, stage 2.0)\n",
        "26/11/27 04:28:30 ERROR DataWritingSparkTask: Aborted commit for partition 1 (task 4, stage 2.0)\n",
    ]
    error = "26/11/27 04:28:31 ERROR MicroBatchExecution: Query a [id = 1] terminated with error\n"
    resolved: deque[str] = deque()
    session._forward(io.StringIO("".join([":: resolving\n", session._STARTED, *said, error])), resolved)
    assert [*resolved] == [":: resolving\n"]
    assert capsys.readouterr().err == error
