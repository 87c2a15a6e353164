"""Another program rewrites tables in full, as OPTIMIZE does: messages are read in order, each once (DUR-5)."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conformance.damage import Victim, change, entries, live
from lakequeue import DamagedTable, LakeQueueError, Queue
from lakequeue.storage import snapshot
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.messages.read import LogFile
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace, shown_by

BODIES = [str(number) for number in range(19, 9, -1)]
"""In the order in which they are sent; another program sorts them."""


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    return victim_at(tmp_path / "root", clock)


def victim_at(root: Path, clock: ManualClock) -> Victim:
    victim = Victim(str(root), clock)
    victim.lake().create_queue("orders")
    victim.send(*BODIES)
    return victim


def sort(victim: Victim) -> None:
    """Rewrites the log in the order of bodies, by delta-rs."""
    change(victim.messages, lambda table: table.optimize.z_order(["body"]))


def add_again(table: Path, version: int) -> None:
    """Adds the files of an entry again under other names, as a compaction that overlaps with it does."""
    actions = [json.loads(line) for line in (table / entry_name(version)).read_text().splitlines()]
    lines = []
    for add in (action["add"] for action in actions if "add" in action):
        path = add["path"].replace("%20", " ").replace("%3A", ":").replace("%2520", "%20").replace("%253A", ":")
        found = next(file for file in table.rglob("*.parquet") if file.name == Path(path).name)
        twin = found.with_name(found.name.replace("part-0", "part-1"))
        shutil.copy(found, twin)
        lines.append(json.dumps({"add": add | {"path": add["path"].replace("part-0", "part-1")}}))
    newest = len(entries(table)) + int(entries(table)[0].stem)
    info = {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "other", "timestamp": 1}}
    (table / entry_name(newest)).write_text("\n".join([json.dumps(info), *lines]) + "\n")


def what_was_sorted_is_in_order(victim: Victim) -> None:
    sort(victim)
    assert [message.body for message in victim.queue.peek(limit=100)] == BODIES


def leased(queue: Queue) -> list[str]:
    lease = queue.lease()
    assert lease is not None
    return [body for batch in lease.batches(columns=["body"]) for body in batch["body"].to_pylist()]


@pytest.mark.spec("DUR-5")
def test_messages_that_another_program_reordered_are_read_in_order(victim: Victim) -> None:
    what_was_sorted_is_in_order(victim)
    assert [message.body for message in victim.queue.receive(3, visibility_timeout=0)] == BODIES[:3]
    assert leased(victim.queue) == BODIES
    victim.clock.advance(24 * 3600)
    assert victim.drain() == BODIES


@pytest.mark.spec("DUR-5")
@pytest.mark.parametrize("idle", [False, True])
def test_the_compactor_rewrites_files_of_other_programs(
    victim: Victim, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sort(victim)
    [found] = victim.lake().check()
    assert not found.damage and "in order" in found.problem
    if idle:
        victim.clock.advance(2 * 3600)
    else:  # it is closed
        monkeypatch.setattr("lakequeue.storage.messages.append.SEGMENT_AGE", 0)
        victim.clock.advance(1)
        victim.send("later")
    victim.lake().compact()
    assert not [path for path in live(victim.messages) if path.name.startswith("part-")]
    assert victim.lake().check() == []
    assert victim.drain() == [*BODIES, *([] if idle else ["later"])]


@pytest.mark.spec("DUR-31")
def test_a_repair_rewrites_files_of_other_programs_without_loss(victim: Victim) -> None:
    sort(victim)
    [report] = victim.lake().repair(apply=True)
    assert report.applied and (report.lost, report.again, report.notes) == ([], [], [])
    assert victim.lake().check() == []
    assert victim.drain() == BODIES


@pytest.mark.spec("DUR-5")
def test_a_vacuum_with_the_default_retention_removes_nothing_that_is_needed(victim: Victim) -> None:
    sort(victim)
    lease = victim.queue.lease(3)
    assert lease is not None
    for path in Path(victim.root).rglob("*"):
        os.utime(path, (1e9, 1e9))
    for table in (victim.messages, victim.receipts, Path(victim.root, "queues")):
        change(table, lambda delta: delta.vacuum(dry_run=False))
    lease.release()
    victim.send("later")
    assert victim.drain() == [*BODIES, "later"]
    assert not [each for each in victim.lake().check() if each.damage]


@pytest.mark.spec("DUR-5", "DUR-31")
def test_rows_that_were_emptied_are_not_missing(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakequeue.storage.messages.merge_segments.CUT_BYTES", 0)
    monkeypatch.setattr("lakequeue.storage.messages.append.SEGMENT_AGE", 0)
    queue = victim.queue
    oldest, *others = queue.receive(7, visibility_timeout=3_600)
    queue.delete_batch(others).raise_for_failures()
    victim.clock.advance(1)
    victim.send("later")
    victim.lake().compact()
    assert None in [row for path in live(victim.messages) for row in pq.read_table(path)["body"].to_pylist()]
    sort(victim)
    assert [found.damage for found in victim.lake().check()] == [False]
    [report] = victim.lake().repair(apply=True)
    assert report.applied and (report.lost, report.again, report.notes) == ([], [], [])
    victim.clock.advance(3_600)
    assert victim.drain() == [oldest.body, *BODIES[7:], "later"]


@pytest.mark.spec("DUR-5")
@pytest.mark.parametrize("sorted_before", [False, True])
def test_rows_that_two_compactions_left_twice_count_once(victim: Victim, sorted_before: bool) -> None:
    sort(victim)
    add_again(victim.messages, 11)
    if sorted_before:  # both in one file
        sort(victim)
    victim.send("later")
    assert [message.body for message in victim.queue.peek(limit=100)] == [*BODIES, "later"]
    assert not [each for each in victim.lake().check() if each.damage]
    assert victim.drain() == [*BODIES, "later"]


def what_was_written_over_is_noticed(victim: Victim) -> None:
    """Spark renames its entry on a local disk over one that came meanwhile. One of delta-rs is put so here."""
    writer, reader, other = victim.queue, victim.queue, Path(victim.root).with_name("copy")
    shutil.copytree(victim.messages, other)
    change(other, lambda table: table.optimize.z_order(["body"]))
    writer.send("acknowledged")
    assert len(reader.peek(limit=100)) == len(BODIES) + 1
    written = [path for path in other.rglob("*") if path.is_file()]
    for path in sorted(written, key=lambda path: path.suffix == ".json"):
        place = victim.messages / path.relative_to(other)
        if not place.exists() or place.read_bytes() != path.read_bytes():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
    for call in (lambda: writer.send("refused"), lambda: reader.peek(limit=100)):  # each process once
        with pytest.raises(DamagedTable, match="is not what this process read"):
            call()
    writer.send("later")
    assert [message.body for message in reader.peek(limit=100)] == [*BODIES, "later"]


@pytest.mark.spec("DUR-5")
def test_two_messages_with_one_offset_are_damage(victim: Victim, clock: ManualClock, tmp_path: Path) -> None:
    other = victim_at(tmp_path / "other", clock)
    for each in (victim, other):
        sort(each)
    add_again(victim.messages, 11)
    [twin] = [path for path in live(victim.messages) if path.name.startswith("part-1")]
    shutil.copy(live(other.messages)[0], twin)
    with pytest.raises(DamagedTable):
        victim.receive()


@pytest.mark.spec("DUR-5")
def test_runs_of_a_ledger_that_two_compactions_left_twice_count_once(victim: Victim) -> None:
    victim.queue.delete(victim.queue.receive()[0])
    victim.queue.receive(2, visibility_timeout=0)
    change(victim.receipts, lambda table: table.optimize.z_order(["state"]))
    add_again(victim.receipts, len(entries(victim.receipts)) - 1)
    assert not [each for each in victim.lake().check() if each.damage]
    assert sorted(victim.drain()) == sorted(BODIES[1:])
    victim.lake().compact()
    assert victim.lake().check() == []


@pytest.mark.spec("DUR-5")
def test_a_warning_names_the_program_once(
    victim: Victim, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_known_programs", set())
    sort(victim)
    with caplog.at_level(logging.WARNING, "lakequeue"):
        victim.queue.peek()
        victim.drain()
    [text] = [record.getMessage() for record in caplog.records]
    assert "messages was rewritten by delta-rs" in text


@pytest.mark.spec("DUR-8")
def test_a_message_that_cannot_be_read_uses_up_no_receive(victim: Victim) -> None:
    what_cannot_be_read_was_not_received(victim)


def what_cannot_be_read_was_not_received(victim: Victim) -> None:
    file = live(victim.messages)[4]
    kept = file.read_bytes()
    file.unlink()
    assert victim.drain() == BODIES[:4] + BODIES[5:]
    assert victim.receive() == []  # it is hidden until its timeout
    for _ in range(3):
        victim.clock.advance(30)
        with pytest.raises(DamagedTable):
            victim.receive()
    file.write_bytes(kept)
    assert victim.receive() == []
    victim.clock.advance(30)
    [message] = victim.receive()
    assert (message.body, message.receive_count) == (BODIES[4], 1)


def first_of_each(_: LogFile, rows: pa.Table, __: object) -> pa.Table:
    return rows.filter(pa.array(np.append(True, np.diff(rows["position"].to_numpy()) != 0)))


MUTATIONS = [
    Mutation(
        "rows that are there twice count twice",
        replace(LogFile, "_once", lambda _, rows, __: rows),
        {shown_by(test_rows_that_two_compactions_left_twice_count_once, lambda victim: (victim, False)): "DUR-5"},
    ),
    Mutation(
        "of two messages with one offset the first counts",
        replace(LogFile, "_once", first_of_each),
        {
            shown_by(
                test_two_messages_with_one_offset_are_damage,
                lambda victim: (victim, victim.clock, Path(victim.root).parent),
            ): "DUR-5"
        },
    ),
    Mutation(
        "rows are read as they lie in a file",
        replace("lakequeue.storage.messages.read.are_in_order", lambda *_: True),
        {what_was_sorted_is_in_order: "DUR-5"},
    ),
    Mutation(
        "what cannot be read counts as received",
        replace("lakequeue.operations.receive._uncount", lambda *_: None),
        {what_cannot_be_read_was_not_received: "DUR-8"},
    ),
    Mutation(
        "any entry is the one that was written",
        replace("lakequeue.storage.snapshot.Snapshot._compare", lambda *_: None),
        {what_was_written_over_is_noticed: "DUR-80"},
    ),
]


@each_case(MUTATIONS)
def test_the_rule_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path, clock: ManualClock) -> None:
    case.run(lambda _: (victim_at(tmp_path / "root", clock),), (LakeQueueError, pytest.fail.Exception))
