"""Queues for asyncio: the same verbs, and what a cancelled call leaves behind."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest

import lakequeue
from concurrency.steps import at
from conformance.harness import Harness, batch, bodies, local_only
from insides import shard_of
from lakequeue import HeartbeatRenewal, aio, errors
from lakequeue.model.clock import Interrupt
from lakequeue.operations import browse, move
from lakequeue.operations import receive as receiving
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.runtime.shard_sender import ShardSender
from lakequeue.testing import ManualClock

Scenario = Callable[[], Coroutine[Any, Any, Any]]


def run(scenario: Scenario) -> Any:
    return asyncio.run(asyncio.wait_for(scenario(), 60))


@asynccontextmanager
async def opened(harness: Harness, name: str = "orders", **options: Any) -> AsyncIterator[aio.Queue]:
    async with aio.LakeQueue(harness.root, clock=harness.clock, engine="point", **options) as lq:
        yield await lq.queue(name)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], Any]) -> None:
    """Waits, in real time, for other threads."""
    while not condition():
        await asyncio.sleep(0.005)


@attrs.define
class AtOnce(Executor):
    """Has done the work before the task that wants it runs again, and calls a function in between."""

    then: Callable[[], object]

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        loop = asyncio.get_running_loop()
        loop.call_soon(done.set_result, work(*args, **kwargs))
        loop.call_soon(self.then)
        return done


@attrs.define
class Gate:
    """Stops a thread at a method, before or after it runs."""

    reached: threading.Event = attrs.field(factory=threading.Event)
    opened: threading.Event = attrs.field(factory=threading.Event)

    def close(self, patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> Gate:
        at(patch, owner, name, lambda: (self.reached.set(), self.opened.wait(60)), landed=after)
        return self


def cut_off(
    harness: Harness,
    gate: Gate,
    call: Callable[[aio.Queue], Coroutine[Any, Any, Any]],
    name: str = "orders",
    then: Callable[[aio.Queue], object] = lambda _: None,
) -> None:
    """Cancels a call whose thread stands at a gate, does something, and opens the gate."""

    async def scenario() -> None:
        async with opened(harness, name) as queue:
            task = asyncio.create_task(call(queue))
            await until(gate.reached.is_set)
            await cancelled(task)
            then(queue)
            gate.opened.set()

    run(scenario)


# --- the same verbs

PAIRS = [
    (getattr(lakequeue, name), getattr(aio, name))
    for name in ("LakeQueue", "Queue", "Lease", "Schedules", "Sender")
]
ONLY_SYNC = {"receive_async"}
"""What ``receive`` is here."""
AWAITED = {"min_rewind_time", "messages", "delivery"}
"""Properties that read storage; here they are methods."""


def public(face: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(face, name) for name in dir(face) if not name.startswith("_")}


@pytest.mark.parametrize(("sync", "own"), PAIRS, ids=lambda face: face.__name__)
def test_every_public_name_is_there_with_its_signature(sync: type, own: type) -> None:
    verbs, own_verbs = public(sync), public(own)
    assert set(verbs) - ONLY_SYNC == set(own_verbs) - {"sync"}
    for name in set(verbs) - ONLY_SYNC:
        if isinstance(verbs[name], property):
            assert isinstance(own_verbs[name], property) or name in AWAITED, name
            continue
        wanted, found = inspect.signature(verbs[name]), inspect.signature(own_verbs[name])
        assert [(one.name, one.kind, one.default) for one in wanted.parameters.values() if name != "redrive"] == [
            (one.name, one.kind, one.default) for one in found.parameters.values() if name != "redrive"
        ]
        assert list(wanted.parameters) == list(found.parameters)
        assert inspect.iscoroutinefunction(own_verbs[name]) or name in ("keep_alive", "running", "sender"), name
        assert own_verbs[name].__doc__


def test_options_of_the_root_are_the_same_and_the_number_of_threads() -> None:
    wanted, found = (inspect.signature(one).parameters for one in (lakequeue.LakeQueue, aio.LakeQueue))
    assert {name: one.default for name, one in found.items() if name != "threads"} == {
        name: one.default for name, one in wanted.items()
    }
    for threads in (0, 1_025, "5", None, True):
        with pytest.raises(errors.InvalidParameterValue, match="threads"):
            aio.LakeQueue("root", threads=threads)  # type: ignore[arg-type]


@local_only
def test_every_verb_answers_as_the_synchronous_one(harness: Harness, clock: ManualClock) -> None:
    async def scenario() -> None:
        async with aio.LakeQueue(harness.root, clock=clock) as lq:
            dead = await lq.create_queue("dead")
            policy = lakequeue.RedrivePolicy("dead", 1)
            async with await lq.create_queue("orders", redrive_policy=policy, rewind_range=3600) as queue:
                assert [one.name for one in await lq.list_queues()] == ["dead", "orders"]
                assert (await lq.list_queues(limit=1)).next_after == "dead"
                assert [one.name for one in await dead.dead_letter_sources()] == ["orders"]
                assert queue.dead_letter_queue == dead.arn
                sent = await queue.send(json={"a": 1})
                (message,) = await queue.receive()
                assert isinstance(message, lakequeue.Message)
                assert (message.message_id, message.json()) == (sent.message_id, {"a": 1})
                await message.change_visibility(0)
                assert await queue.receive() == []  # received once: it moves
                assert await dead.redrive() == 1
                (message,) = await queue.receive()
                await message.delete()
                assert await queue.rewind(clock.now()) == 0
                assert (await queue.min_rewind_time()) is not None
                (await queue.send_batch(batch("b", "c"))).raise_for_failures()
                assert len(await queue.peek()) == 2
                lease = await queue.lease()
                assert lease is not None
                assert (lease.message_count, lease.visible_at) == (2, lease.sync.visible_at)
                assert (await lease.arrow(["body"])).to_pydict() == {"body": ["b", "c"]}
                async with lease.keep_alive(HeartbeatRenewal(visibility_timeout=30)) as kept:
                    assert (await kept.extend(60)).done == 2
                assert (await lease.delete_except([])).done == 2
                await queue.set_tags(a="b")
                assert await queue.tags() == {"a": "b"}
                assert (await queue.counts()).visible == 0
                assert (await queue.compact()).queue == "orders"
                assert "LakeQueue" in repr(lq) and "aio.Queue('orders'" in repr(queue)
            with pytest.raises(errors.QueueDoesNotExist):
                await lq.queue("nothing")
            with pytest.raises(errors.LeaseLost):
                await lease.delete()
            with pytest.raises(errors.InvalidParameterValue, match="delay"):
                await queue.send("a", delay="5")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="nonsense"):
                await queue.send("a", nonsense=1)  # type: ignore[call-arg]
            moved = lq.queue("dead")
            other = await lq.create_queue("other")
            assert await (await moved).redrive(destination=other) == 0
            with pytest.raises(errors.InvalidParameterValue, match="destination"):
                await dead.redrive(destination=other.sync)  # type: ignore[arg-type]
            await lq.delete_queue("other")
        assert [one.name for one in await lq.list_queues()] == ["dead", "orders"]  # opened again
        await lq.__aexit__()

    run(scenario)
    assert not [one.name for one in threading.enumerate() if one.name.startswith("lakequeue_")]


@local_only
def test_concurrent_calls_share_commits_and_threads(harness: Harness, clock: ManualClock) -> None:
    harness.create()
    before = harness.versions()

    async def scenario() -> int:
        async with opened(harness, threads=32) as queue:
            most = 0
            sends = asyncio.gather(*(queue.send(str(number)) for number in range(256)))
            while not sends.done():
                own = [one for one in threading.enumerate() if one.name.startswith("lakequeue_")]
                most = max(most, len(own))
                await asyncio.sleep(0.001)
            assert len({sent.message_id for sent in await sends}) == 256
            received = await queue.receive(256)
            assert sorted(int(message.body) for message in received) == list(range(256))
            await asyncio.gather(*(message.delete() for message in received))
            return most

    assert run(scenario) <= 32
    commits = {name: version - before[name] for name, version in harness.versions().items()}
    assert sum(commits.values()) <= (256 + 256) / 4, commits
    assert harness.queue().counts().in_flight == 0


@local_only
def test_many_receives_wait_without_threads(harness: Harness, clock: ManualClock) -> None:
    harness.create()

    async def scenario() -> None:
        async with opened(harness, threads=2) as queue:
            tasks = [asyncio.create_task(queue.receive(wait_time=20)) for _ in range(100)]
            await clock.advance_async(1)
            await queue.send("a")  # finds a free thread
            await clock.advance_async(20)
            assert sorted([bodies(await one) for one in tasks])[-2:] == [[], ["a"]]

    run(scenario)


# --- cancelling


@pytest.mark.spec("LPL-1")
def test_a_receive_cancelled_while_it_waits_claims_nothing(harness: Harness, clock: ManualClock) -> None:
    harness.create()

    async def scenario() -> None:
        async with opened(harness) as queue:
            task = asyncio.create_task(queue.receive(wait_time=20))
            await clock.advance_async(1)
            await cancelled(task)
            assert shard_of(queue.sync).shared.waiters.first is None
            await queue.send("a")
            (message,) = await queue.receive()
            assert message.receive_count == 1

    run(scenario)
    assert clock.waiting == 0


@local_only
def test_a_receive_cancelled_before_its_thread_begins_claims_nothing(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create().send("a")
    gate = Gate().close(monkeypatch, lakequeue.Queue, "counts", after=False)
    before = harness.versions()

    async def scenario() -> None:
        async with opened(harness, threads=1) as queue:
            blocker = asyncio.create_task(aio_counts(queue))
            await until(gate.reached.is_set)
            task = asyncio.create_task(queue.receive())
            await asyncio.sleep(0.01)
            await cancelled(task)
            gate.opened.set()
            assert (await blocker).visible == 1

    async def aio_counts(queue: aio.Queue) -> Any:
        return await queue._threads(lambda: queue.sync.counts())

    run(scenario)
    assert harness.versions() == before


POINTS = {
    # where the claiming thread stands when its caller is cancelled
    "before the claim": (move.DeadLetterMoves, "claim", False),
    "after the claim": (move.DeadLetterMoves, "claim", True),
    "while it reads bodies": (ShardReader, "messages", False),
    "with the answer": (receiving, "_messages", True),
}
attempts = pytest.mark.parametrize("kind", ["standard", "fifo", "fifo with an attempt id"])


@local_only
@attempts
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.spec("RCV-3", "VIS-4")
def test_a_receive_cancelled_around_its_claim_hands_its_messages_back(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, point: str, kind: str
) -> None:
    name = "orders" if kind == "standard" else "orders.fifo"
    group = {} if kind == "standard" else {"group_id": "g"}
    queue = harness.create(name, visibility_timeout=600, **({} if kind == "standard" else FIFO), shards=1)
    queue.send_batch([lakequeue.SendEntry(body, **group) for body in ("held", "a", "b")])
    (held,) = queue.receive()
    if group:  # frees the group; what is held must not be touched below
        queue.delete(held)
    gate = Gate().close(monkeypatch, *POINTS[point][:2], after=POINTS[point][2])
    attempt = "again" if "attempt" in kind else None

    async def scenario() -> None:
        async with opened(harness, name) as own:
            task = asyncio.create_task(own.receive(10, attempt_id=attempt))
            await until(gate.reached.is_set)
            await cancelled(task)
            waiting = asyncio.create_task(own.receive(10, wait_time=20))
            await asyncio.sleep(0.01)
            gate.opened.set()
            await clock.advance_async(0)
            await until(waiting.done)  # woken by the messages that came back, not by time
            messages = await waiting
            assert bodies(messages) == ["a", "b"]
            await own.delete_batch(messages)

    run(scenario)
    counts = harness.queue(name).counts()
    assert (counts.visible, counts.in_flight) == (0, 0 if group else 1)
    if not group:
        harness.queue().delete(held)  # its receipt still holds
        assert harness.queue().counts().in_flight == 0


FIFO = {"fifo": True, "content_based_deduplication": True}


@local_only
@pytest.mark.spec("ATT-3")
def test_a_cancelled_repeat_of_an_attempt_leaves_the_messages_with_the_first(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = harness.create("orders.fifo", **FIFO)
    queue.send("a", group_id="g")
    (message,) = queue.receive(attempt_id="again")
    gate = Gate().close(monkeypatch, receiving, "_messages", after=True)
    cut_off(harness, gate, lambda own: own.receive(attempt_id="again"), "orders.fifo")
    assert harness.queue("orders.fifo").counts().in_flight == 1
    harness.queue("orders.fifo").delete(message)


@local_only
def test_an_answer_that_its_task_no_longer_takes_goes_back(harness: Harness, clock: ManualClock) -> None:
    """The thread has answered, the task was cancelled before it ran again."""
    harness.create(visibility_timeout=600).send("a")

    async def scenario() -> None:
        async with opened(harness) as queue:
            task = asyncio.create_task(queue.receive())
            queue._threads._executor = AtOnce(lambda: harness.queue().counts().in_flight and task.cancel())
            with pytest.raises(asyncio.CancelledError):
                await task

    run(scenario)
    counts = harness.queue().counts()
    assert (counts.visible, counts.in_flight) == (1, 0)


@local_only
def test_a_hand_back_that_fails_is_logged_and_ends_with_the_timeout(
    harness: Harness, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    harness.create(visibility_timeout=30).send("a")
    with pytest.MonkeyPatch.context() as patch:
        gate = Gate().close(patch, receiving, "_messages", after=True)

        def fail(*_: Any) -> None:
            raise OSError("no storage")

        def break_storage(queue: aio.Queue) -> None:
            patch.setattr(type(queue.sync._runtime), "command", fail)

        cut_off(harness, gate, aio.Queue.receive, then=break_storage)
    assert "stay in flight until their visibility timeout: no storage" in caplog.text
    clock.advance(30)
    assert bodies(harness.queue().receive()) == ["a"]


@local_only
def test_a_cancelled_lease_is_released(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create(visibility_timeout=600).send_batch(batch("a", "b"))
    gate = Gate().close(monkeypatch, move.DeadLetterMoves, "claim", after=True)
    cut_off(harness, gate, aio.Queue.lease)
    assert bodies(harness.queue().receive(10)) == ["a", "b"]


@local_only
def test_a_cancelled_send_is_sent_or_not_and_leaves_nothing_behind(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create()
    gate = Gate().close(monkeypatch, ShardSender, "send", after=False)

    async def scenario() -> None:
        async with opened(harness, threads=1) as queue:
            begun = asyncio.create_task(queue.send("begun"))
            await until(gate.reached.is_set)
            behind = asyncio.create_task(queue.send("behind"))
            await asyncio.sleep(0.01)
            await cancelled(begun)
            await cancelled(behind)
            gate.opened.set()
            await queue.send("later")

    run(scenario)
    assert bodies(harness.queue().receive(10)) == ["begun", "later"]


@local_only
@pytest.mark.parametrize("verb", ["peek", "redrive", "redrivable"])
def test_a_cancelled_search_ends(harness: Harness, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    harness.create()
    reached, ended = threading.Event(), []

    def search(*given: Any) -> Any:
        (interrupt,) = [one for one in given if isinstance(one, Interrupt)]
        reached.set()
        ended.append(interrupt.wait(20))

    monkeypatch.setattr(browse if verb == "peek" else move, verb, search)

    async def scenario() -> None:
        async with opened(harness) as queue:
            task = asyncio.create_task(getattr(queue, verb)(where="true"))
            await until(reached.is_set)
            await cancelled(task)

    run(scenario)
    assert ended == [True]


@local_only
@pytest.mark.parametrize("after", [False, True], ids=["while it starts", "in the block"])
def test_a_cancelled_heartbeat_stops(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    harness.create(visibility_timeout=600).send("a")
    from lakequeue.renewal.heartbeat import HeartbeatScheduler

    gate = Gate().close(monkeypatch, HeartbeatScheduler, "start", after=True)
    kept, keep_alive = [], lakequeue.Lease.keep_alive

    def remembered(*given: Any) -> Any:
        kept.append(keep_alive(*given))
        return kept[-1]  # referred to, so that the garbage collector does not end it

    monkeypatch.setattr(lakequeue.Lease, "keep_alive", remembered)

    async def scenario() -> None:
        async with opened(harness) as queue:
            lease = await queue.lease()
            assert lease is not None

            async def keep() -> None:
                async with lease.keep_alive(HeartbeatRenewal(visibility_timeout=30)):
                    await asyncio.sleep(60)

            task = asyncio.create_task(keep())
            await until(gate.reached.is_set)
            if after:
                gate.opened.set()
                await until(lambda: lease.sync._heartbeat)
                await asyncio.sleep(0.01)
            await cancelled(task)
            gate.opened.set()

    run(scenario)
    assert clock.waiting == 0


@local_only
def test_timeouts_work_and_a_loop_that_ends_waits_for_nothing(harness: Harness) -> None:
    """By the machine's clock, as a program would."""
    harness.create(receive_wait_time=20)

    async def waits(queue: aio.Queue) -> list[aio.Message]:
        return await queue.receive()

    async def scenario() -> Awaitable[Any]:
        lq = aio.LakeQueue(harness.root)  # never closed
        queue = await lq.queue("orders")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(queue.receive(), 0.05)
        if hasattr(asyncio, "timeout"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await queue.receive()
        return asyncio.create_task(waits(queue))  # still waits when the loop ends

    task = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert task.cancelled()  # type: ignore[attr-defined]
    harness.queue().send("a")
    assert bodies(harness.queue().receive()) == ["a"]


PROGRAM = """
import asyncio, sys
from lakequeue import aio

async def main():
    async with aio.LakeQueue(sys.argv[1]) as lq:
        queue = await lq.queue("orders")
        waiting = [asyncio.create_task(queue.receive(wait_time=20)) for _ in range(20)]
        await asyncio.sleep(0)
        print("ready", flush=True)
        await asyncio.gather(*waiting)

asyncio.run(main())
"""


@local_only
def test_ctrl_c_ends_a_program_that_waits(harness: Harness) -> None:
    queue = harness.create()
    command = [sys.executable, "-c", PROGRAM, harness.root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, trouble = process.communicate(timeout=15)  # less than they wait
    assert trouble.rstrip().endswith("KeyboardInterrupt")
    assert "never retrieved" not in trouble
    queue.send("a")
    assert bodies(queue.receive()) == ["a"]
