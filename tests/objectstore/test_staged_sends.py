"""Processes that send to one shard of an object store commit each other's messages, in few requests."""

from __future__ import annotations

import pytest
from benchmarks.object_store import Counted

from concurrency.staged import before_others_are_listed, bodies, pair_of
from concurrency.steps import at
from lakequeue import LakeQueue, OverLimit
from lakequeue.storage.messages import append
from objectstore.servers import never_confirm, requests


@pytest.mark.spec("DUR-25")
def test_who_commits_first_commits_for_all(store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair_of(lq)
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
    never_confirm(monkeypatch)
    there.send("a")
    here.counts()
    at(monkeypatch, append, "Change", lambda: there.send("b"))
    asked = requests(store, lambda: here.send("c"))
    assert asked["PUT"] == 5, "two files, and three entries of which one was refused"
    with pytest.raises(OverLimit):
        there.send("d")
    assert bodies(there) == ["a", "b", "c"]
