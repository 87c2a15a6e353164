"""Many threads of one process on one queue: they share commits but never messages."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import apart, at_once, check_log, log_versions, small_segments
from concurrency.steps import at
from concurrency.stopping import without_turns
from insides import shard_of
from lakequeue import LakeQueue, OverLimit, Queue, QueueClientError, SendEntry
from lakequeue.model.clock import SystemClock
from lakequeue.runtime import shard_sender
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.storage.engines.point import Table
from lakequeue.testing import ManualClock
from mutations import Patch


def test_a_thread_uses_queues_of_several_shards_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    program = """
        import sys, threading
        from lakequeue import LakeQueue

        def work():
            threading.main_thread().join()
            queue = LakeQueue(sys.argv[1]).create_queue("orders", shards=4)
            queue.send("one book")
            print(queue.counts().visible)

        threading.Thread(target=work).start()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "root")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n", "")


@contextmanager
def last_commit(queue: Queue, sends: int) -> Iterator[GroupCommit[Any, Any]]:
    """As after a commit of several sends that took so long that a wait for others does not end."""
    group = shard_of(queue).sender._group
    queue.send("first")
    group._last = sends, 1_000.0
    yield group


def threads_that_shared_a_commit_share_the_next(tmp_path: Path) -> None:
    queue = LakeQueue(tmp_path / "root").create_queue("orders")
    with last_commit(queue, 3) as group:
        before = log_versions(queue)[0]
        threads = [threading.Thread(target=queue.send, args=(f"{number}",)) for number in range(3)]
        threads[0].start()
        while threads[0].is_alive() and not group.waiting:
            time.sleep(0.001)
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert log_versions(queue)[0] == before + 1


def test_threads_that_shared_a_commit_share_the_next(tmp_path: Path) -> None:
    threads_that_shared_a_commit_share_the_next(tmp_path)


def test_threads_do_not_share_a_commit_without_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_sender, "GATHER", 0)
    with pytest.raises(AssertionError):
        for number in range(20):  # on a busy machine they may meet by chance
            threads_that_shared_a_commit_share_the_next(tmp_path / f"{number}")


@pytest.mark.parametrize("why", ["the last send was alone", "other processes may commit the send"])
def test_a_send_waits_for_no_thread_if(tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEQUEUE_DURABILITY", "power")  # else nobody stages sends on a disk
    queue = LakeQueue(tmp_path / "root").create_queue("orders")
    with last_commit(queue, 1 if "alone" in why else 3):
        if "other" in why:
            shard_of(queue).sender._appender.stage_next()
        assert at_once([lambda: queue.send("x")])


@pytest.mark.spec("RCV-15", "RCV-3")
def test_sixteen_threads_receive_each_of_a_hundred_messages_once(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    sent = queue.send_batch([SendEntry(body=str(number)) for number in range(100)])

    def receive() -> list[str]:
        ids = []
        while messages := queue.receive(max_messages=3):
            ids += [message.message_id for message in messages]
        return ids

    received = [message_id for ids in at_once([receive] * 16) for message_id in ids]
    assert sorted(received) == sorted(entry.message_id for entry in sent.successful)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("orders", marks=pytest.mark.spec("INF-11", "INF-3")),
        pytest.param("orders.fifo", marks=pytest.mark.spec("INF-4", "INF-11")),
    ],
)
def test_the_cap_on_messages_in_flight_holds_for_eight_receivers(
    tmp_path: Path, processes: int, name: str
) -> None:
    """At the cap a receive from a standard queue raises OverLimit, one from a FIFO queue answers nothing."""
    fifo = name.endswith(".fifo")
    entries = apart(tmp_path / "root", ManualClock(), processes)
    queues = [
        entry.create_queue(name, fifo=fifo, max_inflight_messages=10, profile_strict=False) for entry in entries
    ]
    bodies = [str(number) for number in range(100)]
    ids: list[dict[str, str]] = [{"group_id": body, "dedup_id": body} if fifo else {} for body in bodies]
    queues[0].send_batch([SendEntry(body, **each) for body, each in zip(bodies, ids, strict=True)])
    seen: list[int] = []

    def receive(queue: object) -> int:
        taken = 0
        try:
            while (got := queue.receive(max_messages=3)) or not fifo:  # type: ignore[attr-defined]
                taken += len(got)
                seen.append(queue.counts().in_flight)  # type: ignore[attr-defined]
        except OverLimit:
            assert not fifo
        return taken

    calls = [lambda queue=queue: receive(queue) for queue in (queues * 8)[:8]]
    assert sum(at_once(calls)) == 10
    assert max(seen) == 10


