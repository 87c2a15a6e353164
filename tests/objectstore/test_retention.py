"""How long removed files stay on an object store, by the store's clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import attrs
import pytest
from benchmarks.memory_store import MemoryStore

from lakequeue import LakeQueue
from lakequeue.storage import layout
from objectstore import servers


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """A store whose objects can be made older."""
    with servers.in_memory() as (url, store), servers.found_by_variables(url):
        yield store


def older(store: MemoryStore, hours: float) -> None:
    for name, one in store._objects.items():
        store._objects[name] = attrs.evolve(one, modified=one.modified - timedelta(hours=hours))


def data_files(store: MemoryStore, table: str) -> set[str]:
    return {name for name in store._objects if name.endswith(".parquet") and f"/0/{table}/" in name} - {
        name for name in store._objects if "/_delta_log/" in name
    }


@pytest.mark.spec("DUR-61")
@pytest.mark.parametrize("tombstones", ["1 hours", "24 hours"])
def test_removed_files_stay_for_48_hours_whatever_the_property_says(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, tombstones: str
) -> None:
    for properties in (layout.MESSAGES_PROPERTIES, layout.RECEIPTS_PROPERTIES):
        monkeypatch.setitem(properties, "delta.deletedFileRetentionDuration", f"interval {tombstones}")
        monkeypatch.setitem(properties, "delta.checkpointInterval", "4")
    monkeypatch.setattr("lakequeue.storage.messages.append.SEGMENT_COMMITS", 2)
    queue = LakeQueue("s3://lake/root", engine="point").create_queue("orders")
    for number in range(6):
        queue.send(str(number))
        queue.receive(visibility_timeout=600)
    before = {table: data_files(store, table) for table in ("messages", "receipts")}
    older(store, 72)  # files that were written days before they are removed
    for number in range(6):
        queue.send(str(number))
        queue.receive(visibility_timeout=600)
    assert not queue.compact().failures
    for hours in (2, 23, 22.9):
        older(store, hours)
        assert not queue.compact().failures
        for table, files in before.items():
            assert files <= data_files(store, table)
    older(store, 0.2)
    assert not queue.compact().failures
    for table in before:
        folder = f"s3://lake/root/q/{queue.key}/0/{table}"
        assert len(data_files(store, table)) == len(queue._runtime.root.engine.open(folder).files())
