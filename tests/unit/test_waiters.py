"""Who is called to look when many wait for messages of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lakequeue.runtime.waiters import Waiter, Waiters


class Waiting:
    """Places of a line by name, and who was called since the last look at it."""

    def __init__(self, names: str) -> None:
        self.waiters = Waiters()
        self._calls: list[str] = []
        self._left: dict[str, ExitStack] = {}
        self.waiting: dict[str, Waiter] = {}
        for name in names:
            stack = self._left[name] = ExitStack()
            self.waiting[name] = stack.enter_context(
                self.waiters.waiter(lambda name=name: self._calls.append(name))
            )

    def called(self) -> str:
        calls, self._calls = self._calls, []
        return "".join(calls)

    def looks(self, names: str) -> None:
        for name in names:
            self.waiting[name].woken = False

    def leaves(self, name: str, found: bool = False) -> None:
        self.waiting[name].found = found
        self._left[name].close()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    yield Waiting("abcdef")


def test_a_change_wakes_one_waiter_and_further_changes_wake_others_until_they_poll(waiting: Waiting) -> None:
    waiting.waiters.wake()
    assert waiting.called() == "a"
    waiting.waiters.wake()
    assert waiting.called() == "b"
    waiting.looks("a")
    waiting.waiters.wake()
    assert waiting.called() == "a", "it may have looked before the change"
    for _ in range(9):
        waiting.waiters.wake()
    assert waiting.called() == "cdef", "who is called looks once for all"


def test_who_found_something_calls_two(waiting: Waiting) -> None:
    waiting.waiters.wake(2)
    waiting.looks("ab")
    waiting.called()
    waiting.leaves("b", found=True)
    assert waiting.called() == "ac"


def test_who_leaves_without_a_look_passes_the_call_on(waiting: Waiting) -> None:
    waiting.waiters.wake(2)
    assert waiting.called() == "ab"
    waiting.leaves("b")
    assert waiting.called() == "c"


def test_the_next_waiter_becomes_the_first_and_is_woken(waiting: Waiting) -> None:
    assert waiting.waiting["a"].first
    waiting.leaves("a")
    assert waiting.waiting["b"].first and waiting.called() == "b"
    waiting.looks("b")
    waiting.leaves("d")
    assert waiting.called() == "", "nothing has changed for the others"
    for name in "bcef":
        waiting.leaves(name)
    assert waiting.waiters.first is None
    waiting.waiters.wake()


@pytest.mark.spec("QUE-25")
def test_newer_attributes_call_everybody_once(waiting: Waiting) -> None:
    waiting.waiting["c"].waiters.announce(3)
    assert waiting.called() == "abcdef"
    waiting.looks("abcdef")
    for version in 3, 2:
        waiting.waiting["a"].waiters.announce(version)
    assert waiting.called() == ""


def test_a_place_whose_event_loop_is_closed_harms_nobody(waiting: Waiting) -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    with waiting.waiters.waiter(closed):
        waiting.waiters.wake(7)
    assert waiting.called() == "abcdef"
