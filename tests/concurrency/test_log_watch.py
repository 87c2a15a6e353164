"""On a disk of this machine a send in another process wakes a receive that waits."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lakequeue import LakeQueue
from lakequeue.operations import receive, waits
from lakequeue.operations.claim import FreeHands
from lakequeue.runtime import log_watch
from lakequeue.runtime.log_watch import GRACE, PAUSE, SIGN, STAY, LogWatch, Place
from lakequeue.runtime.waiters import Waiter
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify")

WATCHER = """
import os, signal, sys, lakequeue
from lakequeue.operations import receive, waits
from lakequeue.runtime.log_watch import LogWatch
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.watch_lock import WatchLock
root, step, name = sys.argv[1:]
queue = lakequeue.LakeQueue(root, poll_interval=2).queue("orders")
queue.receive()
lead = LogWatch._lead
def leads(watch, place):
    found = lead(watch, place)
    print("leads" if found else "follows", flush=True)
    return found
LogWatch._lead = leads
places = {"woken": (LogWatch, "_log_changed"), "passing": (WatchLock, "release"), "committing": (Table, "merge")}
if step in places:
    assert hasattr(*places[step])
    setattr(*places[step], lambda *given, **more: os.kill(os.getpid(), getattr(signal, name)))
receive.receive(queue._runtime, receive.Request(wait_time=20, idle=step != "passing"))
print("received", flush=True)
sys.stdin.read()
"""
SENDER = """
import sys, lakequeue
queue = lakequeue.LakeQueue(sys.argv[1]).queue("orders")
sys.stdin.readline()
queue.send("from elsewhere")
"""


@pytest.mark.spec("LPL-6")
def test_a_send_of_another_process_wakes_a_receive_that_looks_once_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "SHORTEST_POLL", 3_600_000_000)
    root = str(tmp_path / "root")
    queue = LakeQueue(root, poll_interval=3_600).create_queue("orders")
    found: list[str] = []
    receiver = threading.Thread(target=lambda: found.extend(one.body for one in queue.receive(wait_time=20)))
    with subprocess.Popen([sys.executable, "-c", SENDER, root], stdin=subprocess.PIPE, text=True) as sender:
        receiver.start()
        time.sleep(1)  # it waits; without a sign it looks once more, at its end
        began = time.monotonic()
        sender.communicate("\n", timeout=20)
        receiver.join(20)
    assert found == ["from elsewhere"] and time.monotonic() - began < 12


@pytest.mark.spec("LPL-6")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("step", ["waiting", "woken", "passing", "committing", "left"])
def test_a_watcher_that_is_killed_or_stopped_holds_up_no_other_process(
    tmp_path: Path, step: str, name: str
) -> None:
    root = str(tmp_path / "root")
    queue = LakeQueue(root, poll_interval=2).create_queue("orders")
    found: list[str] = []

    def receive() -> None:
        found.extend(message.body for message in queue.receive(wait_time=20))

    with ExitStack() as ending:
        sender, watcher = (
            ending.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for arguments in ([SENDER, root], [WATCHER, root, step, name])
        )
        ending.callback(watcher.kill)
        assert watcher.stdout is not None and watcher.stdout.readline() == "leads\n"
        if step == "left":
            queue.send("first")
            assert watcher.stdout.readline() == "received\n"
        if step in ("waiting", "left"):
            watcher.send_signal(getattr(signal, name))
        receiver = threading.Thread(target=receive)
        receiver.start()
        time.sleep(0.5)  # it follows
        began = time.monotonic()
        sender.communicate("\n", timeout=20)
        receiver.join(20)
        took = time.monotonic() - began
    assert found == ["from elsewhere"] and took < 12, took


class Machine:
    """Watches as of processes of their own, which wait for files in a directory."""

    def __init__(self, folder: Path) -> None:
        (folder / "lock").mkdir()
        self.folder = folder
        self._watches: dict[str, LogWatch] = {}

    @contextmanager
    def waits(self, process: str, idle: bool = True, blocked: bool = False) -> Iterator[threading.Event]:
        woken, watch = threading.Event(), self._watches.setdefault(process, LogWatch())
        is_woken = woken.is_set if blocked else lambda: False
        with watch.waking(f"{self.folder}/lock", [str(self.folder)], woken.set, idle, is_woken=is_woken):
            yield woken

    def change(self, name: str = "1") -> None:
        (self.folder / name).touch()


def a_change_wakes_one_of_several(folder: Path) -> None:
    machine = Machine(folder)
    with machine.waits("a") as a, machine.waits("b") as b:
        machine.change()
        assert a.wait(10) and not b.wait(0.2)


def a_change_wakes_an_idle_process_rather_than_one_whose_handlers_run(folder: Path) -> None:
    machine = Machine(folder)
    with Patch.context() as patch, machine.waits("busy", idle=False) as busy, machine.waits("idle") as idle:
        patch.setattr(log_watch, "RETRY", 5.0)  # the machine may be busy
        machine.change()
        assert idle.wait(4) and not busy.is_set()


def a_change_wakes_a_process_whose_handlers_run_if_there_is_no_other(folder: Path) -> None:
    machine = Machine(folder)
    with machine.waits("busy", idle=False) as busy:
        machine.change()
        assert busy.wait(2)


def who_waits_no_more_lets_another_process_watch(folder: Path) -> None:
    machine = Machine(folder)
    with ExitStack() as waiting:
        waiting.enter_context(machine.waits("a"))
        with machine.waits("b") as b:
            waiting.close()
            assert b.wait(2), "it looks, as it knows nothing of what came before"
            time.sleep(2 * PAUSE)
            b.clear()
            machine.change()
            assert b.wait(2)


def a_watcher_whose_receive_does_not_poll_lets_another_process_watch(folder: Path) -> None:
    machine = Machine(folder)
    with machine.waits("blocked", blocked=True) as blocked, machine.waits("other") as other:
        machine.change()
        assert blocked.wait(10) and other.wait(10)
        time.sleep(2 * SIGN)
        other.clear()
        machine.change("2")
        assert other.wait(10), "the blocked process leaves the lock to it"


def who_follows_looks_at_intervals_for_what_the_watcher_left(folder: Path) -> None:
    clock = ManualClock()
    lake = LakeQueue(str(folder / "root"), clock=clock)
    mine = lake.create_queue("orders")
    other, queue = LakeQueue(lake.root, clock=clock).queue("orders"), mine._runtime
    assert mine.receive() == []
    waiter = Waiter(queue.shards[0].shared.waiters, lambda: None, led_elsewhere=lambda _: True)
    deadline = queue.now() + 3_600_000_000
    wait = waits.VainWait(queue, waiter, lambda: None, None, deadline, 1_000_000)
    for sent in (False, False, True):
        clock.advance((wait.next() - clock.now()).total_seconds())
        if sent:
            other.send("a")
        assert wait.is_over() == sent


def watches_in_any_case(patch: Patch) -> None:
    lead = LogWatch._lead

    def leads(watch: LogWatch, place: Place) -> bool:
        place.sign = None
        return lead(watch, place)

    patch.setattr(LogWatch, "_lead", leads)


MUTATIONS = [
    Mutation("every process watches", watches_in_any_case, {a_change_wakes_one_of_several: "LPL-6"}),
    Mutation(
        "a busy process looks",
        replace(Place, "idle", True),
        {a_change_wakes_an_idle_process_rather_than_one_whose_handlers_run: "LPL-6"},
    ),
    Mutation(
        "nobody tries again",
        replace(LogWatch, "_tried", lambda watch, place: []),
        {a_change_wakes_a_process_whose_handlers_run_if_there_is_no_other: "LPL-6"},
    ),
    Mutation(
        "who has left watches on",
        replace(Place, "left", False),
        {who_waits_no_more_lets_another_process_watch: "LPL-6"},
    ),
    Mutation(
        "a blocked process watches on",
        replace(Place, "is_blocked", lambda place: False),
        {a_watcher_whose_receive_does_not_poll_lets_another_process_watch: "LPL-6"},
    ),
    Mutation(
        "who follows trusts the watcher",
        replace(waits, "is_drained", lambda queue: True),
        {who_follows_looks_at_intervals_for_what_the_watcher_left: "LPL-6"},
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda _: (tmp_path,))


@pytest.mark.spec("LPL-6")
@pytest.mark.parametrize(("hands", "stay"), [(1, GRACE), (2, GRACE), (3, STAY)])
def test_a_consumer_whose_hands_are_full_leaves_the_watch_to_others_sooner(
    tmp_path: Path, hands: int, stay: float
) -> None:
    queue = LakeQueue(str(tmp_path)).create_queue("orders")
    queue.send("a")
    queue.send("b")
    request = receive.Request(10, wait_time=20, hands=FreeHands(lambda: hands), idle=True)
    assert receive.receive(queue._runtime, request)
    watch = log_watch.log_watch()
    assert watch is not None
    assert [place.stay for table, place in watch._places.items() if table.startswith(str(tmp_path))] == [stay]


@pytest.mark.spec("LPL-6")
def test_a_watch_tells_what_comes_while_somebody_waits(tmp_path: Path) -> None:
    watch, woken = LogWatch(), threading.Event()
    (tmp_path / "lock").mkdir()
    with watch.waking(f"{tmp_path}/lock", [str(tmp_path)], woken.set):
        (tmp_path / "1").touch()
        assert woken.wait(10)
    woken.clear()
    (tmp_path / "2").touch()
    with watch.waking(f"{tmp_path}/lock", [str(tmp_path), str(tmp_path / "gone")], woken.set):
        assert not woken.wait(0.2)
        (tmp_path / "3").touch()
        assert woken.wait(10)
