"""Types distinguish failures of storage from errors of the package's own code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import obstore.exceptions
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException

from lakequeue import InvalidParameterValue, LakeQueue, QueueClientError
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.catalog import Catalog
from lakequeue.storage.engines.commit_failures import LostRace, StaleSnapshot, is_storage_failure
from lakequeue.storage.store_failures import first_line


@pytest.mark.parametrize(
    "kind",
    [
        *(OSError, PermissionError, TimeoutError, LostRace, StaleSnapshot),
        *obstore.exceptions.BaseError.__subclasses__(),
        *(pa.ArrowInvalid, pa.ArrowKeyError, Py4JNetworkError, Py4JJavaError, AnalysisException),
    ],
)
def test_what_storage_raises_is_its_failure(kind: type[Exception]) -> None:
    assert is_storage_failure(kind.__new__(kind))


@pytest.mark.parametrize("kind", [KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError])
def test_an_error_of_our_own_is_no_storage_failure(kind: type[Exception]) -> None:
    assert not is_storage_failure(kind())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted.\n"
            "\tat org.apache.Spark\nCaused by: java.nio.file.AccessDeniedException: s3a://lake/q\n\tat java\n",
            "Spark is denied access, and its rights may differ from Python's (see conf/): "
            "java.nio.file.AccessDeniedException: s3a://lake/q",
        ),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "x", line 1\n    write()\n'
            "lakequeue.errors.QueueClientError: the disk is full\n SQLSTATE: 38000\n",
            "the disk is full",
        ),
        ("An exception was thrown from the Python worker:\nEOFError\n", "EOFError"),
    ],
)
def test_failures_of_spark_are_reported_by_their_cause(text: str, told: str) -> None:
    assert first_line(Exception(text)) == told


def test_an_error_of_our_own_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    lq.create_queue("orders")
    for raised, seen in ((KeyError("row"), KeyError), (pa.ArrowInvalid("no"), QueueClientError)):
        with monkeypatch.context() as patch, pytest.raises(seen):

            def failing(self: Catalog, raised: Exception = raised) -> None:
                raise raised

            patch.setattr(Catalog, "rows", failing)
            lq.list_queues()


def test_half_a_surrogate_pair_is_refused_where_it_would_be_stored(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterValue, match="region"):
        LakeQueue(str(tmp_path / "root"), region="\ud800")
    with pytest.raises(InvalidParameterValue, match="send_id"):
        SendKey.of_send("\ud800")


def test_a_session_that_was_stopped_is_no_error_of_our_own(tmp_path: Path) -> None:
    stopped = SimpleNamespace(sql=print, _jsparkSession=object(), sparkContext=SimpleNamespace(_jsc=None))
    root = LakeQueue(str(tmp_path / "root"), spark=stopped)._runtime  # type: ignore[arg-type]
    with pytest.raises(QueueClientError, match="was stopped"):
        root.require_spark("lease")
