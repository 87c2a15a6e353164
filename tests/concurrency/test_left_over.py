"""A backup is put back in place while a call writes: nobody builds on the entry that is left over (DUR-86)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from concurrency.harness import apart, in_place
from concurrency.stopping import short_logs
from insides import engine_of
from lakequeue import DamagedTable, LakeQueue, LakeQueueError, Queue, QueueClientError
from lakequeue.storage import delta_log, layout, snapshot
from lakequeue.storage.delta_log import TableState, entry_name
from lakequeue.storage.engines import log_trimming, log_upkeep, transaction
from lakequeue.storage.engines.entries import encoded, entry
from lakequeue.storage.engines.locks import LockHeld
from lakequeue.storage.engines.point import Table
from lakequeue.storage.snapshot import Snapshot
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace

VERBS: dict[str, Callable[[Queue], object]] = {"send": lambda queue: queue.send("late"), "receive": Queue.receive}


class Killed(BaseException):
    """The process of a call is gone."""


def killed_after_link(patch: Patch, queue: Queue, verb: str, before: Callable[[], object]) -> Path:
    """Runs a verb that dies right after it linked its entry, with ``before`` right before; returns the entry."""
    link, linked, begun = os.link, [], []

    def killing(source: str, target: str, **folders: Any) -> None:
        if not begun:
            begun.append(True)
            patch.undo()
            before()  # takes the draft away, so the writer makes another
        link(source, target, **folders)
        table = Path(os.readlink(f"/proc/self/fd/{folders['dst_dir_fd']}"))
        linked.append(table / Path(target).name)
        raise Killed

    patch.setattr(os, "link", killing)
    with pytest.raises(Killed):
        VERBS[verb](queue)
    return linked[0]


def a_writer_dies(tmp_path: Path, clock: ManualClock, verb: str = "send", lost: int = 1, others: int = 0) -> None:
    """A verb dies between link and check, during a restore of an older state by which commits are lost.

    Before it links, another process commits to the restored tables.
    """
    root, backup = tmp_path / "root", tmp_path / "backup"
    [lq] = apart(root, clock, 1)
    queue = lq.create_queue("orders")
    queue.send("kept")
    queue.receive(visibility_timeout=0)
    shutil.copytree(root, backup)
    for number in range(lost):
        queue.send(f"lost {number}")
        queue.receive(visibility_timeout=0)
    sent: list[str] = ["kept"]
    running: list[Queue] = []

    def restore() -> None:
        in_place(backup, root)
        running.append(apart(root, clock, 1)[0].queue("orders"))
        for number in range(others):
            running[0].send(f"other {number}")
            sent.append(f"other {number}")
            running[0].receive(visibility_timeout=0)

    with pytest.MonkeyPatch.context() as patch:
        left = killed_after_link(patch, queue, verb, restore)
    assert left.exists()
    assert not apart(root, clock, 1)[0].check()
    fresh = apart(root, clock, 1)[0].queue("orders")
    for each in (*running, fresh, *running):
        assert each.counts().visible == len(sent)
        each.send(f"new {len(sent)}")
        sent.append(f"new {len(sent)}")
    found = [message.body for each in (fresh, *running) for message in each.receive(10, visibility_timeout=0)]
    assert sorted(found) == sorted(2 * sent)
    assert not apart(root, clock, 1)[0].check()


@pytest.mark.spec("DUR-86")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("lost", "others"), [(1, 0), (3, 0), (3, 1), (3, 2), (1, 1), (3, 3)])
def test_a_writer_that_dies_during_a_restore_in_place_does_no_harm(
    tmp_path: Path, clock: ManualClock, verb: str, lost: int, others: int
) -> None:
    a_writer_dies(tmp_path, clock, verb, lost, others)


def send_on(tmp_path: Path, clock: ManualClock, missed: int = 2) -> None:
    """A restore in place lists the log, then a sender commits; the restore removes only what it has listed.

    A send takes a second by the machine's clock.
    """
    seconds = iter(range(1_000_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "time", SimpleNamespace(time=time.time, monotonic=lambda: next(seconds) / 2))
        _send_on(tmp_path, clock, missed)


def _send_on(tmp_path: Path, clock: ManualClock, missed: int) -> None:
    root, backup = tmp_path / "root", tmp_path / "backup"
    [lq] = apart(root, clock, 1)
    queue = lq.create_queue("orders")
    queue.send("kept")
    shutil.copytree(root, backup)
    for number in range(4):
        queue.send(f"lost {number}")
    log = Path(layout.messages_path(lq.root, queue.key, 0), "_delta_log")
    listed = set(log.glob("*.json"))
    for number in range(missed):
        queue.send(f"lost {4 + number}")
    for path in listed - {log / each.name for each in (backup / log.relative_to(root)).iterdir()}:
        path.unlink()
    with pytest.raises(DamagedTable, match="a backup was restored") as raised:
        queue.send("unknown")
    assert raised.value.outcome_unknown
    queue.send("new")
    assert [message.body for message in queue.receive(10)] == ["kept", "new"]
    assert not apart(root, clock, 1)[0].check()


@pytest.mark.spec("DUR-86")
@pytest.mark.parametrize("missed", [1, 2, 3])
def test_a_sender_does_not_go_on_behind_a_gap(tmp_path: Path, clock: ManualClock, missed: int) -> None:
    """The files of the last entries may be there still."""
    send_on(tmp_path, clock, missed)


@pytest.mark.spec("DUR-86")
def test_a_log_that_is_trimmed_is_no_restored_log(tmp_path: Path, clock: ManualClock, monkeypatch: Patch) -> None:
    monkeypatch.setattr("lakequeue.storage.engines.log_trimming.READING", 0)
    monkeypatch.setattr("lakequeue.storage.engines.log_trimming.LOG_ENTRIES", 5)
    [lq, other] = apart(tmp_path / "root", clock, 2)
    lq.create_queue("orders")
    lq.queue("orders").send("first")
    for number in range(210):
        other.queue("orders").send(f"{number}")
    path = layout.messages_path(lq.root, lq.queue("orders").key, 0)
    assert not Path(path, entry_name(1)).exists()
    lq.queue("orders").send("last")


def tables_of(tmp_path: Path, clock: ManualClock) -> tuple[LakeQueue, Callable[[], Table], str]:
    [lq] = apart(tmp_path / "root", clock, 1)
    path = layout.messages_path(lq.root, lq.create_queue("orders").key, 0)
    return lq, lambda: engine_of(lq).open(path), path


def written_late(table: Table, base: TableState | None, token: str = "late") -> None:
    """Creates the entry after a table's version, by a writer that knew another base."""
    assert table.folder.create(
        entry_name(table.version + 1), encoded(entry("WRITE", [], [], {}, token, base=base))
    )


