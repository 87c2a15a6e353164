"""Processes that send to one shard commit each other's messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from concurrency.harness import PLACES, apart
from concurrency.staged import (
    Pair,
    abandoned,
    another,
    appender_of,
    before_others_are_listed,
    bodies,
    pair_of,
    stages,
)
from concurrency.steps import at
from insides import place_of
from lakequeue import DamagedTable, LakeQueue, QueueClientError, SystemClock
from lakequeue.storage import snapshot
from lakequeue.storage.cleaning import free
from lakequeue.storage.delta_log import LiveFile, read_entry
from lakequeue.storage.engines import commit, disk_turn
from lakequeue.storage.engines.disk_turn import turn
from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.folder import Folder, ListedFile
from lakequeue.storage.messages import append, merge_segments, staged_sends
from lakequeue.storage.messages.read import LogFile


@pytest.fixture(params=PLACES)
def lq(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeQueue:
    monkeypatch.setenv("LAKEQUEUE_DURABILITY", "power")  # else a power cut could tear what others find
    on_s3 = request.param == "s3"
    return LakeQueue(request.getfixturevalue("s3_root") if on_s3 else str(tmp_path / "root"))


@pytest.fixture
def pair(lq: LakeQueue) -> Pair:
    return pair_of(lq)


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
        folder = appender_of(here).table.folder
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
    kind = type(appender_of(here).table.folder)
    files = kind.files

    def refused(self: Folder, prefix: str = "", after: str | None = None) -> Any:
        if prefix == staged_sends.FOLDER:
            raise error
        return files(self, prefix, after)  # type: ignore[arg-type]  # it is of this kind

    monkeypatch.setattr(kind, "files", refused)
    abandoned(here, "dead")
    there.send("a")
    assert bodies(there) == ["a"]


def test_files_of_later_versions_are_not_read_to_the_end_of_the_list() -> None:
    """A copy has the names of its source, whose log may have had many more versions."""
    seen = 0

    def files(*_: object) -> Iterator[ListedFile]:
        nonlocal seen
        for version in range(100_000):
            seen += 1
            yield ListedFile(f"{staged_sends._begin(version)}-0-1-p-{'0' * 32}.parquet", 1, 0.0, ())

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
    with pytest.raises(QueueClientError, match="may have been removed|is too old") as caught:
        here.send("a")
    assert caught.value.outcome_unknown
    assert bodies(there) == []


@pytest.mark.spec("DUR-25", "DUR-40")
def test_the_files_of_a_copy_are_not_added_to_it_again(pair: Pair) -> None:
    here, there = pair
    for number in range(6):
        (here, there)[number % 2].send(str(number))
    another(here).copy(LakeQueue(f"{place_of(here)}-copy"))
    [copy] = apart(f"{place_of(here)}-copy", SystemClock(), 1)
    copy.queue("orders").send("first in the copy")
    copy.compact()
    queue = another(copy.queue("orders")).queue("orders")
    stages(queue)
    queue.send("last")
    assert bodies(queue) == ["0", "1", "2", "3", "4", "5", "first in the copy", "last"]
    assert another(queue).check() == []


@pytest.mark.spec("DUR-25", "DUR-80")
def test_after_a_restore_a_file_of_later_versions_is_not_added(pair: Pair) -> None:
    here, there = pair
    stages(here, 0)
    here.send("old")
    folder = appender_of(here).table.folder
    kept = {each.name for each in folder.files("_delta_log")}
    for number in range(6):
        there.send(str(number))
    stages(here)
    appender_of(here).refresh()
    abandoned(here, "dead")
    folder.remove([each.name for each in folder.files("_delta_log") if each.name not in kept])
    for body in ("a", "b"):
        queue = another(here).queue("orders")
        stages(queue)
        queue.send(body)
        appender_of(queue).table.checkpoint()
    found = bodies(queue)  # maybe also some that the backup did not have
    assert {"a", "b", "old"} <= {*found} and len(found) == len({*found}) and "dead" not in found
    assert another(here).check() == []


@pytest.mark.spec("DUR-25", "DUR-80")
def test_a_restore_before_the_commit_leaves_the_outcome_unknown(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    here.send("old")
    folder = appender_of(here).table.folder
    kept = {each.name for each in folder.files("_delta_log")}
    there.send("later")
    appender_of(here).refresh()

    def restore() -> None:
        folder.remove([each.name for each in folder.files("_delta_log") if each.name not in kept])
        monkeypatch.setattr(commit, "OLDEST_BASE", 0.0)

    at(monkeypatch, append.Appender, "append_staged", restore)
    with pytest.raises(DamagedTable) as caught:
        here.send("x")
    assert caught.value.outcome_unknown, "others may commit it"


@pytest.mark.spec("DUR-25", "DUR-34")
def test_a_repair_finds_what_a_torn_entry_committed(pair: Pair) -> None:
    here, _ = pair
    for body in ("a", "b"):
        here.send(body)
    folder = appender_of(here).table.folder
    last = max(each.name for each in folder.files("_delta_log") if each.name.endswith(".json"))
    folder.replace(last, folder.read(last)[:40])
    another(here).repair(apply=True)
    after = another(here)
    assert bodies(after.queue("orders")) == ["a", "b"] and after.check() == []


def test_senders_merge_staged_sends_but_no_files_of_bulk_sends() -> None:
    def segments(folder: str, size: int) -> list[list[LogFile]]:
        files = [LiveFile("", f"{folder}/{number}", size, 1, {}, {}, {}, {}) for number in range(20)]
        return [[LogFile(file, 0, 0, 0, 0, True, False, False, 0, None)] for file in files]

    limit = merge_segments.TIERS[-1]
    bulk, staged = segments("bulk", 1), segments(staged_sends.FOLDER, 1)
    assert merge_segments._newest_small(bulk, limit) == []
    assert merge_segments._newest_small(bulk + staged, limit) == staged
    assert len(merge_segments._newest_small(segments(staged_sends.FOLDER, limit), limit)) == 8, "128 MiB in memory"


@pytest.mark.spec("DUR-25")
@pytest.mark.parametrize("by", ["another", "nobody"])
def test_a_send_is_found_however_many_commits_came_meanwhile(
    pair: Pair, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    here.send("0")
    appender_of(there).refresh()
    monkeypatch.setattr(snapshot, "_LEARNED", 2)

    def meanwhile() -> None:
        if by == "another":
            there.send("1")
        stages(there, 0)
        for number in range(2, 8):
            there.send(str(number))

    before_others_are_listed(monkeypatch, meanwhile)
    here.send("x")
    assert bodies(there) == ["0", *("1" if by == "another" else ""), *"234567", "x"]


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("LAKEQUEUE_DURABILITY", "power")
    return pair_of(LakeQueue(str(tmp_path / "root")))


def first_wait(patch: pytest.MonkeyPatch) -> threading.Event:
    """Set once anybody waits for a turn, however long it takes."""
    patch.setattr(disk_turn, "STOPPED", 60)
    patch.setattr(disk_turn, "LONGEST", 60)
    looked, take = threading.Event(), disk_turn._take

    def taken(lock: FileLock, waits: Callable[[FileLock], bool], pause: float) -> None:
        def noted(lock: FileLock) -> bool:
            looked.set()
            return waits(lock)

        take(lock, noted, pause)

    patch.setattr(disk_turn, "_take", taken)
    return looked


@pytest.mark.spec("DUR-25", "DUR-24")
def test_a_send_that_waits_for_its_turn_ends_when_another_process_has_committed_it(
    disks: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = disks
    here.send("0")
    waits = first_wait(monkeypatch)
    table = appender_of(here).table
    with ThreadPoolExecutor(1) as pool, turn(table.path):
        sent = pool.submit(there.send, "x")
        assert waits.wait(60)
        here.send("y")  # this thread has the turn
        sent.result(60)
    assert bodies(here) == ["0", "x", "y"]
    assert len(read_entry(table.folder, table.version).added) == 2


@pytest.mark.spec("DUR-25", "DUR-65")
def test_freeing_space_at_once_leaves_what_waits_for_its_commit(disks: Pair) -> None:
    here, there = disks
    there.send("0")
    abandoned(here, "dead")
    free(appender_of(there).table, 0)
    there.send("a")
    assert bodies(there) == ["0", "a", "dead"]


@pytest.mark.spec("DUR-24")
def test_only_who_waited_for_a_turn_stages_its_sends(disks: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = disks
    waits = first_wait(monkeypatch)
    stages(here, 0)
    for number in range(4):
        (here, there)[number % 2].send(str(number))
    assert not appender_of(here).stages
    with ThreadPoolExecutor(1) as pool:
        with turn(appender_of(here).table.path):
            sent = pool.submit(here.send, "x")
            assert waits.wait(60)
            there.send("y")
        sent.result(60)
    assert appender_of(here).stages
