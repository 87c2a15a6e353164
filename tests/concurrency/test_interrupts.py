"""An error or Ctrl-C at any line that holds a handle: the next call works, and nothing is lost or doubled."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.harness import apart, at_once, check_log, drain, small_segments
from concurrency.striking import Place, Strike
from insides import place_of
from lakequeue import LakeQueue, Queue, QueueClientError, RedrivePolicy, SendEntry
from lakequeue.operations import move
from lakequeue.runtime import (
    group_commit,
    send_places,
    send_strategies,
    shard_ledger,
    shard_queries,
    shard_reader,
    shard_sender,
)
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.storage import ledger
from lakequeue.storage.messages import append, body_cache, deliver_moved, read
from lakequeue.testing import ManualClock

TARGETS = {
    str(module.__file__)
    for module in (
        append,
        body_cache,
        deliver_moved,
        group_commit,
        ledger,
        move,
        read,
        send_places,
        send_strategies,
        shard_ledger,
        shard_queries,
        shard_reader,
        shard_sender,
    )
}
ERRORS = [OSError("injected"), KeyboardInterrupt()]


@attrs.define
class Story:
    """Calls on two queues, the second one for dead letters, and their acknowledgements."""

    queue: Queue
    dead: Queue
    sent: Counter[str] = attrs.field(factory=Counter)
    maybe: Counter[str] = attrs.field(factory=Counter)
    deleted: Counter[str] = attrs.field(factory=Counter)
    perhaps: Counter[str] = attrs.field(factory=Counter)
    failures: int = 0

    def run(self) -> None:
        for number in range(3):
            self._send(f"a{number}", f"b{number}")
        for message in self._try(lambda: self.queue.receive(max_messages=4)) or []:
            if message.body.startswith("a"):
                self._delete(message)
            else:
                self._try(lambda: self.queue.change_visibility(message.receipt_handle, 0))  # noqa: B023
        self._try(lambda: self.queue.receive(max_messages=4, visibility_timeout=0))  # dead letters move
        self._try(lambda: self.dead.redrive(max_messages=1))
        self._try(self.queue.counts)
        self._send("last")

    def _send(self, *names: str) -> None:
        result = self._try(lambda: self.queue.send_batch([SendEntry(body=name) for name in names]))
        (self.maybe if result is None else self.sent).update(names)

    def _delete(self, message: Any) -> None:
        done = self._try(lambda: self.queue.delete(message.receipt_handle) or True)
        (self.perhaps if done is None else self.deleted)[message.body] += 1

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (OSError, QueueClientError, KeyboardInterrupt):
            self.failures += 1
            return None

    def judge(self) -> None:
        """As this process, which keeps its state, and as a new process sees it."""
        clock = self.queue.clock
        at_once([lambda: self.queue.send("after"), lambda: self.dead.send("after")], patience=30)
        here = apart(place_of(self.queue), clock, 1)[0]
        for queue in (here.queue("orders"), here.queue("dead")):
            check_log(queue, from_start=False, redriven=True)
        clock.advance(1_000)
        # the last time, what a redrive was bringing back when it was interrupted
        queues = [self.queue, self.dead, self.queue]
        [found] = at_once([lambda: [body for queue in queues for body in drain(queue)]], patience=60)
        found = Counter(found)
        found["after"] -= 2
        certain = self.sent - self.deleted - self.perhaps
        assert found >= certain, f"lost: {certain - found}"
        assert found <= (self.sent + self.maybe) - self.deleted, f"too many: {found}"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("interrupts") / "root"
    lq = LakeQueue(str(root), clock=ManualClock())
    lq.create_queue("dead")
    lq.create_queue("orders", redrive_policy=RedrivePolicy("dead", 1))
    return root


@contextmanager
def story(template: Path, root: Path) -> Iterator[Story]:
    shutil.copytree(template, root)
    lq = apart(root, ManualClock(), 1)[0]
    queue, dead = lq.queue("orders"), lq.queue("dead")
    queue.send("known")  # by this process, whose handles are open now
    yield Story(queue, dead, Counter(["known"]))
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def places(template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Place]:
    with pytest.MonkeyPatch.context() as patch, story(template, tmp_path_factory.mktemp("x") / "root") as told:
        small_segments(patch)
        with Strike(targets=TARGETS) as strike:
            told.run()
        told.judge()
        assert not told.failures
    return list(strike.seen)


def strike_at(template: Path, root: Path, place: Place, error: BaseException) -> None:
    with pytest.MonkeyPatch.context() as patch, story(template, root) as told:
        small_segments(patch)
        patch.setattr("lakequeue.storage.engines.transaction.back_off", lambda _: None)
        with Strike(place, error):
            told.run()
        try:
            told.judge()
        except BaseException as found:
            raise AssertionError(f"after {error!r} at {place}: {found!r}") from found


def test_an_error_or_an_interrupt_at_some_lines(template: Path, places: list[Place], tmp_path: Path) -> None:
    assert len(places) > 300
    chance = random.Random(11)
    for number, place in enumerate(chance.sample(places, 12)):
        strike_at(template, tmp_path / str(number), place, ERRORS[number % 2])


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_an_error_or_an_interrupt_at_every_line(template: Path, places: list[Place], tmp_path: Path) -> None:
    wrong = []
    for number, place in enumerate(places):
        for error in ERRORS:
            try:
                strike_at(template, tmp_path / f"{number}-{type(error).__name__}", place, error)
            except AssertionError as found:
                wrong.append(str(found))
    print(f"{len(places)} lines, {len(ERRORS)} errors at each")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_or_an_interrupt_at_any_line_of_a_group_commit_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(group_commit, "HEAL", 0.05)

    def once(place: Place | None) -> Strike:
        begun, behind = threading.Event(), threading.Event()

        def run(requests: list[int]) -> list[int]:
            begun.set()
            assert behind.wait(60)
            return [2 * request for request in requests]

        group: GroupCommit[int, int] = GroupCommit(run)
        strike = Strike(place, error)

        def struck() -> int:
            with strike:
                return group.submit(1)

        def waits(number: int) -> int:
            begun.wait(0.2)
            try:
                return group.submit(number)
            except QueueClientError as unknown:
                assert unknown.outcome_unknown
                return 2 * number

        def later() -> int:
            begun.wait(0.2)
            behind.set()
            return 6

        [first, *rest] = at_once([struck, lambda: waits(2), later], patience=20)
        assert place is None or first is error or first == 2
        assert rest == [4, 6]
        assert group.submit(4) == 8
        return strike

    monkeypatch.setattr(sys.modules[__name__], "TARGETS", {str(group_commit.__file__)})
    for place in once(None).seen:
        once(place)
