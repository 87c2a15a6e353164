"""Processes that commit to one table of a local disk take turns, and wait for none that is stopped or dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from concurrency.harness import apart, at_once, check_log, drain
from concurrency.stopping import stopped, without_turns
from concurrency.striking import Strike
from lakequeue.model.clock import SystemClock
from lakequeue.storage.engines import disk_turn, file_lock, locks, transaction
from lakequeue.storage.engines.disk_turn import DiskTurn, turn
from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.engines.turns import Turns, turns_at
from lakequeue.storage.layout import messages_path
from mutations import Case, Mutation, Patch, each_case, replace

HOLDER = """
import sys
from lakequeue.storage.engines.disk_turn import turn
with turn(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
"""
NEXT = """
import sys
from lakequeue.storage.engines.file_lock import FileLock
lock = FileLock(sys.argv[1] + "/_next_turn.lock")
lock.take(exclusive=True)
lock.stamp()
print("in", flush=True)
sys.stdin.read()
"""
BOUND = disk_turn.STOPPED + 0.05


def free(folder: Path, name: str = "_turn.lock") -> bool:
    lock = FileLock(str(folder / name))
    try:
        return lock.take(exclusive=True)
    finally:
        lock.release()


@contextmanager
def waiting(patch: Patch) -> Iterator[Callable[[], float]]:
    """How many seconds were spent waiting for turns, in all threads."""
    pauses: list[float] = []

    class Time:
        monotonic, time = time.monotonic, time.time

        @staticmethod
        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            time.sleep(seconds)

    with patch.context() as scope:
        scope.setattr(disk_turn, "time", Time)
        yield lambda: sum(pauses)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.spec("DUR-24")
def test_who_gives_a_turn_up_has_no_other_before_the_one_that_waits(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(disk_turn, "STOPPED", 60)
    order: list[str] = []

    def wait() -> None:
        with turn(str(tmp_path)):
            order.append("waiting")

    waiter = threading.Thread(target=wait)
    with turn(str(tmp_path)):
        waiter.start()
        until(lambda: not free(tmp_path, "_next_turn.lock"))
        order.append("first")
    with turn(str(tmp_path)):
        order.append("again")
    waiter.join()
    assert order == ["first", "waiting", "again"]


def test_a_thread_that_has_a_turn_has_it_again(tmp_path: Path) -> None:
    with turn(str(tmp_path)):
        with turn(str(tmp_path)):
            pass
        assert not free(tmp_path)
    assert free(tmp_path)


def test_who_is_served_meanwhile_waits_no_longer(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(disk_turn, "STOPPED", 60)
    answers = iter([False, False, True])
    with turn(str(tmp_path)):
        with ThreadPoolExecutor(1) as pool:

            def wait() -> bool:
                with turn(str(tmp_path), until=lambda: next(answers, True)) as mine:
                    return mine.waited

            assert pool.submit(wait).result()
        assert free(tmp_path, "_next_turn.lock")


@pytest.mark.spec("DUR-24")
def test_the_turn_of_a_process_that_dies_goes_to_the_next(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(disk_turn, "STOPPED", 60)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"in\n"
    had: list[bool] = []

    def wait() -> None:
        with turn(str(tmp_path)):
            had.append(not free(tmp_path))

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: not free(tmp_path, "_next_turn.lock"))
    assert not had
    process.send_signal(signal.SIGKILL)
    waiter.join()
    process.communicate()
    assert had == [True]


@pytest.mark.spec("DUR-23")
@pytest.mark.parametrize("script", [HOLDER, NEXT], ids=["in its turn", "as the next"])
def test_a_stopped_process_is_waited_for_once(tmp_path: Path, monkeypatch: Patch, script: str) -> None:
    with waiting(monkeypatch) as waited, stopped(script, str(tmp_path)):
        for _ in range(20):
            with turn(str(tmp_path)):
                assert not free(tmp_path)
        assert waited() < BOUND
    with turn(str(tmp_path)):
        assert not free(tmp_path), "it is taken again once it is free"


@pytest.mark.spec("DUR-23")
def test_processes_that_pass_a_stopped_process_go_on_one_by_one(tmp_path: Path) -> None:
    with stopped(HOLDER, str(tmp_path)):
        with turn(str(tmp_path)):
            assert not free(tmp_path, "_next_turn.lock")
        assert free(tmp_path, "_next_turn.lock")


def test_an_engine_that_decides_for_long_keeps_others_out_after_a_lost_race(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    path = str(tmp_path / "table")
    engine: Turns = turns_at(path, commits_alone=True)
    table: Any = SimpleNamespace(path=path, commits_alone=True)

    def others_commit() -> bool:
        lock = FileLock(f"{path}/_commit.lock")
        try:
            return lock.take(exclusive=False)
        finally:
            lock.release()

    with engine.taken(table):
        assert others_commit()
        assert engine.lose(table, 1), "it waited, so others may have committed"
        assert not others_commit()
        engine.end()
        assert others_commit()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_or_an_interrupt_at_any_line_leaves_no_lock_behind(
    tmp_path: Path, error: type[BaseException], monkeypatch: Patch
) -> None:
    """Once nobody holds the error, whose traceback holds the lock."""
    monkeypatch.setattr(locks, "PATIENCE", 1.0)
    path = str(tmp_path)

    def work() -> None:
        with turn(path), committing(path, exclusive=False):
            pass
        with committing(path, exclusive=True):
            pass

    modules = {str(module.__file__) for module in (disk_turn, file_lock, locks)}
    with Strike(targets=modules) as strike:
        work()
    assert len(strike.seen) > 50
    for place in strike.seen:
        with suppress(OSError, KeyboardInterrupt), Strike(place, error(), modules):
            work()
        with ThreadPoolExecutor(1) as another:
            another.submit(work).result(120)
        work()
        assert all(free(tmp_path, name) for name in ("_turn.lock", "_next_turn.lock", "_commit.lock")), place


def test_a_clock_that_was_set_back_makes_nobody_wait(tmp_path: Path, monkeypatch: Patch) -> None:
    with waiting(monkeypatch) as waited, stopped(HOLDER, str(tmp_path)):
        ahead = time.time() + 3600
        os.utime(tmp_path / "_turn.lock", (ahead, ahead))
        with turn(str(tmp_path)):
            pass
        assert waited() == 0


@pytest.mark.spec("DUR-22")
def test_no_turn_is_made_in_a_directory_that_has_gone(tmp_path: Path) -> None:
    with turn(str(tmp_path / "gone")):
        pass
    assert not list(tmp_path.iterdir())


# --- scenarios


def nobody_loses_a_race(root: Path, patch: Patch) -> None:
    patch.setattr(disk_turn, "STOPPED", 60)
    patch.setattr(disk_turn, "LONGEST", 60)
    patch.setattr(transaction, "back_off", lambda _: pytest.fail("a race was lost"))
    entries = [lq.create_queue("orders") for lq in apart(root, SystemClock(), 3)]

    def work(number: int) -> list[str]:
        found = []
        for step in range(8):
            entries[number].send(f"{number}-{step}")
            for message in entries[number].receive(2):
                found.append(message.body)
                entries[number].delete(message)
        return found

    found = at_once([lambda number=number: work(number) for number in range(3)], 120)  # type: ignore[misc]
    for outcome in found:
        if isinstance(outcome, BaseException):
            raise outcome
    bodies = sorted(f"{number}-{step}" for number in range(3) for step in range(8))
    assert sorted([*(body for each in found for body in each), *drain(entries[0])]) == bodies
    check_log(entries[0])


def a_stopped_process_costs_the_others_a_quarter_of_a_second(root: Path, patch: Patch) -> None:
    here, there = (lq.create_queue("orders") for lq in apart(root, SystemClock()))
    with waiting(patch) as waited, stopped(HOLDER, messages_path(str(root), here.key, 0)):
        for queue in (here, there) * 4:
            queue.send("a")
        assert waited() < BOUND
    check_log(here)


MUTATIONS = [
    Mutation(
        "take no turns",
        replace("lakequeue.storage.engines.turns.turn", lambda *_, **__: nullcontext(DiskTurn())),
        {nobody_loses_a_race: "DUR-24"},
    ),
    Mutation("decide on what was known before the turn", without_turns, {nobody_loses_a_race: "DUR-24"}),
    Mutation(
        "wait for who is stopped",
        replace(disk_turn, "STOPPED", 2.0),
        {a_stopped_process_costs_the_others_a_quarter_of_a_second: "DUR-23"},
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        case.run(lambda _: (tmp_path / "root", patch), (pytest.fail.Exception,))
