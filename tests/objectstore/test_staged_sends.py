"""Processes that send to one shard of an object store commit each other's messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.object_store import Counted

from concurrency.harness import apart
from insides import shard_of
from lakequeue import DamagedTable, LakeQueue, OverLimit, Queue, QueueClientError, SystemClock
from lakequeue.model.messages import Message
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines import commit
from lakequeue.storage.folder import Entry, Folder
from lakequeue.storage.messages import append, merge_segments, staged_sends
from lakequeue.storage.messages.read import LogFile
from objectstore.servers import never_confirm, requests

Pair = tuple[Queue, Queue]


def stages(queue: Queue, sends: int = append.STAGED_SENDS) -> None:
    shard_of(queue)._open_appender()._to_stage = sends


def pair_of(lq: LakeQueue, name: str = "orders", **attributes: Any) -> Pair:
    """One queue in two processes; each has lost a race there."""
    [other] = apart(lq.root, SystemClock(), 1)
    here = lq.create_queue(name, **attributes)
    there = other.queue(name)
    for queue in (here, there):
        stages(queue)
    return here, there


@pytest.fixture
def pair(lq: LakeQueue) -> Pair:
    return pair_of(lq)


def bodies(queue: Queue) -> list[str]:
    found: list[Message] = []
    while got := queue.receive(10):
        found += got
    return sorted(message.body for message in found)


def before_others_are_listed(patch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Makes a call once: the next sender has written its file, and has not decided yet."""
    others, calls = staged_sends.others, [call]

    def later(*arguments: Any) -> Any:
        found = others(*arguments) if not calls else None
        while calls:
            calls.pop()()
        return others(*arguments) if found is None else found

    patch.setattr(staged_sends, "others", later)


def abandoned(queue: Queue, body: str) -> None:
    """A send whose process dies before its commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append.Appender, "append_staged", _die)
        with pytest.raises(QueueClientError) as caught:
            queue.send(body)
    assert caught.value.outcome_unknown, "others may commit it"
    stages(queue)


def _die(*_: object) -> None:
    raise OSError("killed")


@pytest.mark.spec("DUR-25")
def test_who_commits_first_commits_for_all(store: Counted, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair
    never_confirm(monkeypatch)
    here.send("0")
    there.send("a")
    before_others_are_listed(monkeypatch, lambda: there.send("b"))
    asked = requests(store, lambda: here.send("c"))
    # of each its file, a listing and its entry, of which one was refused; what came before; the winner's entry
    assert asked["PUT"] == 4 and asked["LIST"] == 2 and asked["GET"] <= 3, asked
    here.send("d")
    assert bodies(there) == ["0", "a", "b", "c", "d"]
    assert here.counts().in_flight == 5


@pytest.mark.spec("ERR-9")
def test_a_lost_race_keeps_the_file(store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else may add it: the cap on stored messages is checked anew."""
    here, there = pair_of(lq, max_stored_messages=3)
    there.send("a")
    commit, races = append.commit, [lambda: there.send("b")]

    def late(*arguments: Any) -> bool:
        while races:
            races.pop()()
        return commit(*arguments)

    here.counts()
    monkeypatch.setattr(append, "commit", late)
    asked = requests(store, lambda: here.send("c"))
    assert asked["PUT"] == 5, "two files, and three entries of which one was refused"
    with pytest.raises(OverLimit):
        there.send("d")
    assert bodies(there) == ["a", "b", "c"]


@pytest.mark.spec("DUR-25", "ERR-9")
def test_the_send_of_a_process_that_died_arrives_once_or_never(pair: Pair) -> None:
    here, there = pair
    abandoned(here, "dead")
    for number in range(3):
        there.send(str(number))
        here.send(str(number))
    shard_of(there).compact(0, False)
    there.send("last")
    assert bodies(here) == ["0", "0", "1", "1", "2", "2", "dead", "last"]


