"""The catalog was put back to before a queue existed, and its messages are found again (DUR-7)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from concurrency.harness import apart, drain
from concurrency.steps import at
from insides import compact
from lakequeue import DamagedTable, InvalidParameterValue, LakeQueue, Queue, QueueDoesNotExist
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.catalog import Catalog
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace

LOST = "has messages, and no row in the catalog"


def send(queue: Queue, body: str) -> None:
    queue.send(body, group_id="g", dedup_id=body) if queue.fifo else queue.send(body)


def lost(root: Path, clock: ManualClock, name: str = "orders", shards: int = 1) -> Queue:
    """A queue with the message `a` in a process that runs on; the catalog is put back to before it existed."""
    lake = apart(root, clock, 1)[0]
    lake.create_queue("others").send("x")
    shutil.copytree(root / "queues", root.parent / "copy")
    queue = lake.create_queue(name, fifo=name.endswith(".fifo"), shards=shards, tags={"team": "blue"})
    send(queue, "a")
    shutil.rmtree(root / "queues")
    shutil.move(root.parent / "copy", root / "queues")
    return queue


def a_queue_that_the_catalog_lost_is_not_replaced(root: Path, clock: ManualClock) -> None:
    lost(root, clock)
    lake = apart(root, clock, 1)[0]
    for update in (False, True):
        with pytest.raises(DamagedTable, match=f"{LOST}; `lakequeue repair orders` lists it again"):
            lake.create_queue("orders", update=update)
            pytest.fail("a second queue has the name", pytrace=False)
    assert len(list((root / "q").iterdir())) == 2


@pytest.mark.spec("DUR-7")
@pytest.mark.parametrize(("name", "shards"), [("orders", 1), ("orders", 2), ("orders.fifo", 1)])
def test_a_lost_queue_is_listed_again_by_its_name(
    tmp_path: Path, clock: ManualClock, name: str, shards: int
) -> None:
    running = lost(tmp_path / "root", clock, name, shards)
    lake = apart(tmp_path / "root", clock, 1)[0]
    assert [finding.problem for finding in lake.check(name) if finding.damage] == [LOST]
    [told] = lake.repair()
    assert LOST in told.notes[0] and not told.steps
    [done] = lake.repair(name, apply=True)
    assert done.applied and lake.check() == [] == lake.repair(name) == lake.repair()
    send(running, "b")
    clock.advance(2)
    send(running, "c")
    assert sorted(drain(apart(tmp_path / "root", clock, 1)[0].create_queue(name, fifo="." in name))) == list("abc")


def a_process_that_has_the_queue_open_notices(root: Path, clock: ManualClock) -> None:
    running = lost(root, clock)
    clock.advance(1)
    for _ in range(2):
        for verb in (lambda: running.send("b"), running.receive, running.counts, running.peek):
            with pytest.raises(DamagedTable, match=LOST):
                verb()
                pytest.fail("nobody else finds these messages", pytrace=False)
    apart(root, clock, 1)[0].repair("orders", apply=True)
    running.send("b")
    [first] = running.receive()
    there = apart(root, clock, 1)[0].queue("orders")
    there.delete(first.receipt_handle)  # by the key of the new row
    assert drain(there) == ["b"]


@pytest.fixture
def replaced(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[LakeQueue]:
    """A root in which another queue has got the name, as with earlier releases."""
    lost(tmp_path / "root", clock)
    lake = apart(tmp_path / "root", clock, 1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "hidden", lambda *_: [])
        lake.create_queue("orders").send("b")
    yield lake


@pytest.mark.spec("DUR-7")
def test_of_two_queues_of_a_name_each_gets_it_in_turn(replaced: LakeQueue, clock: ManualClock) -> None:
    def entry() -> LakeQueue:
        return apart(replaced.root, clock, 1)[0]

    for told in (entry().repair("orders"), entry().repair("orders", apply=True, force=True), entry().repair()):
        assert [LOST in note for each in told for note in each.notes] == [True]
        assert not any(each.steps or each.applied for each in told)
    assert [finding.problem for finding in entry().check("orders")] == [LOST]
    for body in "abab":
        second = entry().queue("orders")
        [planned] = entry().repair("orders", adopt=True)
        [done] = entry().repair("orders", adopt=True, apply=True)
        assert done.applied and done.notes == planned.notes and "no longer listed" in done.notes[1]
        assert [message.body for message in entry().queue("orders").peek()] == [body]
        clock.advance(1)
        with pytest.raises(DamagedTable, match=LOST):
            second.send("c")
        compact(entry())
    assert sorted(row.name for row in entry()._runtime.rows()) == ["orders", "others"]


@pytest.mark.spec("DUR-7")
def test_one_of_the_two_can_be_emptied_and_deleted(replaced: LakeQueue, clock: ManualClock) -> None:
    assert drain(apart(replaced.root, clock, 1)[0].queue("orders")) == ["b"]
    apart(replaced.root, clock, 1)[0].delete_queue("orders")
    lake = apart(replaced.root, clock, 1)[0]
    [done] = lake.repair("orders", apply=True)
    assert done.applied and drain(lake.queue("orders")) == ["a"] and lake.check() == []


@pytest.mark.spec("DUR-7", "QUE-15")
def test_a_creation_that_was_killed_keeps_nobody_from_the_name(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = apart(tmp_path, clock, 1)[0]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        at(patch, Catalog, "put", KeyboardInterrupt())
        lake.create_queue("orders")
    apart(tmp_path, clock, 1)[0].create_queue("orders").send("a")
    with pytest.raises(QueueDoesNotExist):
        lake.repair("other")


@pytest.mark.spec("QUE-15")
def test_a_queue_that_is_made_and_used_meanwhile_is_opened(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = apart(tmp_path, clock)
    there.create_queue("others")
    at(monkeypatch, Catalog, "hidden", lambda: there.create_queue("orders").send("a"))
    assert drain(here.create_queue("orders")) == ["a"]


@pytest.mark.spec("DUR-7")
def test_adoption_needs_a_name(tmp_path: Path, clock: ManualClock) -> None:
    lake = apart(tmp_path, clock, 1)[0]
    lake.create_queue("orders")
    for call in (lambda: lake.repair(adopt=True), lambda: lake.repair("orders", adopt=True, clock=True)):
        with pytest.raises(InvalidParameterValue, match="adopt"):
            call()
    assert lake.repair("orders", adopt=True) == []


CALLS: dict[str, Callable[[Queue], object]] = {
    "send": lambda queue: queue.send("b"),
    "send_arrow": lambda queue: queue.send_arrow(pa.table({"body": ["b"]})),
    "set_attributes": lambda queue: queue.set_attributes(delay=1),
    "set_attributes of shards": lambda queue: queue.set_attributes(shards=3),
}


@pytest.mark.spec("DUR-7", "QUE-25")
@pytest.mark.parametrize("changes", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_attributes_that_the_shards_have_survive_the_catalog(
    tmp_path: Path, clock: ManualClock, call: str, changes: int
) -> None:
    """The catalog is put back to before they were set, for the first time or again."""
    root, [running, lake] = tmp_path / "root", apart(tmp_path / "root", clock)
    open_one, queue = running.create_queue("orders"), lake.create_queue("orders")
    for number in range(changes):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(root / "queues", tmp_path / "copy")
        queue.set_attributes(visibility_timeout=40 + number, shards=2)
    queue.send("a")
    shutil.rmtree(root / "queues")
    shutil.move(tmp_path / "copy", root / "queues")
    for each in (apart(root, clock, 1)[0].queue("orders"), open_one):
        try:
            CALLS[call](each)
        except DamagedTable as error:  # once, in the process that has read the log that is gone
            assert each is open_one and "is not what this process read" in str(error)
            CALLS[call](each)
    seen = apart(root, clock, 1)[0].queue("orders")
    kept = seen.attributes(["visibility_timeout", "delay", "shards"])
    assert kept["visibility_timeout"] == 39 + changes
    assert kept["delay"] == (call == "set_attributes") and kept["shards"] == (3 if "shards" in call else 2)
    shards = seen._runtime.shards
    assert {shard.ledger.query(lambda machine: machine.attributes_version) for shard in shards} == {
        seen._runtime.row.attributes_version
    }


MUTATIONS = [
    Mutation(
        "no directory is looked at before a queue is made",
        replace(Catalog, "hidden", lambda *_: []),
        {a_queue_that_the_catalog_lost_is_not_replaced: "DUR-7"},
    ),
    Mutation(
        "nobody looks at the row of an open queue",
        replace(OpenQueue, "_check_row", lambda *_: None),
        {a_process_that_has_the_queue_open_notices: "DUR-7"},
    ),
]


@pytest.mark.spec("DUR-7")
@each_case(MUTATIONS)
def test_the_rule_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path, clock: ManualClock) -> None:
    case.run(lambda _: (tmp_path / "root", clock), (DamagedTable, pytest.fail.Exception))
