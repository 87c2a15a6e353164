"""A backup is restored under a process that keeps its handles (DUR-80), and during its calls (DUR-85)."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from concurrency.harness import apart, in_place
from concurrency.staged import stages
from insides import engine_of, shard_of
from lakequeue import DamagedTable, LakeQueue, LakeQueueError, Message, Queue
from lakequeue.storage import layout, snapshot
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines import commit
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Change, Committed, transact
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.messages.body_cache import BodyCache
from lakequeue.storage.snapshot import LogTrimmed, Snapshot
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, shown_by

Restore = Callable[[Path, Path], None]
VERBS: dict[str, Callable[[Queue], object]] = {
    "send": lambda queue: queue.send("sent"),
    "receive": lambda queue: queue.receive(10),
    "purge": Queue.purge,
    "counts": Queue.counts,
}
"""What the process does first."""


def by_a_swap(backup: Path, root: Path) -> None:
    root.rename(root.with_name("set aside"))
    shutil.copytree(backup, root)


def settled(queue: Queue) -> str:
    """A message is received and deleted, so that the ledger has moved on."""
    [message] = queue.receive()
    queue.delete(message.receipt_handle)
    return message.body


def once(queue: Queue, verb: Callable[[Queue], object]) -> None:
    """The first call that meets the restored tables says so, and no other one does."""
    with pytest.raises(DamagedTable, match="a backup was restored"):
        verb(queue)
    for each in (Queue.counts, *VERBS.values()):
        if each is not Queue.purge:
            each(queue)


def agree(running: Queue, fresh: Queue, sent: dict[str, str]) -> list[str]:
    """What a process that kept running receives is what a new one sees; bodies, by offset."""
    rows = shard_of(fresh).reader.messages(0, shard_of(fresh).ledger.log().end - 1)
    stored = {row["message_id"]: row["body"] for row in rows if row is not None}
    messages: list[Message] = []
    while more := running.receive(10, visibility_timeout=600):
        messages += more
    assert all(stored.get(message.message_id) == message.body for message in messages)
    assert sent.items() <= stored.items()
    return list(stored.values())


BY_NAMES = "on a store, by names"
"""Where the log was listed lately, so that single entries are looked at."""


def saved(lq: LakeQueue, how: str) -> Callable[[], None]:
    """Makes a backup of a root; restores it when it is called."""
    if how not in ("on a store", BY_NAMES):
        root = Path(lq.root)
        backup = root.with_name("backup")
        shutil.copytree(root, backup)
        return partial(by_a_swap if how == "by a swap" else in_place, backup, root)
    folder = engine_of(lq).store.folder(lq.root)
    files = {file.name: folder.read(file.name) for file in folder.files()}

    def restore() -> None:
        folder.remove([file.name for file in folder.files()])
        for name, data in files.items():
            folder.write(name, data)

    return restore


ON_A_STORE, BY_NAMES_ON_A_STORE = (
    pytest.param(how, marks=pytest.mark.objectstore) for how in ("on a store", BY_NAMES)
)


@pytest.mark.spec("DUR-80")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", ["by a swap", "in place", ON_A_STORE, BY_NAMES_ON_A_STORE])
@pytest.mark.parametrize("since", ["sends", "receives", "sends of others", "many sends of others"])
def test_another_history_is_noticed_once_and_used(
    request: pytest.FixtureRequest, clock: ManualClock, monkeypatch: Patch, since: str, how: str, verb: str
) -> None:
    """Other processes may have sent to the restored tables since, so many that their logs were trimmed."""
    trimmed, grown = since == "many sends of others" and how != "on a store", "others" in since
    monkeypatch.setattr("lakequeue.storage.engines.log_trimming.READING", 0)
    monkeypatch.setattr("lakequeue.storage.engines.log_trimming.LOG_ENTRIES", 5 if trimmed else 500)
    on_a_store = how in ("on a store", BY_NAMES)
    root = request.getfixturevalue("s3_root" if on_a_store else "tmp_path")
    [lq] = apart(root if on_a_store else root / "root", clock, 1)
    queue = lq.create_queue("orders")
    queue.send("first")
    settled(queue)
    queue.send("kept")
    restore = saved(lq, how)
    for number in range(5):
        queue.send(f"lost {number}")
    if since != "sends":
        settled(queue)
    restore()
    sent: dict[str, str] = {}
    if grown:
        other = apart(lq.root, clock, 1)[0].queue("orders")
        bodies = [f"other {number}" for number in range(110 if trimmed else 9)]
        sent = {other.send(body).message_id: body for body in bodies}
        settled(other)
        settled(other)
    if on_a_store:  # time passes
        monkeypatch.setattr(commit, "OLDEST_BASE", 0.0)
        monkeypatch.setattr(snapshot, "_CONFIRMED", 0.0)
    if how == BY_NAMES:
        monkeypatch.setattr(Snapshot, "follow", Snapshot.confirm)
    elif on_a_store:
        monkeypatch.setattr(snapshot, "_IDLE", 0.0)
    if trimmed:  # it may be that nothing is left to compare with: then nothing is said, nor believed
        with suppress(DamagedTable):
            VERBS[verb](queue)
    else:
        once(queue, VERBS[verb])
    if not trimmed or verb != "purge":
        sent |= {queue.send(body).message_id: body for body in ("new", "newer")}
        assert agree(queue, apart(lq.root, clock, 1)[0].queue("orders"), sent)[-2:] == ["new", "newer"]
    assert not lq.check()


class Moment:
    """Calls ``act`` right before the file operation with a number, and notes all of them."""

    def __init__(self, patch: Patch, act: Callable[[], object], number: int | None) -> None:
        self.done: list[str] = []
        self._patch, self._act, self._number = patch, act, number

    def watch(self) -> None:
        for name in ("open", "link", "replace", "stat", "fsync", "unlink"):
            self._patch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def _call(self, name: str, call: Callable[..., Any], *given: Any, **more: Any) -> Any:
        self.done.append(name)
        if len(self.done) - 1 == self._number:
            self._patch.undo()
            self._act()
        return call(*given, **more)


CHANGES: dict[str, Callable[[Queue], object]] = {
    "send": VERBS["send"],
    "receive": lambda queue: [message.body for message in queue.receive()],
    "staged send": lambda queue: queue.send("sent"),
}


def during(tmp_path: Path, clock: ManualClock, verb: str, restore: Restore, number: int | None) -> list[str]:
    """Restores a backup before a file operation of a verb; judges the answer, and returns all operations."""
    root, backup = tmp_path / "root", tmp_path / "backup"
    [lq] = apart(root, clock, 1)
    queue = lq.create_queue("orders")
    queue.send("kept")
    shutil.copytree(root, backup)
    queue.send("lost")
    if verb == "staged send":
        stages(queue)
    with pytest.MonkeyPatch.context() as patch:
        moment = Moment(patch, partial(restore, backup, root), number)
        moment.watch()
        try:
            answer: object = CHANGES[verb](queue)
        except DamagedTable as error:
            answer = error
    if number is None:
        return moment.done
    assert restore is not by_a_swap or files_of(root) <= files_of(backup), "nothing is written there"
    fresh = apart(root, clock, 1)[0].queue("orders")
    assert not fresh_findings(root, clock)
    if not isinstance(answer, DamagedTable):  # all that was left may be restored, and so may what was done
        assert not {"link", "stat"} & set(moment.done[number + 1 :]), f"{answer} before {moment.done[number:]}"
    else:
        for each in (VERBS["counts"], VERBS["send"], VERBS["counts"]):  # it is the only error
            each(queue)
    clock.advance(60)
    bodies = [message.body for message in fresh.receive(10)]
    assert bodies == ["kept", *(["sent"] if isinstance(answer, DamagedTable) else [])]
    return moment.done


def files_of(root: Path) -> set[Path]:
    """Files below a root, without locks."""
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"}


def fresh_findings(root: Path, clock: ManualClock) -> list[Any]:
    return list(apart(root, clock, 1)[0].check())


@pytest.mark.spec("DUR-85")
@pytest.mark.parametrize("verb", CHANGES)
def test_a_restore_before_any_file_operation_of_a_call_is_reported(
    tmp_path: Path, clock: ManualClock, verb: str
) -> None:
    operations = during(tmp_path / "none", clock, verb, by_a_swap, None)
    assert "link" in operations
    for number in range(len(operations)):
        during(tmp_path / str(number), clock, verb, by_a_swap, number)


@pytest.mark.spec("DUR-80")
def test_a_compaction_that_a_restore_meets_at_its_end_fails_once(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    """The backup has no table of statistics yet."""
    root, backup, opened = tmp_path / "root", tmp_path / "backup", Engine.open
    [lq] = apart(root, clock, 1)
    queue = lq.create_queue("orders")
    queue.send("kept")
    shutil.copytree(root, backup)
    lq.compact()
    queue.send("lost")
    settled(queue)
    clock.advance(60)

    def late(engine: Engine, path: str) -> Table:
        if path == layout.stats_path(lq.root):
            by_a_swap(backup, root)
        return opened(engine, path)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "open", late)
        [told] = [failure for summary in lq.compact() for failure in summary.failures]
    assert "statistics" in told
    assert [message.body for message in queue.receive(10)] == ["kept"]
    assert not [failure for summary in lq.compact() for failure in summary.failures]


@pytest.mark.spec("DUR-80")
@pytest.mark.parametrize("restore", [by_a_swap, in_place])
@pytest.mark.parametrize("grown", [False, True])
def test_a_compaction_reports_a_restore_once_and_the_next_one_continues(
    tmp_path: Path, clock: ManualClock, restore: Restore, grown: bool
) -> None:
    root, backup = tmp_path / "root", tmp_path / "backup"
    [lq] = apart(root, clock, 1)
    queue = lq.create_queue("orders")
    for body in ("first", "kept"):
        queue.send(body)
    shutil.copytree(root, backup)
    for number in range(5):
        queue.send(f"lost {number}")
    settled(queue)
    lq.compact()
    restore(backup, root)
    if grown:
        other = apart(root, clock, 1)[0].queue("orders")
        for number in range(20):
            other.send(f"other {number}")
    told = [failure for summary in lq.compact() for failure in summary.failures]
    assert len(told) == 1 and "a backup was restored" in told[0]
    assert not [failure for summary in lq.compact() for failure in summary.failures]
    for each in VERBS.values():
        if each is not Queue.purge:
            each(queue)
    clock.advance(600)
    assert len(agree(queue, apart(root, clock, 1)[0].queue("orders"), {})) >= 2
    assert not lq.check()


@pytest.mark.spec("DUR-80")
def test_files_that_are_copied_but_the_same_are_no_other_history(tmp_path: Path, clock: ManualClock) -> None:
    root, backup = tmp_path / "root", tmp_path / "backup"
    [lq] = apart(root, clock, 1)
    queue = lq.create_queue("orders")
    queue.send("first")
    settled(queue)
    shutil.copytree(root, backup, copy_function=shutil.copyfile)  # with new times, too
    by_a_swap(backup, root)
    queue.send("second")
    assert settled(queue) == "second"


@pytest.mark.spec("DUR-80")
@pytest.mark.objectstore
def test_what_a_sender_cached_before_a_restore_is_forgotten_if_the_sender_opens_the_log_again(
    s3_root: str, clock: ManualClock
) -> None:
    """The handle for reads has read no entry of the lost history, so that it has nothing to compare."""
    [lq] = apart(s3_root, clock, 1)
    queue = lq.create_queue("orders")
    queue.send("kept")
    queue.receive(visibility_timeout=0)
    restore = saved(lq, "on a store")
    apart(s3_root, clock, 1)[0].queue("orders").send("lost, and read by the sender alone")
    queue.send("lost")
    restore()
    for body in "ab":
        apart(s3_root, clock, 1)[0].queue("orders").send(body)
    shard_of(queue).sender._drop()  # as after a failure of storage
    queue.send("new")
    assert [message.body for message in queue.receive(10)] == ["kept", "a", "b", "new"]


@pytest.mark.spec("DUR-80")
def test_the_catalog_of_another_history_is_noticed_too(tmp_path: Path, clock: ManualClock) -> None:
    root, backup = tmp_path / "root", tmp_path / "backup"
    [lq] = apart(root, clock, 1)
    for name in ("kept", "also"):
        lq.create_queue(name)
    shutil.copytree(root, backup)
    lq.create_queue("lost")
    by_a_swap(backup, root)
    with pytest.raises(DamagedTable, match=r"queues.*a backup was restored"):
        lq.list_queues()
    assert [queue.name for queue in lq.list_queues()] == ["also", "kept"]
    lq.create_queue("new")
    assert [queue.name for queue in apart(root, clock, 1)[0].list_queues()] == ["also", "kept", "new"]


@pytest.mark.spec("DUR-80")
@pytest.mark.parametrize("others", range(4))
def test_a_log_without_what_another_handle_of_the_process_committed_is_another(
    tmp_path: Path, clock: ManualClock, others: int
) -> None:
    """The reader has read less than was committed, and the body cache holds the rest."""
    [lq] = apart(tmp_path / "root", clock, 1)
    path = layout.messages_path(lq.root, lq.create_queue("orders").key, 0)
    reader, writer = (engine_of(lq).open(path) for _ in range(2))
    for version in (1, 2):
        writer.add([], {"x": version}, f"lost {version}")
    reader.learn(writer)
    for version in (1, 2):
        Path(path, entry_name(version)).unlink()
    other = engine_of(lq).open(path)
    for version in range(1, others + 1):
        other.add([], {"x": version}, f"other {version}")
    follow = reader.refresh if others % 2 else reader.confirm
    with pytest.raises(DamagedTable, match="a backup was restored"):
        follow()


# --- mutations


def _restored(queue: Queue, backup: Path, root: Path, clock: ManualClock, **others: Any) -> Queue:
    by_a_swap(backup, root)
    other = apart(root, clock, 1)[0].queue("orders")
    for number in range(others.get("count", 0)):
        other.send(f"other {number}")
    return other


def what_is_sent_is_there(root: Path, clock: ManualClock) -> None:
    queue, backup = _running(root, clock)
    fresh = _restored(queue, backup, root, clock, count=1)
    with pytest.raises(DamagedTable):
        queue.send("refused")
    assert queue.send("new").message_id in {message.message_id for message in fresh.receive(10)}


def what_is_received_is_what_was_sent(root: Path, clock: ManualClock) -> None:
    queue, backup = _running(root, clock)
    _restored(queue, backup, root, clock, count=1)
    shard_of(queue).ledger._drop()  # as after any error: the handle is gone, and bodies are cached
    shard_of(queue).sender._drop()
    assert [message.body for message in queue.receive(10)] == ["kept", "other 0"]


def what_was_decided_on_a_lost_entry_is_decided_again(root: Path, clock: ManualClock) -> None:
    """The restored log gets an entry of the same number, with the same ids, during the check of the base."""
    engine, path, bucket = Engine(Store()), "s3://lake/table", MemoryStore()
    confirm = Snapshot.confirm

    def one_more(table: Table, name: str) -> Change[str]:
        known = table.transaction("count")
        return Change({"count": known}, {"count": known + 1}, partial(table.add, []), name)

    def commit_by(name: str) -> None:
        other = engine.open(path)
        assert transact(other, lambda _: one_more(other, name), busy="busy") == Committed(name, 0, avoided=False)

    def raced(self: Snapshot, most: float = math.inf, **more: int) -> bool:
        try:
            return confirm(self, most, **more)
        except LogTrimmed:
            commit_by("another")
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_client", lambda *_: bucket)
        engine.create(path, pa.schema([("a", pa.int64())]), [], {})
        commit_by("lost")
        mine, bases = engine.open(path), list[object]()

        def decide(_: int) -> Change[str]:
            bases.append(mine.state.token)
            return one_more(mine, "mine")

        Store().folder(path).remove([entry_name(1)])
        patch.setattr(commit, "OLDEST_BASE", 0.0)
        patch.setattr(Snapshot, "confirm", raced)
        assert transact(mine, decide, busy="busy") == Committed("mine", 1, avoided=False)
    assert len(set(bases)) == 2 and mine.version == 2


def commits_behind_a_gap_do_not_vouch_for_the_log(root: Path, clock: ManualClock) -> None:
    """A process checks a log on a store, commits on, and lands behind the gap that a restore has made.

    The backup has the base of the last check, or not. The next check lists the log, or looks at single entries.
    """
    for checked, listed_for in product((2, 5), (0.0, 60.0)):
        engine, path, bucket = Engine(Store()), "s3://lake/table", MemoryStore()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "_client", lambda *_, bucket=bucket: bucket)
            engine.create(path, pa.schema([("a", pa.int64())]), [], {})
            mine = engine.open(path)

            def commit_one(mine: Table = mine) -> None:
                transact(mine, lambda _: Change({}, {}, partial(mine.add, []), None), busy="busy")

            for version in range(1, 7):
                patch.setattr(commit, "OLDEST_BASE", 0.0 if version - 1 == checked else 3_600.0)
                commit_one()
            Store().folder(path).remove([entry_name(version) for version in range(3, 7)])
            patch.setattr(commit, "OLDEST_BASE", 3_600.0)
            commit_one()
            assert mine.version == 7
            patch.setattr(commit, "OLDEST_BASE", 0.0)
            patch.setattr(snapshot, "_IDLE", listed_for)
            with pytest.raises(DamagedTable):
                commit_one()


def _running(root: Path, clock: ManualClock) -> tuple[Queue, Path]:
    """A process with a queue that has sent and received since a backup."""
    lq: LakeQueue = apart(root, clock, 1)[0]
    queue, backup = lq.create_queue("orders"), root.with_name("backup")
    queue.send("kept")
    shutil.copytree(root, backup)
    queue.send("lost")
    queue.receive(10, visibility_timeout=0)
    return queue, backup


def an_entry_that_lands_in_a_trimmed_log_is_of_no_other_log(root: Path, clock: ManualClock) -> None:
    """The PUT of an entry was held up until another process had trimmed the log, so that its name was free."""
    for idle in (0.0, 60.0):  # the next look lists the log, or compares single entries
        engine, path, bucket = Engine(Store()), "s3://lake/table", MemoryStore()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "_client", lambda *_, bucket=bucket: bucket)
            patch.setattr(snapshot, "_IDLE", idle)
            patch.setattr(snapshot, "_CONFIRMED", 0.0)
            engine.create(path, pa.schema([("a", pa.int64())]), [], {})
            writer, late = engine.open(path), engine.open(path)
            writer.add([], {"x": 1}, "first")
            mine, folder = engine.open(path), Store().folder(path)
            writer.add([], {"x": 2}, "second")
            writer.checkpoint()
            folder.remove([entry_name(0), entry_name(1)])
            late.add([], {"y": 1}, "late")
            assert late.version == 1
            mine.refresh()
            assert (mine.version, mine.transaction("x"), mine.transaction("y")) == (2, 2, 0)


def _keep_bodies(patch: Patch) -> None:
    patch.setattr(BodyCache, "clear", lambda self: None)


def _forget_checks(patch: Patch) -> None:
    patch.setattr(Snapshot, "_checked", property(lambda self: self._entry_id, lambda *_: None), raising=False)


def _compare_numbers(patch: Patch) -> None:
    holds = commit.Commit._holds

    def in_any_log(self: commit.Commit) -> bool:
        self._lineage = self._table.lineage
        return holds(self)

    patch.setattr(commit.Commit, "_holds", in_any_log)


before_each_operation = shown_by(
    test_a_restore_before_any_file_operation_of_a_call_is_reported, lambda *given: (*given, "send")
)
MUTATIONS = [
    Mutation(
        "an entry of the same number is the same entry",
        replace(Snapshot, "_compare", lambda *_: None),
        {what_is_sent_is_there: "DUR-80"},
    ),
    Mutation(
        "a commit is acknowledged without a look at its place",
        replace(Table, "_is_still_based", lambda _: True),
        {before_each_operation: "DUR-85"},
    ),
    Mutation(
        "a commit goes where the path leads",
        replace(LocalFolder, "pinned", lambda folder, opened=None: nullcontext(folder)),
        {before_each_operation: "DUR-85"},
    ),
    Mutation(
        "a check of a log looks at its end alone",
        _forget_checks,
        {commits_behind_a_gap_do_not_vouch_for_the_log: "DUR-80"},
    ),
    Mutation(
        "a fence is numbers alone", _compare_numbers, {what_was_decided_on_a_lost_entry_is_decided_again: "DUR-80"}
    ),
    Mutation(
        "an entry below a checkpoint shows another log",
        replace(Snapshot, "_is_trimmed", lambda *_: False),
        {an_entry_that_lands_in_a_trimmed_log_is_of_no_other_log: "DUR-80"},
    ),
    Mutation("bodies stay cached by offset", _keep_bodies, {what_is_received_is_what_was_sent: "DUR-80"}),
]


@each_case(MUTATIONS)
def test_the_rule_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path, clock: ManualClock) -> None:
    case.run(lambda _: (tmp_path / "root", clock), (LakeQueueError, pytest.fail.Exception))
