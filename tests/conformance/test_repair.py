"""`repair` on damaged tables reports lost and repeated messages exactly; all others come once."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from concurrency.steps import Killed, at, meanwhile
from conformance.damage import (
    DAMAGE,
    Victim,
    contents,
    empty,
    entries,
    give_twice,
    live,
    lose_catalog_row,
    permute,
    tear,
    victim_of_seven,
)
from conformance.harness import batch
from insides import engine_of, forget
from lakequeue import (
    DamagedTable,
    LakeQueueError,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    RedrivePolicy,
    Repair,
)
from lakequeue.cli import app
from lakequeue.cli.check import repair_text
from lakequeue.operations import repair as repairing
from lakequeue.storage import layout
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines import locks
from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.engines.locks import LockHeld
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.inspection.found_log import read_log
from lakequeue.storage.inspection.send_times import known_times, sent_between
from lakequeue.storage.inspection.shards import FoundShard, find_shard
from lakequeue.storage.inspection.unnamed_files import ids_of
from lakequeue.storage.repair import messages as mending
from lakequeue.storage.repair.ledger import RepairedLedger, repaired_ledger
from lakequeue.storage.repair.logs import log_steps
from lakequeue.storage.repair.steps import ASIDE, RepairStep
from lakequeue.storage.snapshot import Snapshot
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, shown_by


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    return victim_of_seven(tmp_path, clock)


@pytest.mark.spec("DUR-36")
def test_a_damaged_file_with_any_number_of_messages_costs_no_memory(victim: Victim) -> None:
    folder = LocalFolder(str(victim.messages))
    some = ids_of(read_log(folder), [(2, 4)])
    assert list(some) == [2, 3, 4] and ids_of(read_log(folder), [(2, 4), (7, 2**62)]) == some


LOST = {
    "file of messages gone": [4],
    "file of messages empty": [4],
    "file of messages torn": [4],
    "file of messages gone, and repaired by delta-rs": [4],
    "row deleted": [4],
    "log restored": [4, 5, 6],
}
"""Offsets that are lost, by kind of damage; no others are."""
AGAIN = {
    "last entry of the ledger empty": [0, 1, 2, 3, 4, 5, 6],
    "entry in the middle of the ledger empty": [0, 1, 2, 3, 4, 5, 6],
    "first entry of the ledger empty": [0, 1, 2, 3, 4, 5, 6],
    "first entry of the ledger gone": [0, 1, 2, 3, 4, 5, 6],
    "file of the ledger gone": [0, 1, 2, 3, 4, 5, 6],
    "file of the ledger empty": [0, 1, 2, 3, 4, 5, 6],
    "file of the ledger torn": [0, 1, 2, 3, 4, 5, 6],
    "file of the ledger gone, and repaired by delta-rs": [0, 1, 2, 3, 4, 5, 6],
    "runs of the ledger gone, and repaired by delta-rs": [1, 2, 3, 4, 5, 6],
    "runs of the ledger overlap": [1, 2, 3, 4, 5, 6],
    "run of the ledger beyond its head": [1, 2, 3, 4, 5, 6],
    "ledger restored": [1, 2, 3, 4, 5, 6],
    "ledger gone": [0, 1, 2, 3, 4, 5, 6],
}


def offsets(ranges: Sequence[tuple[int, int]]) -> list[int]:
    return sorted(offset for first, last in ranges for offset in range(first, last + 1))


def reported_offsets(reports: Sequence[Repair]) -> tuple[list[int], list[int]]:
    """Offsets that are reported as lost, and as coming again."""
    return (
        offsets([each for report in reports for each in report.lost]),
        offsets([each for report in reports for each in report.again]),
    )


def after(victim: Victim) -> list[str]:
    """What a repaired queue delivers, with a message that is sent then; it is sound before and after."""
    assert victim.lake().check() == []
    assert victim.lake().repair() == []
    victim.send("new")
    victim.clock.advance(60)
    found = victim.drain()
    assert victim.lake().check() == []
    victim.lake().compact()
    assert victim.lake().check() == []
    return sorted(found)


@pytest.mark.spec("DUR-30", "DUR-31", "DUR-32")
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_repaired(victim: Victim, kind: str) -> None:
    DAMAGE[kind](victim)
    before = contents(victim.root)
    found = [each for each in victim.lake().check() if each.damage]
    assert found and all(each.problem and each.repair and each.table.startswith(victim.root) for each in found)
    planned = victim.lake().repair("orders")
    assert contents(victim.root) == before
    done = victim.lake().repair("orders", apply=True, force=True)
    assert [(each.lost, each.again) for each in planned] == [(each.lost, each.again) for each in done]
    lost, again = reported_offsets(done)
    assert lost == LOST.get(kind, []) and again == AGAIN.get(kind, [])
    assert all(each.applied for each in done) and not any(each.applied for each in planned)
    there = set("123456") - set(map(str, lost)) | set(map(str, again))
    assert after(victim) == [*sorted(there), "new", *(["twice"] if "twice" in kind else [])]


@pytest.mark.spec("DUR-85")
@pytest.mark.parametrize("verb", [lambda queue: queue.send("more"), lambda queue: queue.peek()])
def test_a_process_that_follows_a_log_refuses_an_offset_that_was_given_before(
    victim: Victim, verb: Callable[[Queue], object]
) -> None:
    queue = victim.queue
    queue.send("7")
    queue.receive(visibility_timeout=0)
    give_twice(victim, 1)
    with pytest.raises(DamagedTable, match="were given twice"):
        verb(queue)


@pytest.mark.spec("DUR-36")
@pytest.mark.parametrize("table", ["messages", "receipts"])
def test_a_difference_that_nobody_knows_is_made_by_force_only(victim: Victim, table: str) -> None:
    """One wrong digit, in an entry that deleted a message, or in one that sent another whose file is gone."""
    if table == "messages":
        live(victim.messages)[-1].unlink()
    entry = entries(getattr(victim, table))[-1]
    entry.write_bytes(re.sub(rb'"version": (\d)', rb'"version": 9', entry.read_bytes(), count=1))
    before = contents(victim.root)
    [refused] = victim.lake().repair(apply=True)
    assert refused.unknown and refused.steps and not refused.applied
    run = CliRunner(env={"LAKEQUEUE_ROOT": victim.root}).invoke
    told = run(app, ["--root", victim.root, "repair", "orders"])
    assert told.exit_code == 1 and "orders, shard 0: would be done with --force" in told.stdout
    assert "not certain: " in told.stdout
    last = told.stdout.splitlines()[-1]
    assert last.startswith("nothing was repaired, because nobody knows which messages are lost or come again; ")
    assert last.endswith(f": lakequeue --root {victim.root} repair orders --force")
    assert contents(victim.root) == before
    [done] = victim.lake().repair(apply=True, force=True)
    assert done.applied and done.unknown == refused.unknown
    victim.clock.advance(60)
    ids = {int(message.body): message.message_id for message in victim.receive()}
    assert sorted(ids) == ([0, 1, 2, 3, 4, 5, 6] if table == "receipts" else [1, 2, 3, 4, 5])
    assert done.again_ids == (ids if table == "receipts" else {})


@pytest.mark.spec("DUR-36")
def test_the_difference_that_a_repair_made_is_reported_by_message(victim: Victim) -> None:
    """Also one that it did not foresee."""
    lost = {int(each.body): each.message_id for each in victim.queue.peek(limit=10)}
    live(victim.messages)[-1].unlink()

    def forgetful(*given: object) -> RepairedLedger:
        rows = repaired_ledger(*given)  # type: ignore[arg-type]
        return attrs.evolve(rows, runs=[run for run in rows.runs if run.first != 1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repairing, "repaired_ledger", forgetful)
        [report] = victim.lake().repair(apply=True)
    assert report.lost == [(1, 2), (6, 6)] and report.lost_ids == {1: lost[1], 2: lost[2]}
    assert report.again == [] and report.unknown == []


@pytest.mark.spec("DUR-36")
def test_a_repair_says_when_lost_messages_were_sent(victim: Victim) -> None:
    start = victim.clock.now()
    for body in "78":
        victim.clock.advance(10)
        victim.queue.send(body)
    live(victim.messages)[7].unlink()
    [report] = victim.lake().repair()
    sent = start + timedelta(seconds=10)
    assert report.lost == [(7, 7)] and report.lost_ids == {} and report.lost_sent == [(sent, sent)]
    assert f"    offset 7 was sent at {sent:%Y-%m-%d %H:%M:%S} UTC" in repair_text(report).splitlines()
    found = find_shard(engine_of(victim.lake()).store, victim.root, victim.key, 0)
    assert found.messages is not None
    known = known_times(found.messages, found.files)
    assert sent_between(known, (7, 8)) == (sent, start + timedelta(seconds=20))
    assert sent_between(known, (9, 12)) == (start + timedelta(seconds=20), None)
    # of a log whose entries are gone, the files beside the lost one are left
    known = known_times(attrs.evolve(found.messages, entries={}), found.files)
    assert sent_between(known, (7, 7)) == (start, start + timedelta(seconds=20))


@pytest.mark.spec("DUR-32")
def test_what_a_damaged_file_held_is_lost_also_if_the_ledger_goes_back(victim: Victim) -> None:
    """Messages below the first sound file were not dropped as long as the log names files for them."""
    for path in live(victim.messages)[:2]:
        tear(path)
    tear(live(victim.receipts)[-1])
    [report] = victim.lake().repair(apply=True, force=True)
    assert report.lost == [(0, 1)]
    assert after(victim) == [*"23456", "new"]


@pytest.mark.spec("DUR-32", "DUR-36", "DUR-42")
@pytest.mark.parametrize("erased", [False, True])
def test_what_was_lost_before_or_erased_stays_so_if_the_ledger_goes_back(victim: Victim, erased: bool) -> None:
    if erased:
        victim.queue.erase(next(each.message_id for each in victim.queue.peek() if each.body == "4"))
    else:
        tear(live(victim.messages)[4])
        [report] = victim.lake().repair(apply=True)
        assert report.lost == [(4, 4)]
    for path in live(victim.receipts):  # of which an older version has none
        tear(path)
    [report] = victim.lake().repair(apply=True, force=True)
    assert report.lost == []
    assert not {"4", ""} & {*after(victim)}
    assert victim.queue.counts().in_flight == 0


@pytest.mark.spec("DUR-31")
def test_a_file_that_is_damaged_amid_a_repair_is_named(victim: Victim) -> None:
    *_, before, lost = live(victim.messages)[:5]
    lost.unlink()

    torn = meanwhile(mending, "commit_once", lambda *_: tear(before))
    with torn, pytest.raises(DamagedTable, match=before.name):
        victim.lake().repair(apply=True)


@pytest.mark.spec("DUR-36")
def test_the_command_shows_some_ids_and_counts_the_rest() -> None:
    ids = {number: f"id-{number}" for number in range(30)}
    shown = repair_text(Repair("orders", "local", 0, ["does"], again=[(0, 29)], again_ids=ids, applied=True))
    assert shown.splitlines()[2] == "  may come again: 30 messages, offsets 0 to 29"
    assert shown.splitlines()[-2:] == [
        "    id of the message at offset 19 id-19",
        "    and 10 more ids; --json has all",
    ]


@pytest.mark.spec("DUR-31")
def test_a_sound_root_is_left_alone(victim: Victim) -> None:
    for number in range(5):  # runs of several files, in no order
        victim.send(str(number))
        victim.queue.change_visibility(victim.receive(1)[0], 5 + number)
    before = entries(victim.messages), entries(victim.receipts)
    assert victim.lake().repair(apply=True) == []
    assert (entries(victim.messages), entries(victim.receipts)) == before


@pytest.mark.spec("DUR-31")
@pytest.mark.parametrize("table", ["messages", "receipts"])
def test_nothing_is_repaired_while_another_process_commits(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.05)
    DAMAGE["last entry of the log torn"](victim)
    before, lock = contents(victim.root), FileLock(str(getattr(victim, table) / "_commit.lock"))
    assert lock.take(exclusive=False)
    try:
        with pytest.raises(LockHeld, match=f"{table}/_commit.lock was held by another process"):
            victim.lake().repair(apply=True)
        assert contents(victim.root) == before
        assert victim.lake().repair(), "what it would do is told without the locks"
    finally:
        lock.release()
    assert victim.lake().repair(apply=True)
    assert after(victim) == [*"123456", "new"]


def killed_before(step: int) -> Callable[..., Iterator[Repair]]:
    """A run that ends before one of its steps."""

    def finished(report: Repair, steps: Sequence[RepairStep], apply: bool) -> Iterator[Repair]:
        for number, each in enumerate(steps if apply else ()):
            if number == step:
                raise Killed
            each.apply()
        yield report

    return finished


@pytest.mark.spec("DUR-33")
@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if "catalog" not in kind])
def test_a_repair_that_was_killed_is_repeated(victim: Victim, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DAMAGE[kind](victim)
    lost, again = reported_offsets(victim.lake().repair("orders"))
    for step in range(1, 6):
        try:
            with monkeypatch.context() as patched:
                patched.setattr(repairing, "_finished", killed_before(step))
                victim.lake().repair("orders", apply=True, force=True)
            break  # it had no such step
        except Killed:
            with suppress(QueueClientError):  # or it is whole
                victim.queue.counts()
    victim.lake().repair("orders", apply=True, force=True)
    there = set("123456") - set(map(str, lost)) | set(map(str, again))
    assert after(victim) == [*sorted(there), "new", *(["twice"] if "twice" in kind else [])]


@pytest.mark.spec("DUR-34")
def test_a_torn_send_is_found_again_though_another_lost_the_race_for_its_place(victim: Victim) -> None:
    """Appends that lost a race leave files as torn entries do, but their messages were appended again."""
    loser = live(victim.messages)[5]
    copy = loser.with_name(f"{'0' * 8}-loser.parquet")
    copy.write_bytes(loser.read_bytes())
    for entry in entries(victim.messages)[-3:]:
        empty(entry)
    victim.lake().repair(apply=True)
    assert after(victim) == [*"123456", "new"]


@pytest.mark.spec("DUR-34")
def test_a_repair_names_the_offsets_of_unknown_messages(victim: Victim) -> None:
    newest = live(victim.messages)[-1]
    empty(entries(victim.messages)[-1])
    newest.unlink()
    [report] = victim.lake().repair(apply=True, force=True)
    assert report.unknown == [
        "1 entry of the log cannot be read: 5 of 5 known messages are kept; "
        "a send after them, at offset 6 or later, may be missing"
    ]
    assert after(victim) == [*"12345", "new"]


@pytest.mark.spec("DUR-35")
def test_a_head_beyond_the_log_gives_no_offset_twice(victim: Victim) -> None:
    victim.receive()
    for path in live(victim.messages)[-3:]:
        path.unlink()
    for entry in entries(victim.messages)[-3:]:
        empty(entry)
    [report] = victim.lake().repair(apply=True, force=True)
    assert report.lost == [(4, 6)]
    sent = victim.queue.send("next")
    assert after(victim) == [*"123", "new", "next"]
    assert sent.message_id


def test_reordered_rows_come_back_in_order(victim: Victim) -> None:
    victim.send(*(f"{number:03}" for number in range(80)))
    victim.clock.advance(7200)
    victim.lake().compact()
    big = max(live(victim.messages), key=lambda path: path.stat().st_size)
    permute(big)
    assert [each.problem for each in victim.lake().check()][0].startswith(("does not hold", "has "))
    assert reported_offsets(victim.lake().repair(apply=True)) == ([], [])
    assert after(victim)[-1] == "new"


def test_a_process_that_was_there_before_goes_on(victim: Victim) -> None:
    lake = victim.lake()
    queue = lake.queue("orders")
    queue.counts()
    queue.send("7")
    for entry in entries(victim.messages)[-2:]:
        empty(entry)
    victim.lake().repair(apply=True)
    with suppress(QueueClientError):  # once, as what it knew is no longer so
        queue.send("8")
    queue.send("9")
    victim.clock.advance(60)
    found = victim.drain()
    assert len(found) == len(set(found)) and set("1234567") <= set(found)


def test_dead_letters_keep_their_count_behind_a_lost_message(victim: Victim) -> None:
    dead = victim.lake().create_queue("dead")
    victim.queue.set_attributes(redrive_policy=RedrivePolicy("dead", 1))
    for _ in range(3):
        victim.receive()
        victim.clock.advance(60)
    victim.receive()
    arrived = dead.counts().visible
    other = Victim(victim.root, victim.clock, "dead")
    other.send("last")
    live(other.messages)[-1].unlink()
    [report] = victim.lake().repair("dead", apply=True)
    assert report.lost == [(arrived, arrived)]
    assert {message.receive_count for message in other.receive()} == {2}


def test_moves_get_new_numbers_after_a_ledger_went_back(victim: Victim) -> None:
    """The target takes a move with an old number for one that has arrived."""
    victim.lake().create_queue("dead")
    victim.queue.set_attributes(redrive_policy=RedrivePolicy("dead", 1))
    victim.clock.advance(60)
    before = len(entries(victim.receipts))
    victim.receive()
    for entry in entries(victim.receipts)[before:]:
        empty(entry)
    victim.lake().repair("orders", apply=True, force=True)
    victim.queue.purge()
    victim.send("late")
    for _ in range(2):
        victim.receive()
        victim.clock.advance(60)
    assert "late" in Victim(victim.root, victim.clock, "dead").drain()


def test_a_lost_row_of_the_catalog_comes_back_from_an_older_file(victim: Victim) -> None:
    victim.queue.set_tags({"team": "blue"})
    in_flight = victim.receive(1)
    lose_catalog_row(victim)
    assert "no row in the catalog" in victim.lake().check()[0].problem
    [report] = victim.lake().repair(apply=True)
    assert "listed again" in report.notes[0]
    assert victim.queue.tags() == {"team": "blue"}
    victim.queue.delete(in_flight[0])
    assert after(victim) == [*"12456", "new"]


def test_a_lost_row_of_the_catalog_comes_back_by_the_name(victim: Victim) -> None:
    lose_catalog_row(victim)
    for path in (Path(victim.root) / "queues").glob("*.parquet"):
        path.unlink()
    [report] = victim.lake().repair()
    assert "no row in the catalog; lakequeue repair NAME" in report.notes[0] and not report.steps
    [report] = victim.lake().repair("orders", apply=True)
    assert report.queue == "orders" and "in flight comes again" in report.notes[0]
    assert after(victim) == [*"123456", "new"]


def test_a_deleted_queue_stays_deleted(victim: Victim) -> None:
    victim.lake().delete_queue("orders")
    assert victim.lake().repair() == [] and victim.lake().check() == []
    victim.clock.advance(25 * 3600)
    victim.lake().compact()
    assert victim.lake().repair() == [] and victim.lake().check() == []


@pytest.mark.spec("DUR-33", "DUR-34")
def test_a_torn_send_of_a_later_time_is_found_again_also_after_a_kill(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim.clock.advance(5)
    victim.send("late")
    empty(entries(victim.messages)[-1])

    with monkeypatch.context() as patch, pytest.raises(QueueClientError):
        at(patch, Table, "exchange", OSError("killed"), times=1_000)
        victim.lake().repair(apply=True)
    [finding] = victim.lake().check()
    assert "the log does not name it" in finding.problem and finding.damage
    assert reported_offsets(victim.lake().repair(apply=True)) == ([], [])
    assert "late" in after(victim)


def test_what_was_replaced_is_kept(victim: Victim) -> None:
    torn = entries(victim.messages)[-1]
    tear(torn)
    data = torn.read_bytes()
    victim.lake().repair(apply=True)
    [kept] = (victim.messages / ASIDE).rglob("*.json")
    assert kept.read_bytes() == data
    table = DeltaTable(str(victim.messages))
    unused = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True)
    assert not [path for path in unused if ASIDE in path]


def test_a_feature_that_a_checkpoint_has_is_taken_back(victim: Victim) -> None:
    DAMAGE["feature added"](victim)
    DeltaTable(str(victim.messages)).create_checkpoint()
    assert reported_offsets(victim.lake().repair(apply=True)) == ([], [])
    assert after(victim) == [*"123456", "new"]


def test_rows_deleted_by_vectors_do_not_come_back(victim: Victim) -> None:
    DAMAGE["feature added"](victim)
    *_, last = entries(victim.messages)
    action = {"add": {"path": "x", "partitionValues": {}, "size": 1, "deletionVector": {"storageType": "u"}}}
    with last.open("a") as file:
        file.write(f"\n{json.dumps(action)}")
    [report] = victim.lake().repair(apply=True)
    assert not report.steps and "deletion vectors" in report.notes[0]


@pytest.mark.parametrize("damage", [tear, empty, Path.unlink])
def test_statistics_are_repaired(victim: Victim, damage: Callable[[Path], object]) -> None:
    victim.lake().compact()
    stats = Path(victim.root) / "stats"
    damage(live(stats)[0])
    [found] = victim.lake().check()
    assert found.queue is None and found.table == str(stats)
    damage(entries(stats)[-1])
    # a checkpoint without its entry and its file is left over, as after a restore: the next commit removes it
    assert bool(victim.lake().repair(apply=True)) == (damage is not Path.unlink)
    assert after(victim) == [*"123456", "new"]


@pytest.mark.spec("JOB-7")
@pytest.mark.parametrize("damage", [tear, empty, Path.unlink])
def test_a_damaged_table_of_schedules_is_named_and_emptied(
    victim: Victim, damage: Callable[[Path], object]
) -> None:
    schedules = victim.lake().schedules
    schedules.add("nightly", "orders", "x", cron="0 2 * * *")
    table = Path(victim.root) / "schedules"
    damage(live(table)[0])
    [found] = victim.lake().check()
    assert found.queue is None and found.table == str(table)
    with pytest.raises(DamagedTable):
        victim.lake().schedules.list()
    assert victim.lake().repair(apply=True) and victim.lake().check() == []
    assert victim.lake().schedules.list() == []
    victim.lake().schedules.add("nightly", "orders", "x", cron="0 2 * * *")
    assert after(victim) == [*"123456", "new"]


def test_a_root_that_is_gone_is_named(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(QueueClientError, match="does not exist"):
        Victim(str(tmp_path / "nowhere"), clock).lake().check()


@pytest.mark.parametrize("harm", [empty, Path.unlink])
def test_a_log_without_a_beginning_is_reported_and_left_alone(
    victim: Victim, harm: Callable[[Path], object]
) -> None:
    harm(entries(victim.messages)[0])
    found = victim.lake().check()[0]
    assert found.damage and "its log has no beginning" in found.problem and found.table == str(victim.messages)
    [report] = victim.lake().repair(apply=True)
    assert not report.steps and "restore it from a copy" in report.notes[0]


MISSING = {
    "log": lambda victim: shutil.rmtree(victim.messages),
    "ledger": lambda victim: shutil.rmtree(victim.receipts),
    "first entry of the log": lambda victim: entries(victim.messages)[0].unlink(),
    "shard": lambda victim: shutil.rmtree(victim.messages.parent),
}
"""What a queue that was half made lacks."""


@pytest.mark.spec("QUE-38")
@pytest.mark.parametrize("kind", [*(each for each in DAMAGE if "catalog" not in each), *MISSING])
def test_a_damaged_queue_is_deleted_and_stops_no_other(victim: Victim, kind: str) -> None:
    victim.lake().create_queue("other").send("a")
    (DAMAGE | MISSING)[kind](victim)
    victim.lake().delete_queue("orders")
    victim.clock.advance(3_600)
    assert [queue.name for queue in victim.lake().list_queues()] == ["other"]
    victim.lake().create_queue("orders").send("new")
    victim.lake().compact()
    assert victim.drain() == ["new"]
    assert [message.body for message in victim.lake().queue("other").receive()] == ["a"]


@pytest.mark.spec("QUE-13", "QUE-38")
def test_nothing_is_sent_to_a_queue_that_was_deleted_with_a_damaged_ledger(victim: Victim) -> None:
    open_before = victim.queue
    open_before.send("a")
    for path in live(victim.receipts):
        tear(path)
    victim.lake().delete_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        open_before.send("b")


@pytest.mark.spec("QUE-38")
@pytest.mark.parametrize("damage", MISSING.values(), ids=MISSING)
def test_a_queue_that_was_half_made_is_made_whole(
    tmp_path: Path, clock: ManualClock, damage: Callable[[Victim], object]
) -> None:
    victim = Victim(str(tmp_path / "root"), clock)
    victim.lake().create_queue("orders", visibility_timeout=7)
    victim.lake().create_queue("other").send("a")
    damage(victim)
    forget()
    counted = CliRunner().invoke(app, ["--root", victim.root, "counts"])
    assert counted.exit_code == 3 and "other" in counted.stdout and "has no log" in counted.stderr
    [report] = (each for each in victim.lake().repair(apply=True, force=True) if each.queue == "orders")
    assert report.applied
    assert victim.lake().check() == []
    victim.send("a", "b")
    assert victim.drain() == ["a", "b"]
    assert victim.queue.attributes()["visibility_timeout"] == 7


@pytest.mark.spec("DUR-31", "DUR-32")
@pytest.mark.parametrize("seed", range(6))
def test_any_damage_to_any_history_is_reported_exactly(tmp_path: Path, clock: ManualClock, seed: int) -> None:
    chance = random.Random(seed)
    victim = Victim(str(tmp_path / "root"), clock, "orders.fifo" if seed % 3 == 2 else "orders")
    victim.lake().create_queue(victim.name, **({"fifo": True} if seed % 3 == 2 else {}))
    queue, sent, deleted, handles = victim.queue, 0, set[str](), dict[str, str]()

    def send() -> None:
        nonlocal sent
        texts = [str(number) for number in range(sent, sent + chance.randint(1, 4))]
        sent += len(texts)
        for text in texts:
            queue.send_batch(batch(text, **({"group_id": "g", "dedup_id": text} if queue.fifo else {})))

    def receive() -> None:
        handles.update(
            (each.body, each.receipt_handle) for each in queue.receive(chance.randint(1, 5), wait_time=0)
        )

    def delete() -> None:
        for body in chance.sample(sorted(handles), min(len(handles), chance.randint(1, 3))):
            queue.delete(handles.pop(body))
            deleted.add(body)

    for _ in range(40):
        chance.choice([send, send, receive, receive, delete, lambda: clock.advance(5)])()
        if chance.random() < 0.05:
            clock.advance(7200)
            handles.clear()
            victim.lake().compact()
    send()
    tables = [victim.messages, victim.receipts]
    paths = [path for table in tables for path in (*live(table), *entries(table)[1:])]
    for path in chance.sample(paths, chance.randint(1, 3)):
        chance.choice([empty, tear, Path.unlink])(path)
    reports = victim.lake().repair(apply=True, force=True)
    lost, again = reported_offsets(reports)
    assert victim.lake().check() == []
    clock.advance(60)
    found = Counter(victim.drain())
    assert max(found.values(), default=1) == 1
    bodies = set(map(str, range(sent)))
    missing = bodies - deleted - set(found)
    assert missing <= set(map(str, lost)) or any(each.unknown for each in reports), (missing, lost)
    assert set(map(str, lost)).isdisjoint(found)
    assert set(found) & deleted <= set(map(str, again)), (set(found) & deleted, again)


@pytest.mark.spec("DUR-31")
def test_the_command_shows_asks_and_does(victim: Victim) -> None:
    run = CliRunner(env={"LAKEQUEUE_ROOT": victim.root}).invoke
    live(victim.messages)[4].unlink()
    refused = run(app, ["repair", "orders"], input="n\n")
    assert refused.exit_code == 2 and "lost: 1 message, offset 4" in refused.stderr
    assert run(app, ["check"]).exit_code == 1
    done = json.loads(run(app, ["repair", "--all", "--yes", "--json"]).stdout)
    assert done[0]["lost"] == [[4, 4]] and done[0]["applied"]
    assert run(app, ["check"]).exit_code == 0
    again = run(app, ["repair", "orders"])
    assert again.exit_code == 0 and again.stdout == "nothing to repair\n"
    assert run(app, ["repair"]).exit_code == 2 and run(app, ["repair", "orders", "--all"]).exit_code == 2
    empty(entries(victim.messages)[0])
    left = run(app, ["repair", "orders"])
    assert left.exit_code == 1 and "cannot be repaired" in left.stdout and "Traceback" not in left.output
    assert left.stdout.endswith("\nnothing was repaired\n")


@pytest.mark.spec("DUR-31", "DUR-32")
def test_a_bulk_send_of_which_files_are_damaged(victim: Victim) -> None:
    victim.queue.send_arrow(pa.table({"body": [f"bulk {number}" for number in range(3000)]}))
    permute(max(live(victim.messages), key=lambda path: path.stat().st_size))
    assert reported_offsets(victim.lake().repair(apply=True)) == ([], [])
    victim.receive(10)
    tear(max(live(victim.messages), key=lambda path: path.stat().st_size))
    [report] = victim.lake().repair(apply=True)
    assert report.lost == [(7, 3006)]
    assert after(victim) == [*"123456", "new"]


@pytest.mark.objectstore
@pytest.mark.spec("DUR-30", "DUR-31")
def test_damage_on_an_object_store(s3_root: str, clock: ManualClock) -> None:
    victim = Victim(s3_root, clock)
    victim.lake().create_queue("orders")
    victim.send(*"0123456")
    victim.queue.delete(victim.receive(3)[0])
    engine, key = engine_of(victim.lake()), victim.key
    log = engine.open(layout.messages_path(s3_root, key, 0))
    [fourth] = [file for file in log.files() if file.minimum["position"] == 4]
    log.folder.remove([fourth.name])
    log.folder.replace(entry_name(7), b"")
    engine.open(layout.receipts_path(s3_root, key, 0)).folder.replace(entry_name(2), b"torn")
    assert len(victim.lake().check()) == 5
    [report] = victim.lake().repair(apply=True, force=True)
    assert (report.lost, report.again) == ([(4, 4)], [(0, 3), (5, 6)])
    assert after(victim) == [*"012356", "new"]


# --- mutations: what a repair promises, and the safeguards that this needs


def nothing_is_committed_before_the_content_is_mended(victim: Victim) -> None:
    """Else its epoch would be given twice, and a process that has seen the lost one would not see the change."""
    empty(entries(victim.receipts)[-1])
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(repairing, "_finished", killed_before(1))
        victim.lake().repair(apply=True, force=True)
    with pytest.raises(LakeQueueError):
        victim.receive()
        pytest.fail("a receive was committed", pytrace=False)


def a_send_that_came_again_is_not_taken_for_a_torn_one(victim: Victim) -> None:
    """The file of a merged segment may lie there long after its entry was trimmed."""
    first = live(victim.messages)[0]
    shutil.copy(first, first.with_name("merged.parquet"))
    empty(entries(victim.messages)[-1])
    victim.lake().repair(apply=True, force=True)
    assert after(victim) == [*"123456", "new"]


def a_message_without_a_body_is_never_received(victim: Victim) -> None:
    before = victim.lake().queue(victim.name).counts()
    live(victim.messages)[4].unlink()
    victim.lake().repair(apply=True)
    left = victim.lake().queue(victim.name).counts()
    assert left.visible + left.in_flight == before.visible + before.in_flight - 1
    assert after(victim) == [*"12356", "new"]


MUTATIONS = [
    Mutation(
        "no barrier",
        replace(repairing, "log_steps", lambda undone, _: log_steps(undone, {})),
        {nothing_is_committed_before_the_content_is_mended: "DUR-33"},
    ),
    Mutation(
        "take any file that fits",
        replace("lakequeue.storage.inspection.unnamed_files._ids_since", lambda *_: set()),
        {a_send_that_came_again_is_not_taken_for_a_torn_one: "DUR-34"},
    ),
    Mutation(
        "leave lost messages in the ledger",
        replace(FoundShard, "gone", lambda *_: []),
        {a_message_without_a_body_is_never_received: "DUR-31"},
    ),
    Mutation(
        "guess when lost messages were sent from others",
        replace("lakequeue.operations.repair.sent_between", lambda known, span: sent_between(known, (0, span[1]))),
        {shown_by(test_a_repair_says_when_lost_messages_were_sent, lambda victim: (victim,)): "DUR-36"},
    ),
    Mutation(
        "believe the log about its end",
        replace(FoundShard, "end", lambda found, _: found.send_end),
        {shown_by(test_a_head_beyond_the_log_gives_no_offset_twice, lambda victim: (victim,)): "DUR-35"},
    ),
    Mutation(
        "use numbers of moves again",
        replace(repairing, "_moves", lambda *_: 0),
        {shown_by(test_moves_get_new_numbers_after_a_ledger_went_back, lambda victim: (victim,)): "DUR-31"},
    ),
    Mutation(
        "drop one of two messages with one offset",
        replace(FoundShard, "displaced", []),
        {shown_by(test_damage_is_found_and_repaired, lambda victim: (victim, "offset given twice")): "DUR-32"},
    ),
    Mutation(
        "follow a log whose end falls",
        replace(Snapshot, "_expect_end", lambda *_: None),
        {
            shown_by(
                test_a_process_that_follows_a_log_refuses_an_offset_that_was_given_before,
                lambda victim: (victim, lambda queue: queue.peek()),
            ): "DUR-85"
        },
    ),
]


@each_case(MUTATIONS)
def test_the_promise_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    def prepare(_: Patch) -> tuple[Victim]:
        return (victim_of_seven(tmp_path, ManualClock()),)

    case.run(prepare, (LakeQueueError, TypeError, AttributeError, pytest.fail.Exception))