@pytest.mark.spec("DUR-25")
@pytest.mark.parametrize("why", ["another directory", "another name", "too old", "too many versions"])
def test_files_that_are_no_recent_sends_are_left_alone(
    pair: Pair, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    if why == "another directory":
        monkeypatch.setattr(staged_sends, "FOLDER", "elsewhere")
    abandoned(here, "dead")
    monkeypatch.undo()
    if why == "another name":
        folder = shard_of(here)._open_appender().table.folder
        [found] = folder.files(staged_sends.FOLDER)
        folder.write(f"{found.name}.crc", folder.read(found.name))
        folder.remove([found.name])
    elif why == "too old":
        monkeypatch.setattr(staged_sends, "RECENT", -1)
    elif why == "too many versions":
        monkeypatch.setattr(staged_sends, "VERSIONS", 0)
        stages(there, 0)
        there.send("other")
        stages(there)
    there.send("a")
    assert "dead" not in bodies(there)


@pytest.mark.spec("DUR-25")
def test_messages_that_older_attributes_allowed_are_not_committed_by_others(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair

    def change() -> None:
        there.set_attributes(delay=0, visibility_timeout=60)
        there.send("other")

    there.send("first")
    here.send("second")
    before_others_are_listed(monkeypatch, change)
    here.send("x")
    assert bodies(there) == ["first", "other", "second", "x"], "it was validated anew, and sent once"


@pytest.mark.spec("DUR-25")
@pytest.mark.parametrize("error", [PermissionError("403 Forbidden"), OSError("503 SlowDown")])
def test_a_sender_that_cannot_list_sends_its_own(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    here, there = pair
    files = Folder.files

    def refused(self: Folder, prefix: str = "", after: str | None = None) -> Any:
        if prefix == staged_sends.FOLDER:
            raise error
        return files(self, prefix, after)

    monkeypatch.setattr(Folder, "files", refused)
    abandoned(here, "dead")
    there.send("a")
    assert bodies(there) == ["a"]


def test_files_of_later_versions_are_not_read_to_the_end_of_the_list() -> None:
    """A copy has the names of its source, whose log may have had many more versions."""
    seen = 0

    def files(*_: object) -> Iterator[Entry]:
        nonlocal seen
        for version in range(100_000):
            seen += 1
            yield Entry(f"{staged_sends.FOLDER}/{version:020}-0-1-p-{'0' * 32}.parquet", 1, 0.0, ())

    state = SimpleNamespace(newest_files=lambda: (0, {}))
    table: Any = SimpleNamespace(version=7, folder=SimpleNamespace(files=files), files=list, state=state)
    own: Any = SimpleNamespace(
        since=7, written_at=time.time(), attributes_version=0, file=SimpleNamespace(path="")
    )
    assert staged_sends.others(table, own) == [] and seen == 9


@pytest.mark.spec("DUR-25", "ERR-2")
def test_a_file_that_may_have_been_removed_is_not_committed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair
    before_others_are_listed(monkeypatch, lambda: monkeypatch.setattr(staged_sends, "OLDEST", -1))
    with pytest.raises(QueueClientError, match="may have been removed") as caught:
        here.send("a")
    assert caught.value.outcome_unknown
    assert bodies(there) == []


@pytest.mark.spec("DUR-25", "DUR-40")
def test_the_files_of_a_copy_are_not_added_to_it_again(pair: Pair) -> None:
    here, there = pair
    for number in range(6):
        (here, there)[number % 2].send(str(number))
    source = here._runtime.root.path
    apart(source, SystemClock(), 1)[0].copy(apart(f"{source}-copy", SystemClock(), 1)[0])
    [copy] = apart(f"{source}-copy", SystemClock(), 1)
    copy.queue("orders").send("first in the copy")
    copy.compact()
    [fresh] = apart(f"{source}-copy", SystemClock(), 1)
    queue = fresh.queue("orders")
    stages(queue)
    queue.send("last")
    assert bodies(queue) == ["0", "1", "2", "3", "4", "5", "first in the copy", "last"]
    assert apart(f"{source}-copy", SystemClock(), 1)[0].check() == []


@pytest.mark.spec("DUR-25", "DUR-80")
def test_after_a_restore_a_file_of_later_versions_is_not_added(pair: Pair) -> None:
    here, there = pair
    stages(here, 0)
    here.send("old")
    folder = shard_of(here)._open_appender().table.folder
    kept = {each.name for each in folder.files("_delta_log")}
    for number in range(6):
        there.send(str(number))
    stages(here)
    shard_of(here)._open_appender().refresh()
    abandoned(here, "dead")
    folder.remove([each.name for each in folder.files("_delta_log") if each.name not in kept])
    for body in ("a", "b"):
        [fresh] = apart(here._runtime.root.path, SystemClock(), 1)
        queue = fresh.queue("orders")
        stages(queue)
        queue.send(body)
        shard_of(queue)._open_appender().table.checkpoint()
    found = bodies(queue)  # maybe also some that the backup did not have
    assert {"a", "b", "old"} <= {*found} and len(found) == len({*found}) and "dead" not in found
    assert apart(here._runtime.root.path, SystemClock(), 1)[0].check() == []


@pytest.mark.spec("DUR-25", "DUR-80")
def test_a_restore_before_the_commit_leaves_the_outcome_unknown(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    here.send("old")
    folder = shard_of(here)._open_appender().table.folder
    kept = {each.name for each in folder.files("_delta_log")}
    there.send("later")
    shard_of(here)._open_appender().refresh()
    staged = append.Appender.append_staged

    def restored(*arguments: Any) -> Any:
        monkeypatch.undo()
        folder.remove([each.name for each in folder.files("_delta_log") if each.name not in kept])
        monkeypatch.setattr(commit, "OLDEST_BASE", 0.0)
        return staged(*arguments)

    monkeypatch.setattr(append.Appender, "append_staged", restored)
    with pytest.raises(DamagedTable) as caught:
        here.send("x")
    assert caught.value.outcome_unknown, "others may commit it"


@pytest.mark.spec("DUR-25", "DUR-34")
def test_a_repair_finds_what_a_torn_entry_committed(pair: Pair) -> None:
    here, _ = pair
    for body in ("a", "b"):
        here.send(body)
    folder = shard_of(here)._open_appender().table.folder
    last = max(each.name for each in folder.files("_delta_log") if each.name.endswith(".json"))
    folder.replace(last, folder.read(last)[:40])
    [fresh] = apart(here._runtime.root.path, SystemClock(), 1)
    fresh.repair(apply=True)
    [after] = apart(here._runtime.root.path, SystemClock(), 1)
    assert bodies(after.queue("orders")) == ["a", "b"] and after.check() == []


def test_senders_merge_staged_sends_but_no_files_of_bulk_sends() -> None:
    def segments(folder: str, size: int) -> list[list[LogFile]]:
        files = [LiveFile("", f"{folder}/{number}", size, 1, {}, {}, {}, {}) for number in range(20)]
        return [[LogFile(file, 0, 0, 0, 0, True, False, False, None)] for file in files]

    limit = merge_segments.TIERS[-1]
    bulk, staged = segments("bulk", 1), segments(staged_sends.FOLDER, 1)
    assert merge_segments._newest_small(bulk, limit) == []
    assert merge_segments._newest_small(bulk + staged, limit) == staged
    assert len(merge_segments._newest_small(segments(staged_sends.FOLDER, limit), limit)) == 8, "128 MiB in memory"


def test_staged_sends_are_merged(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair_of(lq)
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 10)
    for number in range(30):
        (here, there)[number % 2].send(str(number), delay=number % 3)
    table = shard_of(here)._open_appender().table
    table.refresh()
    assert len(table.files()) < 20
    found = here.counts()
    assert found.visible + found.delayed == 30
