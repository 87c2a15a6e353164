"""When a process pauses after its commits, so that others on an object store have their turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lakequeue.storage.engines import turns
from lakequeue.storage.engines.turns import ASK_AFTER, COMMITS, MOST, StoreTurns

TOOK = 0.25
"""Seconds of each commit."""


class Timed:
    """A clock that only pauses and commits move, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(turns, "monotonic", lambda: self.now)
        monkeypatch.setattr(turns, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def commit(self, process: StoreTurns) -> None:
        with process.commit():
            self.now += TOOK


class Handle:
    """The parts of a table handle that turns need, with the application ids of the last refresh."""

    def __init__(self, committed: dict[str, int]) -> None:
        self._committed = committed
        self.refresh()

    def refresh(self) -> None:
        self._known = dict(self._committed)

    def transaction(self, app_id: str) -> int:
        return self._known.get(app_id, 0)

    def add(self, _: Sequence[Any], transactions: Mapping[str, int], __: str) -> None:
        self._committed.update(transactions)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    return Timed(monkeypatch)


@pytest.fixture
def table() -> Any:
    return Handle({})


def pauses(process: StoreTurns, table: Any) -> bool:
    with process.taken(table) as paused:
        return paused


def test_a_process_alone_never_pauses(timed: Timed, table: Any) -> None:
    process = StoreTurns()
    for _ in range(3):
        timed.commit(process)
        assert not pauses(process, table)


def test_a_process_that_lost_once_pauses_once(timed: Timed, table: Any) -> None:
    process = StoreTurns()
    process.lose(table, 1)
    assert not pauses(process, table), "its last try was no commit"
    timed.commit(process)
    assert pauses(process, table) and timed.pauses == [COMMITS * TOOK]
    assert not pauses(process, table)
    timed.commit(process)
    assert not pauses(process, table)


def test_a_process_that_loses_often_pauses_after_every_commit(timed: Timed, table: Any) -> None:
    process = StoreTurns()
    for lost in range(1, 10):
        process.lose(table, lost)
    for _ in range(MOST):
        timed.commit(process)
        assert pauses(process, table) and not pauses(process, table)
    timed.commit(process)
    assert not pauses(process, table)


def test_a_busy_process_lets_a_process_that_keeps_losing_go_first(timed: Timed) -> None:
    committed: dict[str, int] = {}
    tables: list[Any] = [Handle(committed), Handle(committed)]
    busy, slow = StoreTurns(), StoreTurns()

    def busy_pauses() -> bool:
        tables[0].refresh()
        timed.commit(busy)
        return pauses(busy, tables[0])

    assert not busy_pauses()
    for lost in range(1, ASK_AFTER):
        slow.lose(tables[1], lost)
        assert not busy_pauses()
    slow.lose(tables[1], ASK_AFTER)
    assert busy_pauses() and not busy_pauses()
