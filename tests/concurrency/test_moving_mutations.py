"""Mutations of moves: no message is lost or doubled, and the safeguards that this needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency import test_moving as moving
from concurrency.test_moving import (
    APPEND,
    Pair,
    compact,
    dying,
    letters,
    received,
    redrive,
    two_processes,
)
from lakequeue import LakeQueueError
from lakequeue.operations import move as moves
from lakequeue.shard import move
from lakequeue.shard.commands import Moved
from lakequeue.shard.state import ShardState
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, shown_by

# --- scenarios


def every_move_of_a_shard_arrives(mine: Pair, theirs: Pair) -> None:
    letters(mine)
    redrive(mine)
    assert sorted(received(theirs.queue)) == ["a", "b"]
    letters(theirs)
    assert theirs.stored() == (["c"], ["a", "b"])


def the_compactor_ends_a_move(mine: Pair, theirs: Pair) -> None:
    with dying(APPEND):
        letters(mine)
    compact(theirs)
    assert theirs.stored() == (["c"], ["a", "b"])


# --- mutations


def use_a_number_again(patch: Patch) -> None:
    set_aside = move.set_aside

    def reused(state: ShardState, *more: Any) -> None:
        state.head = attrs.evolve(state.head, move_number=0)
        set_aside(state, *more)

    patch.setattr("lakequeue.shard.move.set_aside", reused)
    patch.setattr("lakequeue.shard.claim.standard.set_aside", reused)


def moved_at(test: Callable[..., None], *arguments: Any) -> Callable[[Pair, Pair], None]:
    """A test of moves as a scenario, with an action before the append."""
    return shown_by(test, lambda mine, theirs: ((mine, theirs), APPEND, *arguments))


overtaken = moved_at(
    moving.test_a_process_that_overtakes_another_one_and_the_one_it_overtook_move_once, compact, letters
)
asleep = moved_at(moving.test_a_process_that_slept_through_later_moves_moves_nothing_twice)
killed = moved_at(moving.test_dead_letters_of_a_killed_process_are_in_one_queue_once, letters)
deleted = moved_at(moving.test_messages_come_back_from_a_queue_that_is_deleted_under_a_move, False)

MUTATIONS = [
    Mutation(
        "append without a look at the number",
        replace("lakequeue.storage.messages.deliver_moved.arrived", lambda *_: False),
        {
            overtaken: "DLQ-2 DLQ-8",
            asleep: "DLQ-2 DLQ-8",
        },
    ),
    Mutation(
        "believe that it arrived",
        replace("lakequeue.storage.messages.deliver_moved.arrived", lambda *_: True),
        {killed: "DLQ-2 DLQ-8"},
    ),
    Mutation(
        "remove without appending",
        replace("lakequeue.runtime.shard_sender.deliver", lambda *_: False),
        {killed: "DLQ-2 DLQ-8"},
    ),
    Mutation("use a number again", use_a_number_again, {every_move_of_a_shard_arrives: "DLQ-2 DLQ-8"}),
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
