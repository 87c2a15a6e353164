"""Senders: single sends of threads and tasks that share commits, each with its own result (SND-19)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from concurrency.steps import at
from conformance.harness import Harness, local_only, numbered
from lakequeue import LakeQueue, Queue, Sender, SendResult, aio, errors
from lakequeue.operations import collect
from lakequeue.runtime.shard_sender import ShardSender
from lakequeue.storage.folder import LocalFolder
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, shown_by

pytestmark = pytest.mark.spec("SND-19")


def stored(queue: Queue) -> list[str]:
    """The bodies in the order of the log."""
    return [message.body for message in queue.receive(max_messages=5_000)]


def commits(harness: Harness) -> int:
    return sum(version for name, version in harness.versions().items() if name.endswith("messages"))


@contextmanager
def held(patch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A block in which commits of sends wait; the event is set once one does."""
    begun, go = threading.Event(), threading.Event()
    at(patch, ShardSender, "send", lambda: (begun.set(), go.wait(60)))
    try:
        yield begun
    finally:
        go.set()


@local_only
def test_threads_share_a_commit_and_each_gets_its_own_result(harness: Harness, clock: ManualClock) -> None:
    queue = harness.create(maximum_message_size=1_024)
    sender, before = queue.sender(linger="100ms"), commits(harness)
    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(sender.send, ["", *numbered(40), "x" * 2_000]))
    clock.wait_for_waiters()
    clock.advance(0.099)
    assert not any(each.done() for each in sent) and commits(harness) == before
    clock.advance(0.001)
    assert commits(harness) == before + 1
    with pytest.raises(errors.MissingParameter):
        sent[0].result()
    assert isinstance(sent[-1].exception(), errors.InvalidParameterValue)
    ids = {message.body: message.message_id for message in queue.peek(limit=100)}
    assert [each.result().message_id for each in sent[1:-1]] == [ids[body] for body in numbered(40)]


@local_only
def test_messages_are_stored_in_the_order_of_the_calls(harness: Harness) -> None:
    queue = harness.create("orders.fifo", fifo=True, content_based_deduplication=True)
    with queue.sender(60) as sender:
        for body in numbered(2_500):
            sender.send(body, group_id="a")
    received: list[str] = []
    while messages := queue.receive(500):
        received += [message.body for message in messages]
        queue.delete_batch(messages)
    assert received == numbered(2_500)


@local_only
def test_no_clock_moves_while_a_block_ends_or_a_thousand_messages_wait(harness: Harness) -> None:
    queue = harness.create()
    with queue.sender(60) as sender:
        sent = sender.send("alone")
    assert sent.done() and stored(queue) == ["alone"]
    many = [sender.send("x") for _ in range(collect.MOST)]
    assert many[0].result(60) and many[-1].result(60)
    large = [sender.send("x" * 2**19) for _ in range(17)]
    assert large[15].result(60) and not large[16].done()
    sender.flush()
    assert large[16].done()


