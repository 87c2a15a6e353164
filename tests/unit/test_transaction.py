"""One transaction: what it does with an answer, a change, an old snapshot, and a race that is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from lakequeue.errors import RequestThrottled
from lakequeue.storage.engines import transaction
from lakequeue.storage.engines.interface import StaleSnapshot
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Answer, Answered, Change, Committed, Decision, Stale, transact
from lakequeue.storage.stores import Store

NAME = "count"


@pytest.fixture
def handles(tmp_path: Path) -> tuple[Table, Table]:
    """Two processes' handles on one table."""
    engine, path = Engine(Store()), str(tmp_path / "table")
    engine.create(path, pa.schema([("a", pa.int64())]), [], {})
    return engine.open(path), engine.open(path)


def one_more(table: Table) -> Change[int]:
    known = table.transaction(NAME)
    return Change({NAME: known}, {NAME: known + 1}, partial(table.add, []), known + 1)


def count(table: Table) -> None:
    transact(table, lambda _: one_more(table), busy="busy")


def test_an_answer_holds_for_a_snapshot_that_was_read_within_the_call(handles: tuple[Table, Table]) -> None:
    mine, other = handles
    count(other)
    seen = list[int]()

    def decide(_: int) -> Answer[int]:
        seen.append(mine.transaction(NAME))
        return Answer(seen[-1])

    assert transact(mine, decide, busy="busy", fresh=False) == Answered(1)
    assert seen == [0, 1]
    assert transact(mine, decide, busy="busy", fresh=False) == Answered(1), (
        "it is the same, and is not asked again"
    )
    assert seen == [0, 1, 1]
    count(other)
    assert transact(mine, decide, busy="busy") == Answered(1), "the caller has read it"


@pytest.mark.spec("ERR-9")
def test_a_lost_race_is_decided_again(handles: tuple[Table, Table]) -> None:
    mine, other = handles
    lost = list[int]()

    def decide(races: int) -> Change[int]:
        lost.append(races)
        change = one_more(mine)
        if races < 2:
            count(other)
        return change

    assert transact(mine, decide, busy="busy") == Committed(3, 2, avoided=False)
    assert lost == [0, 1, 2]


@pytest.mark.spec("ERR-9")
def test_after_too_many_lost_races_nothing_was_changed(
    handles: tuple[Table, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = handles
    monkeypatch.setattr(transaction, "ATTEMPTS", 3)

    def decide(_: int) -> Change[int]:
        change = one_more(mine)
        count(other)
        return change

    with pytest.raises(RequestThrottled, match="far too busy"):
        transact(mine, decide, busy="far too busy")
    other.refresh()
    assert other.transaction(NAME) == 3, "those of the others"


def removed() -> Decision[int]:
    raise StaleSnapshot("a file was merged")


@pytest.mark.parametrize("first", [Stale, removed], ids=["said", "noticed"])
def test_an_old_snapshot_is_loaded_anew(handles: tuple[Table, Table], first: Callable[[], Decision[int]]) -> None:
    mine, other = handles
    count(other)

    def decide(_: int) -> Decision[int]:
        return Answer(1) if mine.transaction(NAME) else first()

    assert transact(mine, decide, busy="busy", fresh=False) == Answered(1)


def test_a_failed_read_of_the_newest_snapshot_is_an_error(handles: tuple[Table, Table]) -> None:
    mine, _ = handles
    tries = list[int]()

    def decide(lost: int) -> Decision[int]:
        tries.append(lost)
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        transact(mine, decide, busy="busy", fresh=False)
    assert len(tries) == 2