def behind_a_checkpoint(tmp_path: Path, clock: ManualClock) -> None:
    """What the first entry behind a checkpoint must follow is in the checkpoint."""
    _, opened, _ = tables_of(tmp_path, clock)
    table = opened()
    while table.version < 100:
        table.add([], {"x": table.version}, f"new {table.version}")
    written_late(table, TableState(100, token="old"))
    fresh = opened()
    assert (fresh.version, fresh.state.token, fresh.state.strays) == (100, "new 99", [101])
    table.refresh()
    assert table.version == 100


@pytest.mark.spec("DUR-86")
def test_the_first_entry_behind_a_checkpoint_is_checked(tmp_path: Path, clock: ManualClock) -> None:
    behind_a_checkpoint(tmp_path, clock)


def checkpoint_left(tmp_path: Path, clock: ManualClock, entries: int = 1) -> None:
    """A restore in place lists a log, which then takes a checkpoint; the restore removes what it has listed."""
    root, backup = tmp_path / "root", tmp_path / "backup"
    lq, opened, path = tables_of(tmp_path, clock)
    lq.queue("orders").send("kept")
    shutil.copytree(root, backup)
    lq.queue("orders").send("lost")
    table, log = opened(), Path(path, "_delta_log")
    while table.version < 100:
        table.add([], {"x": table.version}, f"lost {table.version}")
    table.checkpoint()
    kept = [log / f"{100:020}.checkpoint.parquet", log / "_last_checkpoint"]
    while table.version < 100 + entries:
        table.add([], {"x": table.version}, f"lost {table.version}")
        kept.append(log / f"{table.version:020}.json")
    left = {each: each.read_bytes() for each in kept}
    in_place(backup, root)
    for file, content in left.items():
        file.write_bytes(content)
    assert not apart(root, clock, 1)[0].check()
    queue = apart(root, clock, 1)[0].queue("orders")
    queue.send("new")
    assert [message.body for message in queue.receive(10)] == ["kept", "new"]
    assert DeltaTable(path).version() < 100
    assert not apart(root, clock, 1)[0].check()


