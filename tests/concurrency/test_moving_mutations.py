"""Mutations of moves that no schedule of tests/simulation comes by: no message is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from concurrency import test_moving as moving
from concurrency.steps import dying
from concurrency.test_moving import APPEND, Pair, compact, letters, two_processes
from lakequeue import LakeQueueError
from lakequeue.operations import move as moves
from lakequeue.shard.commands import Moved
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace, shown_by

# --- scenarios


def the_compactor_ends_a_move(mine: Pair, theirs: Pair) -> None:
    with dying(APPEND):
        letters(mine)
    compact(theirs)
    assert theirs.stored() == (["c"], ["a", "b"])


# --- mutations


def moved_at(test: Callable[..., None], *arguments: Any) -> Callable[[Pair, Pair], None]:
    """A test of moves as a scenario, with an action before the append."""
    return shown_by(test, lambda mine, theirs: ((mine, theirs), APPEND, *arguments))


deleted = moved_at(moving.test_messages_come_back_from_a_queue_that_is_deleted_under_a_move, False)

MUTATIONS = [
    Mutation(
        "remove what cannot arrive",
        replace("lakequeue.operations.move.MoveBack", Moved),
        {deleted: "DLQ-2 DLQ-8"},
    ),
    Mutation(
        "leave moves to receivers",
        replace(moves, "finish_all", lambda _: None),
        {the_compactor_ends_a_move: "DLQ-2 DLQ-8"},
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda _: two_processes(tmp_path, ManualClock()), (LakeQueueError, pytest.fail.Exception))
