"""What a queue needs of an object store, on each of them: files created once, and every verb without Spark."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from concurrency.harness import apart, at_once, check_log, drain
from insides import engine_of, forget
from lakequeue import LakeQueue, QueueDoesNotExist, RootDoesNotExist, SendEntry
from lakequeue.storage import layout
from lakequeue.storage.bulk import manifests
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock
from objectstore.servers import Bucket

pytestmark = pytest.mark.objectstore

RACERS = 8
every_server = pytest.mark.parametrize("bucket", ["s3", "azure", "gcs"], indirect=True)


def again(lake: LakeQueue) -> LakeQueue:
    """An entry that knows nothing yet, as in another process."""
    forget()
    options = engine_of(lake).store.options
    return LakeQueue(lake.root, engine="point", clock=lake._runtime.clock, storage_options=options)


@every_server
def test_of_those_who_create_one_file_at_the_same_time_one_does(bucket: Bucket) -> None:
    store = Store(bucket.new_root(), bucket.options)
    clients = [store._client(store.root) for _ in range(RACERS)]

    def create(racer: int, race: int) -> bool:
        try:
            obstore.put(clients[racer], f"{race}", f"{racer}".encode(), mode="create")
        except AlreadyExistsError:
            return False
        return True

    for race in range(150):
        done = at_once([partial(create, racer, race) for racer in range(RACERS)])
        assert sorted(done) == [False] * (RACERS - 1) + [True], race
        assert bytes(obstore.get(clients[0], f"{race}").bytes()) == f"{done.index(True)}".encode()


@every_server
def test_of_those_who_commit_on_one_version_one_does(bucket: Bucket) -> None:
    store = Store(bucket.new_root(), bucket.options)
    engine, path = Engine(store), layout.messages_path(store.root, "k", 0)
    engine.create(path, layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES)
    tables = [engine.open(path) for _ in range(4)]

    def commit(racer: int, race: int) -> bool:
        try:
            tables[racer].add([], {"send": race + 1}, f"{racer} in {race}")
        except LostRace:
            return False
        return True

    for race in range(20):
        for table in tables:
            table.refresh()
        done = at_once([partial(commit, racer, race) for racer in range(4)])
        assert sorted(done) == [False, False, False, True], race
        tables[0].refresh()
        assert tables[0].version == race + 1
        assert tables[0].landed(f"{done.index(True)} in {race}", race)


def test_messages_are_sent_received_changed_and_deleted(lake: LakeQueue, clock: ManualClock) -> None:
    queue = lake.create_queue("orders", visibility_timeout=30)
    queue.send("a", attributes={"kind": "käse 🧀", "picture": b"\x00\xff"})
    queue.send_batch([SendEntry(body) for body in "bcd"])
    other = again(lake).queue("orders")
    a, b = other.receive(2)
    assert (a.body, a.message_attributes["picture"].value, b.body) == ("a", b"\x00\xff", "b")
    other.delete(a.receipt_handle)
    other.change_visibility(b.receipt_handle, 0)
    assert [message.body for message in queue.receive(10)] == ["b", "c", "d"]
    clock.advance(30)
    counts = again(lake).queue("orders").counts()
    assert (counts.visible, counts.in_flight) == (3, 0)
    assert [queue.name for queue in again(lake).list_queues()] == ["orders"]


def test_deleted_messages_are_rewound_and_segments_compacted(
    lake: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakequeue.storage.messages.append.SEGMENT_COMMITS", 2)
    monkeypatch.setattr("lakequeue.storage.messages.merge_segments.TIER_SEGMENTS", 3)
    queue = lake.create_queue("orders", rewind_range=3_600)
    for number in range(8):
        queue.send(str(number))
    queue.delete_batch([message.receipt_handle for message in queue.receive(5)])
    for name in ("MESSAGES", "RECEIPTS", "QUEUES", "STATS"):
        monkeypatch.setattr(layout, f"{name}_RETENTION", layout.Retention(0, 0, 0, 0))
    clock.advance(60)
    for summary in again(lake).compact():
        assert summary.failures == []
    other = again(lake).queue("orders")
    assert other.rewind(clock.now() - timedelta(seconds=120)) == 5
    received = other.receive(10)
    assert [message.body for message in received] == list("01234567")
    other.delete_batch([message.receipt_handle for message in received])
    clock.advance(4_000)
    freed = [summary for summary in again(lake).compact() if summary.queue == "orders"]
    assert freed[0].failures == [] and freed[0].segments_dropped > 0
    assert again(lake).queue("orders").counts().visible == 0


def test_two_attempts_agree_on_one_manifest(lake: LakeQueue) -> None:
    queue = lake.create_queue("orders")
    folder = engine_of(lake).store.folder(layout.tables_path(lake.root, queue.key))
    mine, theirs = (manifests.Manifest("load", "bulk-load", version, []) for version in (1, 2))
    kept = [manifests.write_manifest(folder, each) for each in (mine, theirs)]
    assert kept[0] == kept[1] == mine
    assert manifests.load_manifest(folder, "load") == mine


def test_a_receive_from_an_emptied_root_says_that_it_may_have_been_emptied(lake: LakeQueue) -> None:
    queue = lake.create_queue("orders")
    with lake:
        assert queue.receive() == []
    engine_of(lake).store.folder(lake.root).remove_all()
    with pytest.raises(
        RootDoesNotExist, match=r"holds no queues; is it mounted, was it emptied\? See docs/operation/"
    ):
        queue.receive()


def test_a_deleted_queue_is_gone_and_its_name_can_be_used_again(lake: LakeQueue, clock: ManualClock) -> None:
    queue = lake.create_queue("orders")
    queue.send("a")
    sleeper = again(lake).queue("orders")
    assert sleeper.counts().visible == 1
    again(lake).delete_queue("orders")
    for call in (lambda: sleeper.send("lost?"), sleeper.receive, queue.counts):
        with pytest.raises(QueueDoesNotExist):
            call()
    clock.advance(100)
    new = again(lake).create_queue("orders")
    new.send("b")
    assert [message.body for message in again(lake).queue("orders").receive(10)] == ["b"]
    clock.advance(24 * 3600)
    assert [summary.queue for summary in again(lake).compact() if summary.deleted] == ["orders"]
    folder = engine_of(lake).store.folder(lake.root)
    assert folder.folders("q") == [new.key]


# --- what a disk, which has locks, does otherwise


@pytest.mark.spec("DUR-42")
def test_an_erased_message_is_in_no_newest_file(s3_root: str) -> None:
    queue = LakeQueue(s3_root).create_queue("orders")
    sent = queue.send_batch([SendEntry(body) for body in ("a", "secret", "b")]).successful
    assert queue.erase(sent[1].message_id)
    assert queue.erase(sent[1].message_id) is False
    queue.send("c")
    assert [row.body for row in check_log(queue)] == ["a", "", "b", "c"]
    assert sorted(drain(queue)) == ["a", "b", "c"]


def test_messages_whose_files_were_dropped_meanwhile_are_no_error(s3_root: str, clock: ManualClock) -> None:
    """On stores no lock keeps the ledger that a process knows in step with the log."""
    idle, busy = apart(s3_root, clock)
    mine, other = idle.create_queue("orders", visibility_timeout=30), busy.queue("orders")
    for group in "xy":
        mine.send(group, group_id=group)
    for message in mine.receive(10):
        other.delete(message.receipt_handle)
    for number in range(80):
        other.send(str(number), group_id="z")
    received = 0
    while received < 68:
        messages = other.receive(68 - received)
        received += len(messages)
        other.delete_batch([message.receipt_handle for message in messages])
    assert busy.compact()[0].segments_dropped
    clock.advance(31)
    assert {message.body for message in mine.receive(100)} == {str(number) for number in range(68, 80)}
