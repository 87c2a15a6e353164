"""Roots of an older lakequeue: read as they are, upgraded in place, and then refused by the older one."""

from __future__ import annotations

import logging
import tarfile
from contextlib import suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from concurrency.harness import apart, check_log, drain
from concurrency.steps import WRITES, Killed, at
from lakequeue import LakeQueue, QueueClientError, RedrivePolicy
from lakequeue.cli import app
from lakequeue.model import attributes
from lakequeue.operations import move
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table
from lakequeue.testing import ManualClock

MADE = Path(__file__).parents[1] / "data" / "root-0.2.tar.gz"
pytestmark = pytest.mark.spec("DUR-43")


@pytest.fixture
def clock() -> ManualClock:
    """A clock that starts soon after the root was made."""
    return ManualClock(datetime(2026, 11, 24, tzinfo=timezone.utc))


@pytest.fixture
def lq(tmp_path: Path, clock: ManualClock) -> LakeQueue:
    """A root made by lakequeue 0.2, see tests/data/make_root_0_2.py."""
    with tarfile.open(MADE) as archive:
        archive.extractall(tmp_path, filter="data")
    return LakeQueue(str(tmp_path / "root"), clock=clock)


def layouts(lq: LakeQueue) -> list[int]:
    [afresh] = apart(lq.root, lq.clock, 1)
    return sorted(row.layout_version for row in afresh._runtime.rows())


def use(lq: LakeQueue, clock: ManualClock) -> None:
    """Checks what is in the root, and that its queues work."""
    orders, dead, kept, letters = map(lq.queue, ("orders", "dead", "kept", "letters.fifo"))
    orders.send_arrow(pa.table({"body": ["again"]}), send_id="import")
    assert orders.tags() == {"team": "a"}
    assert dead.redrive() == 1
    orders.send("new")
    check_log(orders, redriven=True)
    expected = {*(f"order {n}" for n in range(5)), *(f"bulk {n}" for n in range(20)), "new"}
    assert {*drain(orders), *drain(dead)} == expected | {"moved"}
    assert kept.rewind(datetime(2026, 11, 23, tzinfo=timezone.utc)) == 2
    assert sorted(drain(kept)) == [f"kept {n}" for n in range(4)]
    received = letters.receive(10)
    assert {(message.group_id, message.body) for message in received} == {
        ("ab"[n % 2], f"letter {n}") for n in range(4)
    }
    letters.delete_batch(received)
    assert not any(summary.failures for summary in lq.compact())