@pytest.mark.spec("DUR-86")
@pytest.mark.parametrize("entries", [0, 1, 3])
def test_a_checkpoint_that_a_restore_left_over_is_removed(
    tmp_path: Path, clock: ManualClock, entries: int
) -> None:
    checkpoint_left(tmp_path, clock, entries=entries)


@pytest.mark.spec("DUR-86")
@pytest.mark.parametrize("known", ["no base", "the same base", "a base that was repaired"])
def test_other_entries_are_trusted(tmp_path: Path, clock: ManualClock, known: str) -> None:
    """Those of other programs and older versions name no base."""
    _, opened, _ = tables_of(tmp_path, clock)
    table = opened()
    table.add([], {"x": 1}, delta_log.REPAIRED if "repaired" in known else "new")
    written_late(table, {"no base": None, "the same base": table.state}.get(known, TableState(token="old")))
    table.refresh()
    assert table.version == opened().version == 2
    table.add([], {"x": 2}, "newer")
    assert opened().version == 3


@pytest.mark.spec("DUR-86")
def test_what_another_program_built_on_a_left_over_entry_is_damage(tmp_path: Path, clock: ManualClock) -> None:
    lq, opened, _ = tables_of(tmp_path, clock)
    lq.queue("orders").send("kept")
    table = opened()
    written_late(table, TableState(token="old"))
    table.folder.create(entry_name(table.version + 2), encoded(entry("OPTIMIZE", [], [], {}, "foreign")))
    with pytest.raises(DamagedTable, match="does not follow the entry before"):
        opened()
    names = {entry_name(table.version + number) for number in (1, 2)}
    assert {finding.file for finding in lq.check()} == names
    lq.repair(apply=True)
    assert not lq.check()
    lq.queue("orders").send("new")
    assert [message.body for message in lq.queue("orders").receive(10)] == ["kept", "new"]


@pytest.mark.spec("DUR-86")
@pytest.mark.objectstore
def test_on_a_store_a_left_over_entry_is_refused_until_a_repair(s3_root: str, clock: ManualClock) -> None:
    [lq] = apart(s3_root, clock, 1)
    queue = lq.create_queue("orders")
    queue.send("kept")
    table = engine_of(lq).open(layout.messages_path(lq.root, queue.key, 0))
    written_late(table, TableState(token="old"))
    for each in (queue, apart(s3_root, clock, 1)[0].queue("orders")):
        # who lost a race to it does not know whether its own entry came first
        with pytest.raises(QueueClientError, match="does not follow the entry before"):
            each.send("refused")
    [finding] = lq.check()
    assert finding.file == entry_name(table.version + 1)
    lq.repair(apply=True)
    assert not lq.check()
    fresh = apart(s3_root, clock, 1)[0].queue("orders")
    fresh.send("new")
    assert [message.body for message in fresh.receive(10)] == ["kept", "new"]


@pytest.mark.spec("DUR-86")
def test_an_entry_that_is_lost_is_damage_and_what_follows_stays(tmp_path: Path, clock: ManualClock) -> None:
    lq, _, path = tables_of(tmp_path, clock)
    for number in range(4):
        lq.queue("orders").send(f"{number}")
    Path(path, entry_name(2)).unlink()
    fresh = apart(lq.root, clock, 1)[0]
    with pytest.raises(DamagedTable, match="gap"):
        fresh.queue("orders").send("refused")
    assert {finding.file for finding in fresh.check()} >= {entry_name(2)}
    assert Path(path, entry_name(4)).exists()


@pytest.mark.spec("DUR-86")
def test_a_log_that_seems_to_have_no_start_is_listed_again(tmp_path: Path, clock: ManualClock) -> None:
    """As while a trim runs: its first entry seems to be left over, because the file of its base is gone."""
    lq, opened, path = tables_of(tmp_path, clock)
    lq.queue("orders").send("kept")
    table = opened()
    newest = table.state.newest
    assert newest is not None
    table.add([], {"x": 1}, "token")
    for version in range(table.version):
        Path(path, entry_name(version)).rename(tmp_path / f"{version}")
    Path(path, newest).unlink()
    with pytest.raises(DamagedTable, match="its log has a gap"):
        opened()


