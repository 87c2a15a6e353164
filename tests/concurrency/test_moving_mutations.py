"""Messages that move between queues are neither lost nor doubled, and the safeguards that this needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.test_moving import (
    APPEND,
    Pair,
    before_write,
    compact,
    dying,
    go_on_for_long,
    letters,
    received,
    redrive,
    stored,
    two_processes,
)
from lakequeue import LakeQueueError
from lakequeue.operations import move as moves
from lakequeue.shard import Moved, move
from lakequeue.shard.state import ShardState
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace

# --- scenarios


def nothing_is_lost_or_doubled_by_who_is_overtaken(mine: Pair, theirs: Pair) -> None:
    with before_write(APPEND, lambda: compact(theirs)):
        letters(mine)
    source, dead = mine.stored()
    assert Counter(source + dead) == Counter("abc")


def who_slept_through_later_moves_brings_nothing(mine: Pair, theirs: Pair) -> None:
    with before_write(APPEND, lambda: go_on_for_long(theirs)):
        letters(mine)
    assert mine.stored() == (["c"], ["a", "b"])


def a_move_that_was_cut_short_is_ended_by_others(mine: Pair, theirs: Pair) -> None:
    with dying(APPEND):
        letters(mine)
    letters(theirs)
    assert theirs.stored() == (["c"], ["a", "b"])


def every_move_of_a_shard_arrives(mine: Pair, theirs: Pair) -> None:
    letters(mine)
    redrive(mine)
    assert sorted(received(theirs.queue)) == ["a", "b"]
    letters(theirs)
    assert theirs.stored() == (["c"], ["a", "b"])


def messages_come_back_from_a_queue_that_is_gone(mine: Pair, theirs: Pair) -> None:
    with before_write(APPEND, lambda: theirs.lq.delete_queue("dead")):
        letters(mine)
    assert stored(mine.queue) == ["a", "b", "c"]


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


MUTATIONS = [
    Mutation(
        "append without a look at the number",
        replace("lakequeue.storage.messages.deliver_moved.arrived", lambda *_: False),
        {
            nothing_is_lost_or_doubled_by_who_is_overtaken: "DLQ-2 DLQ-8",
            who_slept_through_later_moves_brings_nothing: "DLQ-2 DLQ-8",
        },
    ),
    Mutation(
        "believe that it arrived",
        replace("lakequeue.storage.messages.deliver_moved.arrived", lambda *_: True),
        {a_move_that_was_cut_short_is_ended_by_others: "DLQ-2 DLQ-8"},
    ),
    Mutation(
        "remove without appending",
        replace("lakequeue.operations.move.deliver", lambda *_: False),
        {a_move_that_was_cut_short_is_ended_by_others: "DLQ-2 DLQ-8"},
    ),
    Mutation("use a number again", use_a_number_again, {every_move_of_a_shard_arrives: "DLQ-2 DLQ-8"}),
    Mutation(
        "remove what cannot arrive",
        replace("lakequeue.operations.move.MoveBack", Moved),
        {messages_come_back_from_a_queue_that_is_gone: "DLQ-2 DLQ-8"},
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