def test_a_root_of_0_2_works_as_it_is(lq: LakeQueue, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lakequeue"):
        use(lq, clock)
    assert [record.message for record in caplog.records] == [
        f"{lq.root} has layout version 4, of an older lakequeue; `lakequeue upgrade` brings it to 5"
    ]
    assert set(layouts(lq)) == {4}
    lq.create_queue("young")
    assert set(layouts(lq)) == {4}, "0.2 would refuse the whole root"


def test_an_upgraded_root_has_what_it_had(lq: LakeQueue, clock: ManualClock) -> None:
    before = {queue.name: queue.counts() for queue in lq.all_queues()}
    assert not lq.check(), "its files and entries have no checksums"
    assert lq.upgrade() == 4  # one was deleted
    assert not lq.check()
    assert layouts(lq) == [5] * 5
    assert {queue.name: queue.counts() for queue in lq.all_queues()} == before
    assert lq.upgrade() == 0
    [afresh] = apart(lq.root, clock, 1)
    use(afresh, clock)
    afresh.create_queue("young")
    assert set(layouts(lq)) == {5}


@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
def test_an_upgrade_that_is_killed_at_any_commit_is_repeated(
    lq: LakeQueue, clock: ManualClock, landed: bool
) -> None:
    for dying in count(1):
        [process] = apart(lq.root, clock, 1)
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            at(patch, Table, WRITES, Killed(), number=dying, landed=landed)
            process.upgrade()
            break
        assert len(set(layouts(lq))) == 1
    assert dying > 2
    [afresh] = apart(lq.root, clock, 1)
    assert all(
        queue._runtime.row.attributes_version
        == afresh.queue(queue.name)._runtime.shards[0].ledger.query(lambda machine: machine.attributes_version)
        for queue in afresh.all_queues()
    )
    use(afresh, clock)


@pytest.mark.spec("QUE-39")
def test_an_upgrade_that_fails_after_its_commit_says_so(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        at(patch, OpenQueue, "announce_attributes", OSError(5, "Input/output error"), times=1_000)
        with pytest.raises(QueueClientError, match="the upgrade was done in part") as raised:
            lq.upgrade()
    assert raised.value.outcome_unknown and set(layouts(lq)) == {5}
    assert lq.upgrade() == 0


def test_an_older_lakequeue_refuses_an_upgraded_root_even_if_it_has_it_open(
    lq: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = apart(lq.root, clock)
    queue = older.queue("orders")
    queue.send("from 0.2")
    newer.upgrade()
    monkeypatch.setattr(layout, "LAYOUT_VERSION", 4)
    refused = f"^{lq.root} has layout version 5, this lakequeue knows 4: install a newer one$"
    [late] = apart(lq.root, clock, 1)
    for call in (lambda: queue.send("lost?"), queue.receive, late.all_queues, lambda: late.create_queue("x")):
        with pytest.raises(QueueClientError, match=refused):
            call()
    monkeypatch.setattr(layout, "LAYOUT_VERSION", 5)
    assert "lost?" not in drain(newer.queue("orders"))


def test_an_older_lakequeue_may_complete_the_moves_of_a_root_that_was_not_upgraded(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the whole target of a run for the key of a queue, and takes back what it cannot place."""
    marked: list[str] = []
    bring = move._bring

    def seen(queue: Any, shard: Any, outgoing: Any, target: Any) -> bool:
        marked.append(outgoing[0][1].target_key)
        return bring(queue, shard, outgoing, target)

    monkeypatch.setattr(move, "_bring", seen)
    lq.queue("orders").set_attributes(redrive_policy=RedrivePolicy("dead", 1))
    bodies = [message.body for message in lq.queue("orders").receive(10, visibility_timeout=0)]
    lq.queue("orders").receive()
    lq.queue("dead").redrive(destination=lq.queue("kept"))
    keys = {row.name: row.key for row in lq._runtime.rows()}
    assert bodies and set(marked) == {keys["dead"], keys["kept"]}


def test_a_copy_into_a_new_root_has_the_new_layout(lq: LakeQueue, clock: ManualClock, tmp_path: Path) -> None:
    copy = LakeQueue(str(tmp_path / "copy"), clock=clock)
    lq.copy(copy)
    assert set(layouts(copy)) == {5} and set(layouts(lq)) == {4}
    use(copy, clock)


def test_the_command_upgrades_and_asks_first(lq: LakeQueue) -> None:
    command = ["--root", lq.root, "upgrade"]
    asked = CliRunner().invoke(app, command)
    assert asked.exit_code == 2 and set(layouts(lq)) == {4}
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert done.exit_code == 0 and f"4 queues of {lq.root} upgraded" in done.output  # one was deleted
    assert "is up to date" in CliRunner().invoke(app, [*command, "--yes"]).output


@pytest.mark.spec("DUR-71")
def test_an_attribute_of_a_newer_version_is_no_damage(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = LakeQueue(str(tmp_path), clock=clock)
    newer.create_queue("later", rate_limit="5/s").send("precious")
    newer.create_queue("plain")
    known = attributes._BY_WIRE["RateLimit"]
    monkeypatch.delitem(attributes._BY_WIRE, "RateLimit")
    [older] = apart(tmp_path, clock, 1)
    with pytest.raises(QueueClientError, match="unknown attribute RateLimit of a queue: install a newer"):
        older.queue("later")
    assert not [finding for finding in older.check() if finding.damage]
    assert older.repair(apply=True, force=True) == []
    older.queue("plain").send("usable")
    monkeypatch.setitem(attributes._BY_WIRE, "RateLimit", known)
    [again] = apart(tmp_path, clock, 1)
    assert [message.body for message in again.queue("later").receive()] == ["precious"]