@pytest.mark.spec("DUR-86")
def test_a_checkpoint_stands_for_entries_that_are_lost(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    short_logs(monkeypatch)
    lq, _, path = tables_of(tmp_path, clock)
    for number in range(12):
        lq.queue("orders").send(f"{number}")
    for version in (9, 10):
        Path(path, entry_name(version)).unlink()
    fresh = apart(lq.root, clock, 1)[0].queue("orders")
    assert [message.body for message in fresh.peek(limit=20)] == [f"{number}" for number in range(12)]


@pytest.mark.spec("DUR-86")
def test_a_lost_entry_below_a_checkpoint_ends_no_process(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    short_logs(monkeypatch)
    monkeypatch.setattr(log_trimming, "LOG_ENTRIES", 1_000)
    monkeypatch.setattr(snapshot, "_ANCHORS", (0, 0))  # it looks for all entries at each commit
    lq, _, path = tables_of(tmp_path, clock)
    for number in range(34):
        lq.queue("orders").send(f"{number}")
    Path(path, entry_name(4)).unlink()
    for number in range(34, 37):
        lq.queue("orders").send(f"{number}")
    for each in (lq, apart(lq.root, clock, 1)[0]):
        assert each.queue("orders").counts().visible == 37


@pytest.mark.spec("DUR-86")
def test_a_trim_does_not_remove_a_log_that_was_restored_before_it(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    short_logs(monkeypatch)
    lq, _, path = tables_of(tmp_path, clock)
    queue = lq.queue("orders")
    queue.send("kept")
    shutil.copytree(lq.root, tmp_path / "backup")
    monkeypatch.setattr(log_trimming, "LOG_ENTRIES", 1_000)
    for number in range(34):
        queue.send(f"lost {number}")
    monkeypatch.setattr(log_trimming, "LOG_ENTRIES", 5)
    locked = log_trimming.committing

    def restored(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        in_place(tmp_path / "backup", Path(lq.root))
        return locked(*args, **kwargs)

    monkeypatch.setattr(log_trimming, "committing", restored)
    log_trimming.trim_log(engine_of(lq).open(path).folder, layout.MESSAGES_RETENTION, 1)
    assert [message.body for message in apart(lq.root, clock, 1)[0].queue("orders").peek()] == ["kept"]


@pytest.mark.spec("DUR-86")
def test_left_over_entries_go_with_a_later_call_if_the_lock_was_held(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    """Even if the file that the first of them names is there, so that others take the gap for damage."""
    locked, held = log_upkeep.committing, [True]

    def busy(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        if held and held.pop():
            raise LockHeld("busy")
        return locked(*args, **kwargs)

    monkeypatch.setattr(log_upkeep, "committing", busy)
    send_on(tmp_path, clock)
    assert not held


def behind_a_gap(tmp_path: Path, clock: ManualClock) -> None:
    a_writer_dies(tmp_path, clock, lost=3)


def on_another_base(tmp_path: Path, clock: ManualClock) -> None:
    a_writer_dies(tmp_path, clock, lost=1, others=1)


def _nobody_removes(patch: Patch) -> None:
    patch.setattr(Table, "set_aside", lambda *_, **__: None)
    patch.setattr(transaction, "REPEATS", 3)  # 1,800 commits would lose the race, for half a minute


def on_and_on(tmp_path: Path, clock: ManualClock) -> None:
    send_on(tmp_path, clock)


def _looks_at_its_base_alone(patch: Patch) -> None:
    patch.setattr(Snapshot, "is_anchored", lambda *_: True)
    patch.setattr(Snapshot, "lost_entries", lambda *_: 0)


MUTATIONS = [
    Mutation(
        "an entry is trusted without a look at the base that it names",
        replace(TableState, "leads_to", lambda *_: True),
        {on_another_base: "DUR-86", behind_a_checkpoint: "DUR-86"},
    ),
    Mutation(
        "a checkpoint does not have the token of its version",
        replace(delta_log, "TOKEN", "none"),
        {behind_a_checkpoint: "DUR-86"},
    ),
    Mutation(
        "whatever lies behind a gap was lost",
        replace(snapshot, "is_left_over", lambda *_: False),
        {behind_a_gap: "DUR-86", checkpoint_left: "DUR-86"},
    ),
    Mutation(
        "nobody removes what is left over",
        _nobody_removes,
        {on_another_base: "DUR-86", on_and_on: "DUR-86"},
    ),
    Mutation(
        "a commit looks at its base alone",
        _looks_at_its_base_alone,
        {on_and_on: "DUR-86"},
    ),
]


@each_case(MUTATIONS)
def test_the_rule_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path, clock: ManualClock) -> None:
    case.run(lambda _: (tmp_path, clock), (LakeQueueError, pytest.fail.Exception))
