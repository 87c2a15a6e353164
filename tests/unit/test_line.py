"""Who is called to look when many wait for messages of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lakequeue.runtime.waiters import Line, Place


class Waiting:
    """Places of a line by name, and who was called since the last look at it."""

    def __init__(self, names: str) -> None:
        self.line = Line()
        self._calls: list[str] = []
        self._left: dict[str, ExitStack] = {}
        self.places: dict[str, Place] = {}
        for name in names:
            stack = self._left[name] = ExitStack()
            self.places[name] = stack.enter_context(self.line.place(lambda name=name: self._calls.append(name)))

    def called(self) -> str:
        calls, self._calls = self._calls, []
        return "".join(calls)

    def looks(self, names: str) -> None:
        for name in names:
            self.places[name].looks()

    def leaves(self, name: str, found: bool = False) -> None:
        self.places[name].found = found
        self._left[name].close()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    yield Waiting("abcdef")


def test_a_change_calls_one_and_further_ones_call_others_until_those_look(waiting: Waiting) -> None:
    waiting.line.call()
    assert waiting.called() == "a"
    waiting.line.call()
    assert waiting.called() == "b"
    waiting.looks("a")
    waiting.line.call()
    assert waiting.called() == "a", "it may have looked before the change"
    for _ in range(9):
        waiting.line.call()
    assert waiting.called() == "cdef", "who is called looks once for all"


def test_who_found_something_calls_two(waiting: Waiting) -> None:
    waiting.line.call(2)
    waiting.looks("ab")
    waiting.called()
    waiting.leaves("b", found=True)
    assert waiting.called() == "ac"


def test_who_leaves_without_a_look_passes_the_call_on(waiting: Waiting) -> None:
    waiting.line.call(2)
    assert waiting.called() == "ab"
    waiting.leaves("b")
    assert waiting.called() == "c"


def test_the_next_one_becomes_the_lookout_and_is_told(waiting: Waiting) -> None:
    assert waiting.places["a"].first
    waiting.leaves("a")
    assert waiting.places["b"].first and waiting.called() == "b"
    waiting.looks("b")
    waiting.leaves("d")
    assert waiting.called() == "", "nothing has changed for the others"
    for name in "bcef":
        waiting.leaves(name)
    assert waiting.line.first is None
    waiting.line.call()


@pytest.mark.spec("QUE-25")
def test_newer_attributes_call_everybody_once(waiting: Waiting) -> None:
    waiting.places["c"].heard(3)
    assert waiting.called() == "abcdef"
    waiting.looks("abcdef")
    for version in 3, 2:
        waiting.places["a"].heard(version)
    assert waiting.called() == ""


def test_a_place_whose_event_loop_is_closed_harms_nobody(waiting: Waiting) -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    with waiting.line.place(closed):
        waiting.line.call(7)
    assert waiting.called() == "abcdef"
