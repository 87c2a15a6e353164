"""Requests that single operations make to an object store: one after the other, so they are the latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from benchmarks.object_store import Counted, environment, serve
from benchmarks.shards import REQUESTS

from concurrency.harness import apart
from lakequeue import LakeQueue, SystemClock
from lakequeue.storage.engines.point import PointEngine
from lakequeue.storage.engines.turns import ASK_AFTER, Turns
from lakequeue.storage.layout import receipts_path
from lakequeue.storage.stores import Store


@pytest.fixture(scope="module")
def store() -> Iterator[Counted]:
    server, application = serve()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(f"http://127.0.0.1:{server.server_port}").items():
            patch.setenv(name, value)
        yield application
    server.shutdown()


@pytest.fixture
def lq(store: Counted) -> LakeQueue:
    return LakeQueue(f"s3://lake/{uuid4().hex}", engine="point")


def requests(store: Counted, call: Callable[[], object]) -> Counter[str]:
    store.requests.clear()
    call()
    return Counter(store.requests)


def test_single_operations_make_few_requests_at_any_age_of_the_log(store: Counted, lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    handles: list[str] = []

    def receive() -> None:
        handles.extend(message.receipt_handle for message in queue.receive())

    calls: dict[str, Callable[[], object]] = {
        "send": lambda: queue.send("a"),
        "receive": receive,
        "delete": lambda: queue.delete(handles.pop()),
        "empty receive": receive,
    }
    assert calls.keys() == REQUESTS.keys()
    queue.send("first")
    receive()
    calls["delete"]()
    young, old = [
        [{name: requests(store, call).total() for name, call in calls.items()} for _ in range(20)] for _ in "ab"
    ]
    for name, bound in REQUESTS.items():
        assert max(each[name] for each in young) <= bound, name
        assert max(each[name] for each in old) <= bound, name


def test_two_processes_see_each_others_messages(lq: LakeQueue) -> None:
    lq.create_queue("orders", shards=2)
    one, two = (other.queue("orders") for other in apart(lq.root, SystemClock()))
    sent = {one.send("a").message_id, two.send("b").message_id, one.send("c").message_id}
    received = [*two.receive(2), *one.receive(2)]
    assert {message.message_id for message in received} == sent
    two.delete_batch([message.receipt_handle for message in received])
    assert one.counts().visible == one.counts().in_flight == 0


def test_a_busy_process_lets_one_that_keeps_losing_go_first(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = lq.create_queue("orders").key
    waits: list[float] = []
    monkeypatch.setattr("lakequeue.storage.engines.turns.sleep", waits.append)
    busy, slow = Turns(), Turns()
    tables = [PointEngine(Store()).open(receipts_path(lq.root, key, 0)) for _ in range(2)]
    with busy.timed():
        busy.give(tables[0])
    for lost in range(1, ASK_AFTER):
        slow.ask(tables[1], lost)
    tables[0].refresh()
    busy.give(tables[0])
    assert not waits
    slow.ask(tables[1], ASK_AFTER)
    tables[0].refresh()
    for _ in range(3):
        busy.give(tables[0])
        slow.give(tables[1])
    assert len(waits) == 1
