"""Requests that single operations make to an object store: one after the other, so they are the latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import pytest
from benchmarks.object_store import Counted
from benchmarks.store import COUNTING, CREATING, REQUESTS

from concurrency.harness import apart
from conformance.harness import Call
from consumer.harness import Running
from insides import engine_of, shard_of
from lakequeue import (
    Consumer,
    Context,
    InvalidParameterValue,
    LakeQueue,
    Message,
    NoRenewal,
    Queue,
    QueueDoesNotExist,
    SystemClock,
)
from lakequeue.entry_verbs import doctor, gone, presence, running_consumers, store_requests
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.serve.metrics import _StoreRequests
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Change, commit
from lakequeue.storage.layout import receipts_path
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace, shown_by
from objectstore.servers import never_confirm, requests


@pytest.fixture(autouse=True)
def unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    never_confirm(monkeypatch)


def counted(store: Counted, queue: Queue) -> dict[str, int]:
    """Most requests of each operation in some rounds."""
    handles: list[str] = []

    def receive() -> None:
        handles.extend(message.receipt_handle for message in queue.receive())

    calls: dict[str, Callable[[], object]] = {
        "send": lambda: queue.send("a"),
        "receive": receive,
        "delete": lambda: queue.delete(handles.pop()),
        "empty receive": receive,
    }
    rounds = [{name: requests(store, call).total() for name, call in calls.items()} for _ in range(4)]
    return {name: max(each[name] for each in rounds) for name in calls}


def aged(lq: LakeQueue, local: Path, version: int) -> Queue:
    """A queue whose logs have this version, made on a disk, which is quicker: with checkpoints, and trimmed."""
    made = LakeQueue(str(local), engine="point").create_queue("orders")
    shard, number = shard_of(made), count(1)

    def commit_nothing(table: Table) -> None:
        assert commit(table, Change({}, {"number": next(number)}, partial(table.add, []), None))

    tables: list[Callable[[], Table]] = [
        lambda: shard.sender._open_appender().table,
        lambda: shard.ledger._open_ledger().table,
    ]
    while min(table().version for table in tables) < version:
        made.send("a")
        made.delete(made.receive()[0].receipt_handle)
        for table in tables:
            for _ in range(min(30, version - 5 - table().version)):
                commit_nothing(table())
    folder, files = engine_of(lq).store.folder(lq.root), [path for path in local.rglob("*") if path.is_file()]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: folder.write(str(path.relative_to(local)), path.read_bytes()), files))
    return lq.queue("orders")


@pytest.mark.parametrize("version", [10, pytest.param(940, marks=pytest.mark.slow)])
def test_single_operations_make_few_requests_at_any_age_of_the_log(
    store: Counted, lq: LakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("lakequeue.storage.engines.log_trimming.READING", 0)
    never_confirm(monkeypatch)
    here = aged(lq, tmp_path / "root", version)
    log = engine_of(lq).store.folder(receipts_path(lq.root, here.key, 0))
    assert log.exists(entry_name(1)) == (version < 200)
    there = apart(lq.root, SystemClock(), 1)[0].queue("orders")
    for queue in here, there, here:  # to version 990 and something: there is a checkpoint at 1,000
        counted(store, queue)  # opens the tables, or reads what the other one did
        found = counted(store, queue)
        assert found.keys() == REQUESTS.keys()
        assert all(found[name] <= bound for name, bound in REQUESTS.items()), found


@pytest.mark.spec("QUE-1")
def test_creating_a_queue_makes_few_requests(store: Counted, lq: LakeQueue) -> None:
    first = requests(store, lambda: lq.create_queue("first"))
    assert first.total() <= 20, first  # with the root
    known = requests(store, lambda: lq.create_queue("second"))
    assert known.total() <= CREATING, known
    for number in range(20):
        lq.create_queue(f"more-{number}")
    [other] = apart(lq.root, SystemClock(), 1)
    listed = requests(store, other.list_queues)
    created = requests(store, lambda: other.create_queue("last"))
    assert created.total() <= CREATING + 2, created  # its first one compares clocks
    assert {queue.name for queue in lq.list_queues()} >= {"first", "second", "more-19", "last"}
    assert listed["LIST"] == 1, listed


def test_counts_of_a_new_process_make_few_requests(store: Counted, lq: LakeQueue) -> None:
    for name in ("first", "second"):
        lq.create_queue(name).send("a")
    [other] = apart(lq.root, SystemClock(), 1)
    made = requests(store, lambda: other.queue("second").counts())
    assert made.total() <= COUNTING, made


def test_the_first_receive_of_a_process_reads_each_log_once(store: Counted, lq: LakeQueue) -> None:
    lq.create_queue("orders")
    [other] = apart(lq.root, SystemClock(), 1)
    queue = other.queue("orders")
    queue.attributes()
    made = requests(store, queue.receive)
    assert made == {"LIST": 2, "GET": 3}, made  # the ledger has a file
    assert requests(store, queue.receive).total() == 2


def test_a_lost_race_reads_the_winners_commit_once(
    store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_confirm(monkeypatch)
    queues = [lq.create_queue("orders"), *(other.queue("orders") for other in apart(lq.root, SystemClock(), 1))]
    handles = []
    for queue in queues:
        queue.send("a")
        handles += [message.receipt_handle for message in queue.receive()]
    queues[0].send("b")
    lost = requests(store, lambda: queues[1].send("c"))
    # files and entries of both tries; the winner's entry, and thrice none after it; files of others
    assert lost == {"PUT": 4, "GET": 4, "LIST": 1}, lost
    for queue in queues:
        queue.counts()
    queues[1].delete(handles.pop())
    # the ledger is decided on anew: from the file that the winner wrote, and the newest log, which is asked for
    lost = requests(store, lambda: queues[0].delete(handles.pop()))
    assert lost == {"PUT": 4, "GET": 4}, lost


@pytest.mark.spec("LPL-6")
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(("interval", "polls"), [(None, 26), (5, 12)])
def test_a_long_poll_on_an_empty_queue_polls_at_the_given_interval(
    store: Counted, shards: int, interval: float | None, polls: int
) -> None:
    clock = ManualClock()
    lq = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point", clock=clock, poll_interval=interval)
    queue = lq.create_queue("orders", shards=shards)
    queue.receive()
    for waiters in (1, 3):  # the others wait for the first one
        store.requests.clear()
        calls = [Call(clock, lambda: queue.receive(wait_time=20)) for _ in range(waiters)]
        calls[0].after(20)
        assert [call.join() for call in calls] == [[]] * waiters
        looks = store.requests.pop("HEAD", 0)  # one poll in sixteen looks whether another shard is served
        # each asks for the next entry of the log, and now and then for that of the ledger
        assert store.requests.total() <= shards * (polls + 3 + 6 * (waiters - 1)), store.requests
        assert looks <= 2 * waiters


@pytest.mark.spec("LPL-4", "QUE-25")
def test_a_long_poll_on_an_empty_queue_learns_of_all_changes(store: Counted) -> None:
    clock = ManualClock()
    lq = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point", clock=clock)
    queue, other = lq.create_queue("orders", receive_wait_time=20), apart(lq.root, clock, 1)[0]
    started, sent = clock.now(), Call(clock, queue.receive).after(7)
    other.queue("orders").send("a")
    clock.advance(1)
    [message] = sent.join()
    assert (sent.ended_at - started).total_seconds() <= 8
    hidden = Call(clock, queue.receive).after(7)
    other.queue("orders").change_visibility(message, 0)
    clock.advance(1)
    [message] = hidden.join()
    message.delete()
    started, shorter = clock.now(), Call(clock, queue.receive).after(7)
    other.queue("orders").set_attributes(receive_wait_time=8)
    clock.advance(10)
    assert shorter.join() == [] and (shorter.ended_at - started).total_seconds() <= 12
    deleted = Call(clock, lambda: pytest.raises(QueueDoesNotExist, queue.receive)).after(5)
    other.delete_queue("orders")
    clock.advance(2)
    deleted.join()


@pytest.mark.spec("RCV-1", "JOB-5")
@pytest.mark.parametrize("limit", [None, "600/s"])
def test_idle_priorities_are_asked_at_once_and_the_answers_are_new(
    store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, limit: str | None
) -> None:
    queue = lq.create_queue("orders", priorities=10, rate_limit=limit, rate_burst=limit and 600)
    other = apart(lq.root, SystemClock(), 1)[0].queue("orders")
    for each in (queue, other):  # opens the tables
        each.receive()
    looks, meeting = ShardLedger.look, Barrier(9 if limit is None else 10, timeout=60)

    def together(ledger: ShardLedger, number: int) -> None:
        meeting.wait()
        looks(ledger, number)

    monkeypatch.setattr(ShardLedger, "look", together)
    for priority in (0, 7, 9, 0):
        other.send(str(priority), priority=priority)
        found: list[Message] = []
        made = requests(store, lambda: found.extend(queue.receive(10)))  # noqa: B023
        assert [message.body for message in found] == [str(priority)] and not meeting.broken
        assert made.total() <= 2 * 10 + 10, made
        assert not other.receive()
        made = requests(store, queue.receive)
        # where this process has committed, the next entry, the one that it follows, and the one that was checked
        # last are looked at together
        assert made.pop("HEAD", 0) <= 2 * 4 and made.total() <= 2 * 10 + 2, made


@pytest.mark.spec("JOB-11")
def test_setting_a_limit_warns_of_a_bucket_that_is_small_for_a_store(
    lq: LakeQueue, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def burst_warnings() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "rate_burst" in record.getMessage()]
        caplog.clear()
        return found

    queue = lq.create_queue("calls", rate_limit="3/s")
    [line] = burst_warnings()
    assert line.startswith("calls may get less than its rate limit of 3/s: ")
    assert line.endswith("the bucket holds 1 s; rate_burst=15 holds 5 s")
    queue.set_attributes(visibility_timeout=50)
    queue.set_attributes(rate_burst=15)
    assert not burst_warnings()
    queue.set_attributes(rate_limit="20/s")
    assert len(burst_warnings()) == 1
    lq.create_queue("rare", rate_limit="10/m")
    LakeQueue(str(tmp_path)).create_queue("calls", rate_limit="3/s")
    assert not burst_warnings()


MUTATIONS = [
    Mutation(
        name,
        mutation,
        {shown_by(test_a_long_poll_on_an_empty_queue_learns_of_all_changes, lambda store: (store,)): "LPL-4"},
    )
    for name, mutation in {
        "take any shard for empty": replace(ShardMachine, "is_empty", True),
        "look for sends to an empty shard in vain": replace(
            "lakequeue.runtime.shard_queries._has_news", lambda _: False
        ),
    }.items()
]


@each_case(MUTATIONS)
def test_a_wait_misses_what_it_does_not_look_for(
    store: Counted, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.harness.PATIENCE", 5)
    case.run(lambda _: (store,))


@pytest.mark.spec("LPL-6")
@pytest.mark.parametrize(("interval", "quiet", "busy"), [(None, 20, 40), (5, 12, 15)])
def test_a_queue_that_was_idle_for_a_minute_is_asked_less_often(
    store: Counted, interval: float | None, quiet: int, busy: int
) -> None:
    clock = ManualClock()
    lq = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point", clock=clock, poll_interval=interval)
    queue = lq.create_queue("orders")
    for _ in range(3):
        Call(clock, lambda: queue.receive(wait_time=20)).after(20).join()
    store.requests.clear()
    Call(clock, lambda: queue.receive(wait_time=20)).after(20).join()
    assert 0 < store.requests.total() <= quiet, store.requests
    queue.send("a")
    assert queue.receive(wait_time=20)
    store.requests.clear()
    Call(clock, lambda: queue.receive(wait_time=20)).after(20).join()
    assert store.requests.total() > busy, "right after activity it looks as often as before"


@pytest.mark.spec("JOB-14")
def test_to_be_seen_costs_a_consumer_a_write_a_minute(store: Counted) -> None:
    clock = ManualClock()
    lq = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point", clock=clock)
    reports = presence("packer", [lq.create_queue("orders")], list, lambda: (None, None, None))
    written = requests(store, lambda: clock.advance(1))
    assert written.total() == 1
    assert requests(store, lambda: clock.advance(59)).total() == 0
    assert requests(store, lambda: clock.advance(1)) == written
    assert requests(store, lambda: running_consumers(lq)).total() == 2, "a listing, and a read"
    assert requests(store, reports.stop).total() == 2
    assert running_consumers(lq) == {}


@pytest.mark.spec("HBN-26")
def test_a_consumer_looks_once_a_second_for_messages_that_others_deleted(store: Counted) -> None:
    clock = ManualClock()
    lq = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point", clock=clock)
    queue = lq.create_queue("orders", visibility_timeout=600)
    ids = [queue.send(str(number)).message_id for number in range(4)]
    ended: list[str] = []

    def handle(message: Message, context: Context) -> None:
        if not context.sleep(300):
            ended.append(message.body)

    consumer = Consumer(queue, handle, concurrency=4, renewal=NoRenewal())
    [other] = apart(lq.root, clock, 1)
    running = Running(clock, consumer, {})
    try:
        clock.advance(1)
        store.requests.clear()
        clock.advance(10)
        assert 8 <= store.requests.total() <= 11, store.requests  # for all four, which nothing else asks about
        assert other.queue("orders").cancel(ids[2])
        clock.advance(2)
        assert ended == ["2"]
    finally:
        consumer.stop(timeout=0)
        running.join()


@pytest.mark.spec("HBN-26")
def test_a_look_for_deleted_messages_makes_few_requests(store: Counted) -> None:
    clock = ManualClock()
    lq = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point", clock=clock)
    queue, other = lq.create_queue("orders"), apart(lq.root, clock, 1)[0].queue("orders")
    ids = [queue.send(str(number)).message_id for number in range(4)]
    handles = [message.receipt_handle for message in queue.receive(4)]
    assert requests(store, lambda: gone(queue, handles)).total() == 0, "the receive has just read the ledger"
    for _ in range(2):
        clock.advance(1)
        assert requests(store, lambda: gone(queue, handles)).total() == 1
    assert other.cancel(ids[1])
    clock.advance(1)
    found = list[str]()
    made = requests(store, lambda: found.extend(gone(queue, handles)))
    assert found == [handles[1]] and made.total() <= 4, made


def test_a_send_of_the_same_process_wakes_a_long_poll_at_once(store: Counted) -> None:
    clock = ManualClock()
    lq = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point", clock=clock, poll_interval=60)
    queue = lq.create_queue("orders")
    started, call = clock.now(), Call(clock, lambda: queue.receive(wait_time=20)).after(15)
    queue.send("a")
    assert [message.body for message in call.join()] == ["a"]
    assert call.ended_at - started == timedelta(seconds=15)


def test_requests_are_counted_by_kind_and_for_each_message_that_consumers_received(
    store: Counted, lq: LakeQueue
) -> None:
    clock = ManualClock()
    lake = LakeQueue(lq.root, engine="point", clock=clock)
    queue, other = lake.create_queue("orders"), apart(lq.root, clock, 1)[0]
    assert doctor(other).store_use is None
    store.requests.clear()
    before = store_requests(lake)
    running = Running(clock, consumer := Consumer(queue, lambda message, context: None), {})
    try:
        for _ in range(5):
            queue.send("a")
            clock.advance(3)
        clock.advance(50)
        own = Counter(store_requests(lake)) - Counter(before)
        assert own == {kind.lower(): number for kind, number in store.requests.items() if kind != "POST"}
        sampled = [sample for family in _StoreRequests(lake).collect() for sample in family.samples]
        assert {sample.labels["kind"]: sample.value for sample in sampled} == store_requests(lake)
        use = doctor(other).store_use
        now = store_requests(lake)
        assert use is not None and use.received == 5 and use.requests["list"] == now["list"]
        assert now["put"] - use.requests["put"] == 1, "the file that says it"
        assert f"{use.requests['put'] / 5:.2f} put" in str(use) and str(use).endswith("a message (5 received)")
    finally:
        consumer.stop(timeout=0)
        running.join()


@pytest.mark.parametrize("wrong", [0, 0.01, -1, 4_000, "often", float("inf"), True])
def test_a_poll_interval_out_of_range_is_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(InvalidParameterValue, match="poll_interval"):
        LakeQueue(str(tmp_path), poll_interval=wrong)  # type: ignore[arg-type]
