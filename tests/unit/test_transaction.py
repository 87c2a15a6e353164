"""One transaction: what it does with an answer, a change, an old snapshot, and a race that is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from lakequeue.errors import QueueClientError, RequestThrottled
from lakequeue.storage.engines import transaction
from lakequeue.storage.engines.commit_failures import StaleSnapshot
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import (
    Answer,
    Answered,
    Change,
    Committed,
    Decision,
    FoundChange,
    Stale,
    transact,
)
from lakequeue.storage.engines.turns import Turns
from lakequeue.storage.repair.steps import files_step
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


@pytest.mark.spec("ERR-9")
@pytest.mark.parametrize("status", ["", "408 Request Timeout: ", "499 Client Closed Request: "])
def test_a_try_that_may_still_land_is_not_decided_again(
    handles: tuple[Table, Table], monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    mine, _ = handles
    monkeypatch.setattr(transaction, "REPEATS", 2)
    decisions = list[int]()

    def unanswered(ids: Mapping[str, int], token: str) -> None:
        raise OSError(f"Error performing PUT s3://b/_delta_log/{1:020}.json in 30s - {status}no answer")

    def decide(races: int) -> Change[int]:
        decisions.append(races)
        return attrs.evolve(one_more(mine), write=unanswered)

    with pytest.raises(QueueClientError, match="may still land") as refused:
        transact(mine, decide, busy="busy")
    assert refused.value.outcome_unknown and decisions == [0]


def test_a_repair_replaces_files_of_the_version_that_it_read_alone(
    handles: tuple[Table, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = handles
    step = files_step(Engine(Store()), mine.path, mine.version, [], [pa.table({"a": [1]})], "replaces files")
    exchange = Table.exchange

    def meanwhile(self: Table, *given: Any) -> None:
        count(other)
        exchange(self, *given)

    monkeypatch.setattr(Table, "exchange", meanwhile)
    with pytest.raises(QueueClientError, match="was changed meanwhile"):
        step.apply()
    other.refresh()
    assert other.files() == [] and other.transaction(NAME) == 1, "nothing was replaced, and it was tried once"


class Recorded(Turns):
    """Turns that take note of what is called."""

    def __init__(self, moves: int) -> None:
        super().__init__()
        self.moves, self.calls = moves, list[str]()

    def take(self, table: Table, *, patient: bool) -> bool:
        self.calls.append("take" if patient else "take, impatient")
        self.moves -= 1
        return self.moves >= 0

    @contextmanager
    def commit(self) -> Iterator[None]:
        self.calls.append("commit")
        yield

    def lose(self, table: Table, lost: int) -> bool:
        self.calls.append(f"lose {lost}")
        return True

    def end(self) -> None:
        self.calls.append("end")


@pytest.mark.spec("DUR-24")
def test_turns_learn_of_commits_and_lost_races(handles: tuple[Table, Table]) -> None:
    mine, other = handles
    turns = Recorded(0)

    def decide(races: int) -> Change[int]:
        change = one_more(mine)
        if not races:
            count(other)
        return change

    assert transact(mine, decide, busy="busy", turns=turns) == Committed(2, 1, avoided=False)
    assert turns.calls == ["commit", "lose 1", "commit", "end"]


@pytest.mark.spec("DUR-24")
def test_a_late_change_waits_for_its_turn_and_is_decided_again_if_others_committed(
    handles: tuple[Table, Table],
) -> None:
    mine, other = handles
    turns, seen = Recorded(1), list[int]()
    count(other)

    def decide(_: int) -> Change[int]:
        seen.append(mine.transaction(NAME))
        return attrs.evolve(one_more(mine), late=True, patient=len(seen) > 1)

    assert transact(mine, decide, busy="busy", turns=turns) == Committed(2, 0, avoided=False)
    assert seen == [0, 1], "the snapshot before its turn, and the one in it"
    assert turns.calls == ["take, impatient", "take", "commit", "end"]


def test_a_change_that_another_process_made_is_committed(handles: tuple[Table, Table]) -> None:
    mine, _ = handles
    turns = Recorded(0)
    assert transact(mine, lambda _: FoundChange("there"), busy="busy", turns=turns) == Committed(
        "there", 0, avoided=False
    )
    assert turns.calls == ["end"]


def removed() -> Decision[int]:
    raise StaleSnapshot("a file was merged")


@pytest.mark.parametrize("first", [Stale, removed], ids=["said", "noticed"])
def test_an_old_snapshot_is_loaded_again(handles: tuple[Table, Table], first: Callable[[], Decision[int]]) -> None:
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
