"""Processes that receive from one shard of an object store commit each other's requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benchmarks.object_store import Counted

from concurrency.harness import apart
from concurrency.steps import Killed, at
from insides import shard_of
from lakequeue import LakeQueue, Message, Queue, QueueClientError, QueueServiceError, SendEntry
from lakequeue.runtime import ledger_requests
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.shard.commands import Claim
from lakequeue.shard.texts import FORMAT, to_text
from lakequeue.storage import layout, requests
from lakequeue.storage.engines.point import Table
from lakequeue.testing import ManualClock
from objectstore import servers

pytestmark = pytest.mark.spec("DUR-26")
Pair = tuple[Queue, Queue]


@pytest.fixture
def pair(lq: LakeQueue, store: Counted, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """One queue with five messages in two processes; each has lost a race there."""
    monkeypatch.setattr(requests, "RECENT", 600.0)  # real seconds, which a slow machine takes between two calls
    clock = ManualClock()
    here, there = (lake.create_queue("orders", visibility_timeout=30) for lake in apart(lq.root, clock))
    here.send_batch([SendEntry(body) for body in "abcde"])
    for queue in (here, there):
        shard_of(queue).ledger._requests.meet()
        queue.counts()
    return here, there


def ledger_of(queue: Queue) -> Table:
    table = shard_of(queue).ledger._open_ledger().table
    table.refresh()
    return table


def before_a_look(patch: pytest.MonkeyPatch, act: Callable[[], object] | BaseException) -> None:
    """Acts once: a request is posted, and its process has not looked yet."""
    at(patch, requests, "look", act)


def killed(queue: Queue) -> None:
    """A receive whose process dies once its request is posted."""
    with pytest.MonkeyPatch.context() as patch:
        before_a_look(patch, Killed())
        with pytest.raises(Killed):
            queue.receive()


def test_who_commits_commits_for_all(pair: Pair, store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair
    servers.never_confirm(monkeypatch)
    version, got = ledger_of(here).version, []
    before_a_look(monkeypatch, lambda: got.extend(there.receive(2)))
    asked = servers.requests(store, lambda: got.extend(here.receive(2)))
    assert sorted(message.body for message in got) == ["a", "b", "c", "d"]
    assert ledger_of(here).version == version + 1
    # two requests, a file and an entry
    assert asked["PUT"] == 4, asked
    before_a_look(monkeypatch, lambda: there.delete(got[0].receipt_handle))
    here.delete(got[2].receipt_handle)
    assert (here.counts().in_flight, ledger_of(here).version) == (2, version + 2)


def test_errors_reach_the_process_that_asked(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair
    [first] = here.receive()
    here.delete(first.receipt_handle)
    alone = pytest.raises(QueueServiceError, here.change_visibility, first.receipt_handle, 5).value
    before_a_look(monkeypatch, lambda: there.receive())
    told = pytest.raises(type(alone), here.change_visibility, first.receipt_handle, 5).value
    assert (str(told), told.code) == (str(alone), alone.code)


def test_a_request_of_a_dead_process_ends_with_its_timeout(pair: Pair) -> None:
    here, there = pair
    killed(here)
    assert len(there.receive(2)) == 2
    assert there.counts().in_flight == 3
    there.clock.advance(31)
    again = there.receive(10)
    assert sorted(message.body for message in again) == list("abcde")
    assert sum(message.receive_count for message in again) == 5 + 3


def test_after_an_entry_the_next_one_is_awaited_without_lists(
    pair: Pair, store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of an older request lists once it has read the entry. It is dead, so another process commits."""
    here, there = pair
    servers.never_confirm(monkeypatch)
    killed(there)

    def commit_alone() -> None:
        shard_of(there).ledger._requests._rounds = 0
        there.receive()

    commit_alone()
    here.counts()
    before_a_look(monkeypatch, commit_alone)
    asked = servers.requests(store, here.receive)
    assert asked["LIST"] == 1, asked
    assert here.counts().in_flight == 4


