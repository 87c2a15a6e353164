"""Programs that know Delta read every table as it is, at its newest version and at earlier ones (DLT-1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from concurrency.harness import small_segments
from lakequeue import LakeQueue, Queue
from lakequeue.storage import layout
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.point import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[[str, "int | None"], list[dict[str, Any]]]
"""Reads a version of a table, None for the newest."""


def by_delta_rs(path: str, version: int | None) -> list[dict[str, Any]]:
    return DeltaTable(path, version=version).to_pyarrow_table().to_pylist()


def by_polars(path: str, version: int | None) -> list[dict[str, Any]]:
    # without PyArrow it refuses maps and instants as partitions
    return polars.read_delta(path, version=version, use_pyarrow=True).to_dicts()


def by_duckdb(path: str, version: int | None) -> list[dict[str, Any]]:
    rows = DeltaTable(path, version=version).to_pyarrow_dataset()  # noqa: F841  # DuckDB finds it by its name
    return duckdb.sql("SELECT * FROM rows").to_arrow_table().to_pylist()


@pytest.fixture(params=[by_delta_rs, by_polars, by_duckdb, pytest.param("spark", marks=pytest.mark.spark)])
def read(request: pytest.FixtureRequest) -> Read:
    if callable(request.param):
        return request.param
    spark: SparkSession = request.getfixturevalue("spark")

    def by_spark(path: str, version: int | None) -> list[dict[str, Any]]:
        options = {} if version is None else {"versionAsOf": version}
        frame = spark.read.format("delta").options(**options).load(path)
        return [row.asDict() for row in frame.collect()]

    return by_spark


def used(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue whose tables have some versions."""
    small_segments(monkeypatch)
    queue = lq.create_queue("orders", rewind_range=3600, message_retention_period=7200)
    for number in range(12):
        queue.send(f"body {number}", attributes={"n": number})
        if number % 3 == 2:
            first, *others = queue.receive(max_messages=3)
            queue.delete(first.receipt_handle)
    lq.compact()
    return queue


@pytest.mark.spec("DLT-1")
def test_other_programs_read_a_log_of_which_a_checkpoint_is_left(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    queue = used(lq, monkeypatch)
    for path in (
        *(layout.messages_path(lq.root, queue.key, 0), layout.receipts_path(lq.root, queue.key, 0)),
        *(f"{lq.root}/queues", f"{lq.root}/stats"),
    ):
        before = read(path, None)
        table = Table(queue._runtime.root.engine.store, path)
        table.checkpoint()
        table.folder.remove(entry_name(version) for version in range(table.version))
        after = read(path, None)
        assert before and sorted(map(str, after)) == sorted(map(str, before))


@pytest.mark.spec("DLT-1")
def test_other_programs_read_each_version_of_each_table(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    queue = used(lq, monkeypatch)
    store = queue._runtime.root.engine.store
    sizes = []
    for path in (layout.messages_path(lq.root, queue.key, 0), layout.receipts_path(lq.root, queue.key, 0)):
        newest = DeltaTable(path).version()
        for version in {newest, newest // 2, newest - 1}:
            rows = read(path, version)
            files = Table(store, path, version).files()
            assert len(rows) == sum(file.rows for file in files)
            sizes.append(len(rows))
    bodies = {row["body"] for row in read(layout.messages_path(lq.root, queue.key, 0), None)}
    assert bodies == {f"body {number}" for number in range(12)} and min(sizes) > 0
    assert len(read(f"{lq.root}/queues", None)) == 1
    assert len(read(f"{lq.root}/stats", None)) == 1