@local_only
def test_sends_wait_for_space(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MOST", 3)
    queue = harness.create()
    sender, added = queue.sender(0), list[str]()

    def send_all() -> None:
        for body in numbered(9):
            sender.send(body)
            added.append(body)

    with ThreadPoolExecutor(1) as pool, held(monkeypatch) as begun:
        sender.send("first")
        assert begun.wait(60)
        sending = pool.submit(send_all)
        while len(added) < 3:
            time.sleep(0.001)
        assert not sending.done() and len(added) == 3
    sending.result(60)
    sender.flush()
    assert stored(queue) == ["first", *numbered(9)]


@local_only
def test_an_argument_may_change_after_the_call(harness: Harness) -> None:
    queue = harness.create()
    order, attributes = {"number": 1}, {"customer": "Ada"}
    with queue.sender(60) as sender:
        for number in range(3):
            order["number"], attributes["customer"] = number, f"c{number}"
            sender.send(json=order, attributes=attributes)
        wrong = sender.send("body", json=order), sender.send(json={1, 2}), sender.send(5)  # type: ignore[arg-type]
    assert all(isinstance(each.exception(), errors.QueueServiceError) for each in wrong)
    found = [(m.json()["number"], m.message_attributes["customer"].value) for m in queue.receive(10)]
    assert found == [(0, "c0"), (1, "c1"), (2, "c2")]


@local_only
def test_a_message_is_sent_at_its_instant_however_long_it_waits(harness: Harness, clock: ManualClock) -> None:
    queue, now = harness.create(), clock.now()
    sender = queue.sender(timedelta(seconds=30))
    sent = sender.send("a", at=now + timedelta(seconds=40))
    late, both = sender.send("b", at=now + timedelta(days=99)), sender.send("c", delay=5, at=now)
    clock.advance(30)
    assert sent.done() and isinstance(late.exception(), errors.InvalidParameterValue) and both.exception()
    clock.advance(9.9)
    assert not queue.receive()
    clock.advance(0.1)
    assert stored(queue) == ["a"]


@local_only
def test_a_message_that_waits_can_be_withdrawn(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = harness.create()
    with queue.sender(60) as sender:
        sent = [sender.send(body) for body in "abc"]
        assert sent[1].cancel() and sent[1].cancelled()
    assert stored(queue) == ["a", "c"] and not sent[0].cancel()


@local_only
def test_a_failure_of_storage_is_the_result_of_its_commit_only(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = harness.create()
    sender = queue.sender(60)
    sent = [sender.send(body) for body in "ab"]
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "create", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
        sender.flush()
    assert all(isinstance(each.exception(), errors.QueueClientError) for each in sent)
    sent += [sender.send("c")]
    sender.flush()
    assert sent[2].result().message_id and stored(queue) == ["c"]


@local_only
def test_an_error_that_nobody_asked_for_ends_the_block(harness: Harness) -> None:
    queue = harness.create()
    with pytest.raises(errors.MissingParameter), queue.sender(60) as sender:
        sender.send("")
        sender.send("stored")
    sender.flush()  # which was said once
    with pytest.raises(KeyError), sender:
        sender.send("")
        raise KeyError
    with sender:
        kept = sender.send("")
        sender.send("").add_done_callback(lambda sent: None)
    assert isinstance(kept.exception(), errors.MissingParameter)
    assert stored(queue) == ["stored"]


@local_only
def test_a_callback_may_send_and_flush(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MOST", 2)
    queue = harness.create()
    sender, done = queue.sender(60), threading.Event()

    def again(sent: Future[SendResult]) -> None:
        for body in "bcde":
            sender.send(body)
        sender.flush()
        done.set()

    sender.send("a").add_done_callback(again)
    sender.flush()
    assert done.wait(60)
    sender.flush()
    assert stored(queue) == list("abcde")


@local_only
def test_a_deleted_queue_and_an_attribute_that_changed_are_seen(harness: Harness) -> None:
    queue, other = harness.create(), harness.queue()
    sender = queue.sender(60)
    other.set_attributes(maximum_message_size=1_024)
    small = sender.send("x" * 2_000)
    sender.flush()
    assert isinstance(small.exception(), errors.InvalidParameterValue)
    harness.open().delete_queue("orders")
    gone = sender.send("x")
    sender.flush()
    assert isinstance(gone.exception(), errors.QueueDoesNotExist)


def test_a_linger_is_up_to_a_minute(tmp_path: Path) -> None:
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders")
    for wrong in (-1, 60.001, "61s", "soon", "", None, True, [1], float("nan")):
        with pytest.raises(errors.InvalidParameterValue, match="linger"):
            queue.sender(wrong)  # type: ignore[arg-type]
    for right in (0, 60, "1m", "0.5s", 0.05, timedelta(seconds=1), "100 ms"):
        assert isinstance(queue.sender(right), Sender)


# --- asyncio


def in_loop(harness: Harness, scenario: Callable[[aio.Queue], Any]) -> None:
    async def run() -> None:
        async with aio.LakeQueue(harness.root, clock=harness.clock) as lake:
            await asyncio.wait_for(scenario(await lake.queue("orders")), 60)

    asyncio.run(run())


@local_only
def test_tasks_share_commits_in_the_order_in_which_they_began(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MOST", 100)
    queue, before = harness.create(), commits(harness)

    async def scenario(own: aio.Queue) -> None:
        async with own.sender("100ms") as sender:
            sends = [asyncio.create_task(sender.send(body)) for body in numbered(250)]
            refused = asyncio.create_task(sender.send(""))
            await asyncio.sleep(0)
            while len(sends) > sum(each.done() for each in sends):
                await own_advance()
        assert len({(await each).message_id for each in sends}) == 250
        assert isinstance(refused.exception(), errors.MissingParameter)

    async def own_advance() -> None:
        await harness.clock.advance_async(0.1)

    in_loop(harness, scenario)
    assert stored(queue) == numbered(250) and commits(harness) - before <= 10


@local_only
def test_a_cancelled_task_withdraws_its_message(harness: Harness) -> None:
    queue = harness.create()

    async def scenario(own: aio.Queue) -> None:
        sender = own.sender(60)
        sends = [asyncio.create_task(sender.send(body)) for body in "abc"]
        await asyncio.sleep(0.05)
        sends[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await sends[1]
        await sender.flush()
        await asyncio.gather(sends[0], sends[2])

    in_loop(harness, scenario)
    assert stored(queue) == ["a", "c"]


# --- processes

PROGRAM = """
import os, sys
from lakequeue import LakeQueue
queue = LakeQueue(sys.argv[1]).queue("orders")
sender = queue.sender(50)
sender.send("waits")
"""
FORKS = """
pid = os.fork()
if pid == 0:
    assert "fork" in str(sender.send("of the child").exception(60))
    sys.exit()  # which flushes nothing
assert os.waitpid(pid, 0)[1] == 0
"""


def run_program(root: str, program: str) -> list[str]:
    queue = LakeQueue(root).create_queue("orders")
    done = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return sorted(stored(queue))


@pytest.mark.parametrize("place", ["disk", pytest.param("s3", marks=pytest.mark.objectstore)])
def test_the_end_of_a_program_flushes(request: pytest.FixtureRequest, tmp_path: Path, place: str) -> None:
    root = request.getfixturevalue("s3_root") if place == "s3" else str(tmp_path / "root")
    checks = "from lakequeue.storage.engines import commit; commit.OLDEST_BASE = 0.0"  # as after a second
    assert run_program(root, checks + PROGRAM) == ["waits"]


def test_a_fork_leaves_waiting_messages_to_its_parent(tmp_path: Path) -> None:
    forks = PROGRAM.replace("50", "0.5") + FORKS
    assert run_program(str(tmp_path / "root"), forks) == ["waits"]


# --- mutations


def fresh(root: Path, patch: Patch) -> tuple[Harness]:
    clock = ManualClock()
    return (Harness(str(root / "root"), clock, "point"),)


def with_patch(root: Path, patch: Patch) -> tuple[Harness, Patch]:
    return (*fresh(root, patch), patch)


def flush_nothing(patch: Patch) -> None:
    patch.setattr(collect.Collector, "flush", lambda self: None)


MUTATIONS = [
    Mutation(
        "keep what the caller may change",
        replace(collect, "kept_entry", lambda entry: entry),
        {shown_by(test_an_argument_may_change_after_the_call, fresh): "SND-19"},
    ),
    Mutation(
        "collect without a bound",
        replace(collect.Collector, "wait_for_space", lambda self: None),
        {shown_by(test_sends_wait_for_space, with_patch): "SND-19"},
    ),
    Mutation(
        "lose errors of dropped futures",
        replace(collect.Collector, "_report", lambda self, error: None),
        {shown_by(test_an_error_that_nobody_asked_for_ends_the_block, fresh): "SND-19"},
    ),
    Mutation(
        "end the block without a flush",
        flush_nothing,
        {shown_by(test_no_clock_moves_while_a_block_ends_or_a_thousand_messages_wait, fresh): "SND-19"},
    ),
]


@each_case(MUTATIONS)
def test_the_rule_falls_with_its_safeguard(tmp_path: Path, case: Case) -> None:
    case.run(lambda patch: (tmp_path, patch), (pytest.fail.Exception,))
