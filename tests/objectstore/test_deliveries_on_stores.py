"""Deliveries into tables on object stores, which may be others than the root's, and requests that fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from benchmarks import object_store
from benchmarks.object_store import FAULTS, Counted
from deltalake import DeltaTable

from conformance.delivery_scenes import Scene, kills, pauses, writers
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.errors import LeaseLost, TableUnavailable
from lakequeue.lease import Lease
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock
from objectstore import servers
from objectstore.servers import Bucket, failing

every_server = pytest.mark.parametrize("bucket", ["s3", "azure", "gcs"], indirect=True)
ENTRY = r"/table-.*/_delta_log/\d{20}\.json"


@pytest.fixture(scope="module")
def server() -> Iterator[Counted]:
    with servers.served() as (url, store), servers.found_by_variables(url, AWS_TIMEOUT="1s"):
        yield store


def stored(table: str, options: Any = None) -> list[int]:
    found = DeltaTable(table, storage_options=Store(table, options or {}).delta_options)
    return sorted(found.to_pyarrow_table()["id"].to_pylist())


def lease(queue: Queue) -> Lease:
    found = queue.lease(10)
    assert found is not None
    return found


def rows(leased: Lease) -> list[dict[str, int]]:
    return [{"id": int(body)} for body in leased.arrow(["body"])["body"].to_pylist()]


def some_writers(scene: Scene) -> None:
    writers(scene, ["merges", "compacts", "cleans its log"])


def waiting(queue: Queue) -> list[int]:
    return sorted(int(each.body) for each in queue.receive(10, visibility_timeout=0))


@pytest.mark.objectstore
@pytest.mark.spec("TAB-20", "TAB-25", "TAB-26")
@pytest.mark.parametrize("is_here", [True, False], ids=["root there", "root on a disk"])
@every_server
def test_a_table_on_a_store_takes_rows_once_and_decides(
    bucket: Bucket, clock: ManualClock, tmp_path: Path, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, table = bucket.new_root() if is_here else str(tmp_path / "root"), bucket.new_root()
    options: dict[str, Any] = {"table_options": dict(bucket.options)} if not is_here else {}
    given = {"storage_options": bucket.options} if is_here else {}
    lake = LakeQueue(root, engine="point", clock=clock, **given)
    queue = lake.create_queue("orders", table=table, visibility_timeout=60, allow_zero_visibility=True, **options)
    queue.send_batch([SendEntry("1"), SendEntry("2")])
    first = lease(queue)
    assert first.append(rows(first)) == 2 and stored(table, bucket.options) == [1, 2]
    queue.send("3")
    slow, real = lease(queue), protocol.append

    def paused(*arguments: Any, **more: Any) -> Any:
        clock.advance(61)
        assert waiting(queue) == [3]  # which has blocked the slow delivery
        return real(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(protocol, "append", paused)
        with pytest.raises(LeaseLost):
            slow.append([{"id": 3}])
    assert (stored(table, bucket.options), waiting(queue)) == ([1, 2], [3])
    last = lease(queue)
    assert last.append(rows(last)) == 1
    assert (stored(table, bucket.options), waiting(queue)) == ([1, 2, 3], [])


@pytest.mark.objectstore
@pytest.mark.spec("TAB-20", "TAB-25", "TAB-26")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("what", [pauses, kills, some_writers], ids=lambda what: what.__name__)
@every_server
def test_what_happens_at_each_step_of_a_delivery(bucket: Bucket, clock: ManualClock, what: Any) -> None:
    scene = Scene.of(bucket.new_root(), bucket.new_root(), clock, bucket.options)
    scene.send(1)
    scene.deliver()
    what(scene)


@pytest.fixture
def queue(server: Counted, tmp_path: Path, clock: ManualClock) -> Queue:
    """A queue on a disk that has delivered a row into a table on the store."""
    lake = LakeQueue(str(tmp_path / "root"), clock=clock)
    queue = lake.create_queue(
        "orders",
        table=f"s3://lake/table-{uuid4().hex}",
        visibility_timeout=60,
        allow_zero_visibility=True,
        table_options={"AWS_TIMEOUT": "1s"},
    )
    queue.send("1")
    lease(queue).append([{"id": 1}])
    return queue


@pytest.mark.spec("TAB-25", "TAB-26")
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_a_commit_to_the_table_whose_request_failed_stores_rows_once(
    server: Counted, queue: Queue, kind: str, times: int, clock: ManualClock
) -> None:
    queue.send("2")
    with failing(server, kind, ENTRY, times) as store:
        try:
            lease(queue).append([{"id": 2}])
        except (TableUnavailable, LeaseLost) as error:
            assert "\n" not in str(error)
        assert store.faults[kind]
    clock.advance(120)
    left = waiting(queue)
    table = str(queue.attributes()["table"])
    assert sorted([*stored(table), *left]) == [1, 2]
    assert queue.undecided() == []


@pytest.mark.spec("TAB-20", "TAB-26")
def test_a_delivery_that_is_paused_between_its_files_and_its_entry_is_refused(
    queue: Queue, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = {"AWS_TIMEOUT": "60s"}  # so that no request is repeated in the pause
    table = str(queue.attributes()["table"])
    holder, queue = (
        LakeQueue(str(tmp_path / "root"), clock=clock).queue("orders", table_options=patient) for _ in range(2)
    )
    queue.send("2")
    slow, real, found = lease(holder), Counted.__call__, list[list[int]]()

    def pause(store: Counted, environ: object_store.Environ, start: Any) -> Any:
        if environ["REQUEST_METHOD"] == "PUT" and re.search(ENTRY, environ["PATH_INFO"]) and not found:
            found.append([])
            clock.advance(61)
            found[0] = waiting(queue)  # which blocks the slow delivery
        return real(store, environ, start)

    monkeypatch.setattr(Counted, "__call__", pause)
    with pytest.raises(LeaseLost):
        slow.append([{"id": 2}])
    assert (found, stored(table)) == ([[2]], [1])
    assert lease(queue).append([{"id": 2}]) == 1
    assert (stored(table), waiting(queue)) == ([1, 2], [])
