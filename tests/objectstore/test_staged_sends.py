"""Processes that send to one shard of an object store commit each other's messages, in few requests."""

from __future__ import annotations

import math
import threading
from collections import Counter

import pytest
from benchmarks.object_store import Counted

from concurrency.staged import (
    abandoned,
    another,
    appender_of,
    await_merges,
    before_others_are_listed,
    bodies,
    pair_of,
    send_staged,
    stages,
)
from concurrency.steps import at
from lakequeue import LakeQueue, OverLimit
from lakequeue.runtime import shard_sender
from lakequeue.storage import requests as storage_requests
from lakequeue.storage.folder import ListedFile
from lakequeue.storage.messages import append
from lakequeue.storage.messages.merge_segments import merge_recent
from objectstore.servers import never_confirm, requests


@pytest.mark.spec("DUR-25")
def test_who_commits_first_commits_for_all(store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair_of(lq)
    never_confirm(monkeypatch)
    monkeypatch.setattr(storage_requests, "LOOKS", 0)  # `there` does not wait for the older file of `here`
    here.send("0")
    there.send("a")
    before_others_are_listed(monkeypatch, lambda: there.send("b"))
    asked = requests(store, lambda: here.send("c"))
    # of each its file, a listing and its entry, of which one was refused; looks; the winner's entry
    assert asked["PUT"] == 4 and asked["LIST"] == 2 and asked["GET"] <= 5, asked
    here.send("d")
    assert bodies(there) == ["0", "a", "b", "c", "d"]
    assert here.counts().in_flight == 5


@pytest.mark.spec("DUR-25")
def test_the_sender_of_the_oldest_file_commits(
    store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it may, the others only look. After some looks, as it is dead, one of them commits."""
    here, there = pair_of(lq)
    abandoned(there, "dead")
    another(here).queue("orders").send("plain")  # so that the files of both are of a later version
    for queue in (here, there):
        stages(queue)
        appender_of(queue).refresh()
    version = appender_of(here).table.version
    looks = at(monkeypatch, storage_requests, "pause", lambda: there.send("b"), number=2)
    here.send("a")
    assert looks.seen == 2 + storage_requests.LOOKS
    assert appender_of(there).table.version == appender_of(here).table.version == version + 1
    assert bodies(there) == ["a", "b", "dead", "plain"]


@pytest.mark.spec("DUR-25")
@pytest.mark.parametrize("again", [0, 1])
def test_after_an_entry_the_next_one_is_awaited_without_lists(
    store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """The sender of an older file lists once it has read the entry. If the next entry has no file, list again."""
    here, there = pair_of(lq)
    abandoned(there, "dead")
    plain = another(here).queue("orders")
    plain.send("0")
    stages(here)
    appender_of(here).refresh()
    at(monkeypatch, storage_requests, "look_and_list", lambda: plain.send("1"))
    at(monkeypatch, storage_requests, "pause", lambda: plain.send("2"), times=again)
    asked = requests(store, lambda: here.send("a"))
    assert asked["LIST"] == 1 + again, asked
    assert bodies(there) == sorted(["0", "1", *["2"] * again, "a", "dead"])


@pytest.mark.spec("DUR-25")
def test_segments_are_merged_beside_sends_that_others_may_commit(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 3)
    merges = list[tuple[str, object]]()
    seen = threading.current_thread
    monkeypatch.setattr(shard_sender, "merge_recent", lambda table, *_: merges.append((seen().name, table)))
    here, there = pair_of(lq)
    for number in range(6):
        send_staged(here, str(number))
        await_merges()
    assert [name for name, _ in merges] == ["lakequeue-merge"] * 2
    assert all(table is not appender_of(here).table for _, table in merges)
    assert bodies(there) == [*"012345"]


@pytest.mark.spec("DUR-25")
def test_a_merge_by_another_process_makes_no_commit_merge(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "SEGMENT_COMMITS", 3)
    merges = list[object]()
    monkeypatch.setattr(shard_sender, "merge_recent", lambda *given: merges.append(given))
    here, there = pair_of(lq)
    send_staged(here, *"0123")
    table = appender_of(there).table
    table.refresh()
    at(monkeypatch, append, "Change", lambda: merge_recent(table, 0, None, lambda: None, 3))
    here.send("4")
    await_merges()
    assert len(merges) == 1, "of the third file"
    table.refresh()
    assert len(table.files()) == 3, "all but the open segment, and what was sent meanwhile"
    assert bodies(there) == [*"01234"]


@pytest.mark.spec("DUR-25")
def test_a_merge_leaves_few_segments_alone(lq: LakeQueue) -> None:
    here, there = pair_of(lq)
    send_staged(here, *"01234")
    table = appender_of(there).table
    table.refresh()
    merge_recent(table, 0, None, lambda: None, 5)  # of the four before the open one
    assert len(table.files()) == 5
    merge_recent(table, 0, None, lambda: None, 4)
    assert len(table.files()) == 2
    assert bodies(there) == [*"01234"]


@pytest.mark.spec("DUR-25")
def test_a_merge_that_was_overtaken_catches_up(
    store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_confirm(monkeypatch)
    here, there = lq.create_queue("orders"), another(lq.create_queue("orders")).queue("orders")
    table = appender_of(there).table
    for number in range(7):
        here.send(str(number))
    version = appender_of(here).table.version
    asked = requests(store, lambda: table.add([], {"merge": 1}, "its token"))
    # four refused entries, each with one more read than the one before
    assert asked == Counter(PUT=5, GET=10), asked
    assert table.version == version + 1
    assert bodies(there) == [*"0123456"]


@pytest.mark.spec("DUR-25")
@pytest.mark.parametrize(
    ("new", "posted", "loaded", "asked"),
    [(0, 0, 0, {"GET": 2}), (2, 2, 2, {"GET": 2}), (4, 2, 2, {"GET": 2}), (4, 4, 4, {"GET": 4, "LIST": 1})],
)
def test_a_first_look_takes_one_request_after_another_only_if_there_is_more(
    store: Counted,
    lq: LakeQueue,
    monkeypatch: pytest.MonkeyPatch,
    new: int,
    posted: int,
    loaded: int,
    asked: dict[str, int],
) -> None:
    """There is more if a file was posted after more commits than were asked for at once."""
    never_confirm(monkeypatch)
    here, there = lq.create_queue("orders"), another(lq.create_queue("orders")).queue("orders")
    table = appender_of(there).table
    for number in range(new):
        here.send(str(number))
    before = table.version
    files = [ListedFile(f"asked/{before + posted:020}-{0:032x}.json", 1, 0.0, ())]
    made = requests(store, lambda: storage_requests.look_and_list(table, math.inf, lambda: files))
    assert (table.version - before, made) == (loaded, asked)


@pytest.mark.spec("ERR-9")
def test_a_lost_race_keeps_the_file(store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else may add it: the cap on stored messages is checked anew."""
    here, there = pair_of(lq, max_stored_messages=3)
    never_confirm(monkeypatch)
    there.send("a")
    here.counts()
    at(monkeypatch, append, "Change", lambda: there.send("b"))
    asked = requests(store, lambda: here.send("c"))
    assert asked["PUT"] == 5, "two files, and three entries of which one was refused"
    with pytest.raises(OverLimit):
        there.send("d")
    assert bodies(there) == ["a", "b", "c"]