@pytest.mark.spec("QUE-21")
@pytest.mark.parametrize("processes", [1, 2])
def test_the_cap_on_stored_messages_holds_for_eight_senders(tmp_path: Path, processes: int) -> None:
    entries = apart(tmp_path / "root", ManualClock(), processes)
    queues = [entry.create_queue("orders", max_stored_messages=10, profile_strict=False) for entry in entries]

    def send(queue: object, name: str) -> int:
        return len(queue.send_batch([SendEntry(body=f"{name}{n}") for n in range(4)]).successful)  # type: ignore[attr-defined]

    calls = [
        lambda queue=queue, name=name: send(queue, name)
        for queue, name in zip((queues * 8)[:8], "abcdefgh", strict=True)
    ]
    assert sum(at_once(calls)) == 10
    assert len(check_log(queues[0])) == 10
    with pytest.raises(OverLimit):
        queues[0].send("one more")


@pytest.mark.spec("SND-7", "SND-17")
def test_threads_that_send_keep_their_own_order_and_every_offset_is_there_once(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    small_segments(monkeypatch, 3)
    queues = [entry.create_queue("orders") for entry in apart(tmp_path / "root", SystemClock())]

    def send(queue: object, name: str) -> None:
        for number in range(15):
            queue.send(f"{name}{number}")  # type: ignore[attr-defined]

    names = "abcdefgh"
    calls = [
        lambda queue=queue, name=name: send(queue, name) for queue, name in zip(queues * 4, names, strict=True)
    ]
    assert at_once(calls) == [None] * 8
    bodies = [row.body for row in check_log(queues[0])]
    for name in names:
        own = [body for body in bodies if body.startswith(name)]
        assert own == [f"{name}{number}" for number in range(15)]


class TestGroupCommit:
    def test_what_waits_for_a_commit_goes_into_the_next_one(
        self, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without_turns(monkeypatch)  # while it waits for one, the leader of a batch collects more than its own call
        queue = lq.create_queue("orders")
        queue.send("first")
        messages, receipts = log_versions(queue)
        with shard_of(queue).sender.paused():
            started = _started([lambda n=n: queue.send(f"m{n}") for n in range(12)])
            _until(lambda: len(shard_of(queue).sender._group._pending) == 11)
        for call in started:
            call.result(30)
        assert len(check_log(queue)) == 13
        assert log_versions(queue)[0] == messages + 2  # the leader's own, and everybody else's

        received = queue.receive(max_messages=13)
        with shard_of(queue).ledger._lock:
            started = _started([lambda m=m: queue.delete(m.receipt_handle) for m in received])
            _until(lambda: len(shard_of(queue).ledger._group._pending) == 12)
        for call in started:
            call.result(30)
        assert log_versions(queue)[1] == receipts + 3
        assert queue.counts().in_flight == 0


class TestInterrupted:
    """Ctrl-C reaches only the main thread, at any point of a group commit."""

    def test_a_caller_that_waits_leaves_the_line_and_the_rest_go_on(self) -> None:
        gate, group, batches = _gated()
        first = _started([lambda: group.submit(1)])[0]
        _until(lambda: group.busy and not group._pending)
        behind = _started([lambda: group.submit(2)])[0]
        _until(lambda: len(group._pending) == 1)
        with pytest.raises(KeyboardInterrupt), _interrupt_when(lambda: len(group._pending) == 2):
            group.submit(3)
        gate.set()
        assert (first.result(10), behind.result(10), group.submit(4)) == (1, 2, 4)
        assert batches == [[1], [2], [4]]

    def test_the_next_leader_hands_the_lead_on(self) -> None:
        gate, group, batches = _gated()
        first = _started([lambda: group.submit(1)])[0]
        _until(lambda: group.busy and not group._pending)
        behind: list[Future[int]] = []

        def when_main_waits() -> bool:
            if len(group._pending) == 1 and not behind:
                behind.extend(_started([lambda: group.submit(3)]))
            return len(group._pending) == 2

        with pytest.raises(KeyboardInterrupt), _interrupt_when(when_main_waits):
            group.submit(2)
        gate.set()
        assert (first.result(10), behind[0].result(10), group.submit(4)) == (1, 3, 4)
        assert batches == [[1], [3], [4]]

    def test_a_leader_does_not_leave_the_others_without_an_answer(self) -> None:
        gate, group, _ = _gated()
        behind: list[Future[int]] = []

        def when_main_leads() -> bool:
            if group.busy and not behind:
                behind.extend(_started([lambda: group.submit(2)]))
            return len(group._pending) == 1

        with pytest.raises(KeyboardInterrupt), _interrupt_when(when_main_leads):
            group.submit(1)
        gate.set()
        assert behind[0].result(10) == 2
        assert group.submit(3) == 3

    def test_callers_in_the_commit_of_an_interrupted_leader_learn_that_its_outcome_is_unknown(self) -> None:
        entered, gates = threading.Event(), iter([threading.Event(), threading.Event(), threading.Event()])
        first_gate, main_gate, last_gate = (gate := list(gates))
        last_gate.set()
        waiting = iter(gate)

        def run(requests: Sequence[int]) -> Sequence[int]:
            mine = next(waiting)
            if mine is main_gate:
                entered.set()
            mine.wait(10)
            return list(requests)

        group: GroupCommit[int, int] = GroupCommit(run)
        first = _started([lambda: group.submit(1)])[0]
        _until(lambda: group.busy and not group._pending)
        behind: list[Future[int]] = []

        def when_main_leads() -> bool:
            if len(group._pending) == 1 and not behind:
                behind.extend(_started([lambda: group.submit(3)]))
            if len(group._pending) == 2:
                first_gate.set()
            return entered.is_set()

        with pytest.raises(KeyboardInterrupt), _interrupt_when(when_main_leads):
            group.submit(2)
        assert first.result(10) == 1
        with pytest.raises(QueueClientError) as caught:
            behind[0].result(10)
        assert caught.value.outcome_unknown
        assert group.submit(4) == 4

    def test_a_queue_works_on_after_an_interrupted_commit(self, lq: LakeQueue, monkeypatch: Patch) -> None:
        queue = lq.create_queue("orders")
        queue.send("a")
        for landed in (False, True):
            with monkeypatch.context() as patch:
                at(patch, Table, ("append", "merge"), KeyboardInterrupt(), times=1_000, landed=landed)
                with pytest.raises(KeyboardInterrupt):
                    queue.send(f"landed {landed}")
                with pytest.raises(KeyboardInterrupt):
                    queue.receive(visibility_timeout=0 if landed else 30)
        queue.send("b")
        assert [row.body for row in check_log(queue)] == ["a", "landed True", "b"]
        assert [m.body for m in queue.receive(max_messages=10)] == ["a", "landed True", "b"]


def _gated() -> tuple[threading.Event, GroupCommit[int, int], list[list[int]]]:
    """A group commit whose batches wait for a gate, with a record of its batches."""
    gate, batches = threading.Event(), []

    def run(requests: Sequence[int]) -> Sequence[int]:
        assert gate.wait(10)
        batches.append(list(requests))
        return list(requests)

    return gate, GroupCommit(run), batches


def _started(calls: Sequence[Callable[[], object]]) -> list[Future]:
    futures: list[Future] = []
    for call in calls:
        future: Future = Future()

        def run(call: Callable[[], object] = call, future: Future = future) -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        futures.append(future)
    return futures


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.002)


class _interrupt_when:
    """Sends the main thread a Ctrl-C as soon as a condition is true."""

    def __init__(self, reached: Callable[[], bool]) -> None:
        self._reached = reached

    def __enter__(self) -> None:
        main = threading.main_thread().ident
        assert main is not None

        def watch() -> None:
            _until(self._reached)
            time.sleep(0.02)  # from being in the line to waiting in it
            signal.pthread_kill(main, signal.SIGINT)

        self._thread = threading.Thread(target=watch, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