def test_a_process_that_dies_in_its_turn_keeps_nobody_waiting(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair

    def dies() -> None:
        with pytest.MonkeyPatch.context() as patch:
            at(patch, Table, "merge", Killed())
            with pytest.raises(Killed):
                there.receive(2)

    before_a_look(monkeypatch, dies)
    got = here.receive(2)
    assert len(got) == 2 and here.counts().in_flight == 4


def test_of_two_processes_that_commit_all_at_once_the_second_finds_its_answer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    got, version = list[Message](), ledger_of(here).version
    step = at(monkeypatch, Table, "merge", lambda: got.extend(there.receive(2)))
    got += here.receive(2)
    assert step.seen == 2 and ledger_of(here).version == version + 1
    assert sorted(message.body for message in got) == ["a", "b", "c", "d"]
    assert here.counts().in_flight == 4


def test_a_request_that_lands_late_is_not_applied_again(pair: Pair) -> None:
    here, there = pair
    [got] = here.receive()
    folder = ledger_of(here).folder
    [file] = folder.files(requests.FOLDER)
    folder.write(file.name, folder.read(file.name))
    assert len(there.receive()) == 1
    assert there.counts().in_flight == 2
    here.delete(got.receipt_handle)


def test_a_receive_that_finds_nothing_leaves_no_request(pair: Pair) -> None:
    here, there = pair
    there.delete_batch([message.receipt_handle for message in there.receive(10)])
    assert here.receive() == []
    version = ledger_of(here).version
    assert here.receive() == [] and ledger_of(here).version == version, "looks commit nothing"
    there.send("f")
    assert [message.body for message in there.receive(10)] == ["f"]


@pytest.mark.parametrize(
    "why", ["no JSON", "another class", "no command", "another log", "another release", "too old", "too long ago"]
)
def test_files_that_are_no_recent_requests_are_left_alone(
    pair: Pair, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    [first] = there.receive()
    there.delete(first.receipt_handle)
    table = ledger_of(here)
    claim = Claim(1, None, "lease")
    texts = {
        "no JSON": "{",
        "another class": '{"!":"Popen","of":["true"]}',
        "no command": to_text([FORMAT, table.state.token, [1]]),
        "another release": to_text([FORMAT + 1, table.state.token, [claim]]),
        "another log": to_text([FORMAT, "another", [claim]]),
    }
    text = texts.get(why, to_text([FORMAT, table.state.token, [claim]]))
    since = table.version
    if why == "too long ago":
        monkeypatch.setattr(requests, "RECENT", -1.0)
    elif why == "too old":
        monkeypatch.setattr(requests, "VERSIONS", 0)
        since -= 1
        text = to_text([FORMAT, table.state.latest[since].token, [claim]])
    table.folder.write(f"{requests.FOLDER}/{since:020}-{'0' * 32}.json", text.encode())
    assert len(there.receive()) == 1
    assert there.counts().in_flight == 1


def test_a_request_that_fails_in_a_batch_does_not_affect_the_others(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    table = ledger_of(here)
    text = to_text([FORMAT, table.state.token, [Claim("many", None, "lease")]])  # type: ignore[arg-type]
    table.folder.write(f"{requests.FOLDER}/{table.version:020}-{'0' * 32}.json", text.encode())
    assert len(there.receive()) == 1
    assert there.counts().in_flight == 1


@pytest.mark.parametrize("step", ["post", "look"])
def test_a_failure_once_a_request_may_be_posted_has_an_unknown_outcome(
    pair: Pair, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    owner, name = {"post": (type(ledger_of(here).folder), "write"), "look": (requests, "look")}[step]
    at(monkeypatch, owner, name, OSError("no route to host"))
    with pytest.raises(QueueClientError) as caught:
        here.receive()
    assert caught.value.outcome_unknown
    assert len(there.receive(2)) == 2
    assert there.counts().in_flight == (2 if step == "post" else 3)


def test_a_process_that_meets_nobody_posts_no_more(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, _ = pair
    monkeypatch.setattr(ledger_requests, "ROUNDS", 2)
    shard_of(here).ledger._requests.meet()
    posted = at(monkeypatch, requests, "post", lambda: None, times=100)
    for _ in range(4):
        here.receive()
    assert posted.seen == 2


def test_a_process_that_commits_alone_posts_once_another_has_lost_to_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    alone = shard_of(there).ledger._requests
    alone._rounds = 0
    here.send_batch([SendEntry("f")] * 5)
    there.receive()
    before, version = ledger_of(here).transaction(layout.TURN_ID), ledger_of(here).version
    at(monkeypatch, Table, "merge", lambda: there.receive())
    here.receive()
    table = ledger_of(here)
    assert table.transaction(layout.TURN_ID) == before + 1
    assert table.version == version + 3, "a commit of each, and an empty one"
    there.receive()  # it reads of that only as its commit comes late
    assert not alone.wanted
    there.receive()
    assert alone.wanted
    # who loses to a process that posts asks for nothing
    at(monkeypatch, Table, "merge", lambda: there.receive())
    here.receive()
    assert ledger_of(here).transaction(layout.TURN_ID) == before + 1


def test_commands_of_operators_are_no_requests(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, _ = pair
    posted = at(monkeypatch, ShardLedger, "_requested", AssertionError("posted"))
    here.purge()
    assert posted.seen == 0
    pytest.raises(AssertionError, here.receive)
