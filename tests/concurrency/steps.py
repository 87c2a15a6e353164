"""What happens at a step of one process: another one acts, the step fails, or the process ends there.

Each test is a script: one process runs to a step, something happens, the process goes on, or another one does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from lakequeue import QueueClientError
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.point import Table
from mutations import Patch

WRITES = ("append", "merge", "replace", "add")
"""The kinds of commits of a table."""
LANDED = [LostRace("answer lost"), OSError("post-commit work failed")]
"""Errors of a commit that has landed."""


class Killed(BaseException):
    """Ends a call as a SIGKILL would."""


@attrs.define
class Step:
    """A step of a process.

    Attributes:
        seen: how often it was reached.
        given: arguments without a name of the call that reached it last.
    """

    seen: int = 0
    given: tuple[Any, ...] = ()


def at(
    patch: Patch,
    owner: Any,
    names: str | Sequence[str],
    act: Callable[[], object] | BaseException,
    *,
    number: int = 1,
    times: int = 1,
    landed: bool = False,
    when: Callable[..., bool] = lambda *_: True,
) -> Step:
    """Acts right before the next call of a function, or raises an error instead of it.

    Args:
        patch: undone, the calls are as they were.
        owner: has the functions.
        names: one function, or several that count as one.
        act: what another process does meanwhile, which may call the same functions; or an error.
        number: of the first call at which that happens, from 1 on.
        times: how many calls in a row it happens at.
        landed: it happens right after the call instead, before its answer.
        when: whether a call with these arguments counts.
    """
    step = Step()

    def met(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            if not when(*given):
                return original(*given, **more)
            step.seen += 1
            step.given = given
            if not number <= step.seen < number + times:
                return original(*given, **more)
            answer = original(*given, **more) if landed else None
            if isinstance(act, BaseException):
                raise act
            act()
            return answer if landed else original(*given, **more)

        return call

    for name in [names] if isinstance(names, str) else names:
        patch.setattr(owner, name, met(getattr(owner, name)))
    return step


@contextmanager
def meanwhile(
    owner: Any,
    name: str,
    act: Callable[..., object],
    *,
    landed: bool = False,
    when: Callable[..., bool] = lambda *_: True,
) -> Iterator[None]:
    """As ``at`` during the block, which must reach the step; ``act`` gets the arguments of the call."""
    with pytest.MonkeyPatch.context() as patch:
        step = at(patch, owner, name, lambda: act(*step.given), landed=landed, when=when)
        yield
    assert step.seen, f"{name} was not called"


@contextmanager
def before_write(number: int, act: Callable[[], object] | BaseException) -> Iterator[None]:
    """Acts right before a commit of any kind, counted from 1."""
    with pytest.MonkeyPatch.context() as patch:
        step = at(patch, Table, WRITES, act, number=number)
        yield
    assert step.seen >= number, "that write was not reached"


@contextmanager
def dying(number: int) -> Iterator[None]:
    """A process that ends right before a commit."""
    with pytest.raises(Killed), before_write(number, Killed()):
        yield


@contextmanager
def cut_off(method: str, landed: bool) -> Iterator[None]:
    """A process that is cut off from the storage at its next commit, and cannot learn whether that landed."""
    with pytest.MonkeyPatch.context() as patch:

        def no_route() -> None:
            at(patch, Table, "refresh", OSError("unreachable"), times=1_000)
            raise OSError("connection reset")

        at(patch, Table, method, no_route, landed=landed)
        with pytest.raises(QueueClientError) as caught:
            yield
    assert caught.value.outcome_unknown
    assert "except a send without an id" in caught.value.message


@contextmanager
def held_at(patch: Patch, owner: Any, name: str, call: Callable[[], object]) -> Iterator[ThreadPoolExecutor]:
    """A thread makes a call, and is held at a step of it during the block; yields threads for what others do."""
    began, go_on = threading.Event(), threading.Event()
    at(patch, owner, name, lambda: (began.set(), go_on.wait(60)))
    with ThreadPoolExecutor() as pool:
        held = pool.submit(call)
        try:
            assert began.wait(60)
            yield pool
        finally:
            go_on.set()
        held.result(60)
