"""On a disk of this machine a send in another process wakes a receive that waits."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from lakequeue import LakeQueue, Queue, RedrivePolicy
from lakequeue.model.clock import from_micros
from lakequeue.operations import receive, waits
from lakequeue.operations.claim import ClaimPlan, FreeHands
from lakequeue.runtime import log_watch
from lakequeue.runtime import root as runtime_root
from lakequeue.runtime.log_watch import GRACE, PAUSE, SIGN, STAY, LogWatch, Place
from lakequeue.runtime.waiters import Waiter
from lakequeue.shard.commands import Claim, ClaimResult
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
    monkeypatch.setattr(runtime_root, "SHORTEST_POLL", 3_600_000_000)
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
        with self.place(process, idle, blocked) as (_, woken):
            yield woken

    @contextmanager
    def place(
        self, process: str, idle: bool = True, blocked: bool = False
    ) -> Iterator[tuple[Place, threading.Event]]:
        woken, watch = threading.Event(), self._watches.setdefault(process, LogWatch())

        def woken_for() -> float:
            return log_watch.BLOCKED if blocked and woken.is_set() else 0.0

        with watch.waking(
            f"{self.folder}/lock", [str(self.folder)], woken.set, idle, woken_for=woken_for
        ) as place:
            yield place, woken

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


def a_watcher_shows_a_sign_if_it_has_left_nothing(folder: Path) -> None:
    machine, long_ago = Machine(folder), (0, 0)
    with machine.place("watcher") as (watcher, woken), machine.place("follower") as (follower, _):
        known = watcher.changes
        watcher.found_nothing(known, None)
        assert 0 < follower.trusted_for(60) <= 60 and watcher.trusted_for(60) == 0
        machine.change()
        assert woken.wait(10)
        os.utime(watcher.lock.path, long_ago)
        watcher.shown_at = 0
        watcher.show()
        watcher.found_nothing(known, None)
        assert follower.trusted_for(60) == 0, "the check began before the change"
        watcher.found_nothing(watcher.changes, 0)
        assert follower.trusted_for(60) == 0, "a message becomes visible"
        watcher.found_nothing(watcher.changes, None)
        assert follower.trusted_for(60) > 0


def a_new_watcher_shows_no_sign_before_it_looked(folder: Path) -> None:
    machine, long_ago = Machine(folder), (0, 0)
    with ExitStack() as watching:
        first, _ = watching.enter_context(machine.place("first"))
        with machine.place("next") as (second, woken):
            second.found_nothing(second.changes, None)
            watching.close()
            assert woken.wait(10) and second.leads
            os.utime(first.lock.path, long_ago)
            second.show()
            assert first.trusted_for(60) == 0


@attrs.define
class WatchedElsewhere:
    """Logs that another process watches, whose last sign holds for some seconds."""

    trusted: float
    changes: int = 0
    found: int = 0

    def is_watched_here(self) -> bool:
        return False

    def trusted_for(self, seconds: float) -> float:
        return self.trusted

    def found_nothing(self, changes: int, seconds: float | None) -> None:
        self.found += 1


def who_follows_looks_when_the_last_sign_of_the_watcher_is_old(folder: Path) -> None:
    clock = ManualClock()
    lake = LakeQueue(str(folder / "root"), clock=clock)
    mine = lake.create_queue("orders")
    other, queue = LakeQueue(lake.root, clock=clock).queue("orders"), mine._runtime
    assert mine.receive() == []
    place = WatchedElsewhere(trusted=0.3)
    waiter = Waiter(queue.shards[0].shared.waiters, lambda: None, place=place)
    deadline = queue.now() + 3_600_000_000
    wait = waits.VainWait(queue, waiter, lambda: None, None, deadline, 1_000_000, None)
    other.send("a")
    clock.advance((wait.next() - clock.now()).total_seconds())
    assert not wait.is_over() and clock.now() < from_micros(deadline), "it leaves the message to the watcher"
    place.trusted = 0
    assert wait.next() <= clock.now(), "the sign became too old since"
    assert wait.is_over()


def a_message_left_for_lack_of_a_free_hand_is_left_to_others(folder: Path) -> None:
    lake = LakeQueue(str(folder / "root"), clock=ManualClock())
    lake.create_queue("dead")
    queue = lake.create_queue("orders", redrive_policy=RedrivePolicy("dead", max_receive_count=1))
    assert claims_nothing(queue, hands=1).left_nothing
    queue.send("a")
    assert not claims_nothing(queue, hands=0).left_nothing


def claims_nothing(queue: Queue, hands: int) -> ClaimPlan:
    plan = ClaimPlan(queue._runtime, Claim(10, None, "lease"), hands=FreeHands(lambda: hands))
    assert plan.run() == ([], None)
    return plan


def watches_in_any_case(patch: Patch) -> None:
    lead = LogWatch._lead

    def leads(watch: LogWatch, place: Place) -> bool:
        place.sign = None
        return lead(watch, place)

    patch.setattr(LogWatch, "_lead", leads)


def counts_any_check(patch: Patch) -> None:
    show = Place.show

    def shows(place: Place) -> None:
        place.known = place.changes
        show(place)

    patch.setattr(Place, "show", shows)


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
        {who_follows_looks_when_the_last_sign_of_the_watcher_is_old: "LPL-6"},
    ),
    Mutation(
        "a watcher shows signs whatever it has left",
        replace(Place, "show", lambda place: place.lock.stamp()),
        {a_watcher_shows_a_sign_if_it_has_left_nothing: "LPL-6"},
    ),
    Mutation(
        "a check counts that began before a change",
        counts_any_check,
        {
            a_watcher_shows_a_sign_if_it_has_left_nothing: "LPL-6",
            a_new_watcher_shows_no_sign_before_it_looked: "LPL-6",
        },
    ),
    Mutation(
        "what a claim leaves is not left to others",
        replace(ClaimResult, "left_nothing", lambda result, command: True),
        {a_message_left_for_lack_of_a_free_hand_is_left_to_others: "LPL-6"},
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
def test_a_process_that_may_open_few_files_watches_without_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))
    watch, woken, one, two = LogWatch(), threading.Event(), tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with (
        watch.waking(str(one), [str(one)], lambda: None) as first,
        watch.waking(str(two), [str(two)], woken.set) as second,
    ):
        assert first.lock.exclusive and not second.lock.exclusive
        assert [path.name for path in tmp_path.glob("*/*")] == ["_watch.lock"]
        (two / "1").touch()
        assert woken.wait(10)


@pytest.mark.spec("LPL-6")
def test_threads_that_wait_for_the_first_time_share_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    made, together = LogWatch(), threading.Barrier(4)

    def make() -> LogWatch:
        time.sleep(0.05)  # the others ask meanwhile
        makes.append(1)
        return made

    def ask(_: int) -> LogWatch | None:
        together.wait(10)
        return log_watch.log_watch()

    makes: list[int] = []
    monkeypatch.setattr(log_watch, "LogWatch", make)
    log_watch._log_watch.cache_clear()
    try:
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(ask, range(4))) == {made} and len(makes) == 1
    finally:
        log_watch._log_watch.cache_clear()


@pytest.mark.spec("LPL-6")
def test_a_watch_reports_only_changes_while_a_receive_waits(tmp_path: Path) -> None:
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
