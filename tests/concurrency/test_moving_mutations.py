"""What keeps messages from being lost or doubled on their way between queues: without it, a check here fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
    stage,
    stored,
)
from lakequeue import LakeQueueError
from lakequeue.operations.move import Mover
from lakequeue.shard import Moved, move
from lakequeue.shard.state import ShardState
from lakequeue.testing import ManualClock

Patch = pytest.MonkeyPatch


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


def append_without_a_look_at_the_number(patch: Patch) -> None:
    patch.setattr("lakequeue.storage.messages.deliver_moved.arrived", lambda *_: False)


def believe_that_it_arrived(patch: Patch) -> None:
    patch.setattr("lakequeue.storage.messages.deliver_moved.arrived", lambda *_: True)


def remove_without_appending(patch: Patch) -> None:
    patch.setattr("lakequeue.operations.move.deliver", lambda *_: False)


def use_a_number_again(patch: Patch) -> None:
    set_aside = move.set_aside

    def reused(state: ShardState, *more: Any) -> None:
        state.head = attrs.evolve(state.head, move_number=0)
        set_aside(state, *more)

    patch.setattr("lakequeue.shard.move.set_aside", reused)
    patch.setattr("lakequeue.shard.claim.set_aside", reused)


def remove_what_cannot_arrive(patch: Patch) -> None:
    patch.setattr("lakequeue.operations.move.MoveBack", Moved)


def leave_moves_to_receivers(patch: Patch) -> None:
    patch.setattr(Mover, "finish_all", lambda _: None)


PAIRS: list[tuple[Callable[[Pair, Pair], None], Callable[[Patch], None]]] = [
    (nothing_is_lost_or_doubled_by_who_is_overtaken, append_without_a_look_at_the_number),
    (who_slept_through_later_moves_brings_nothing, append_without_a_look_at_the_number),
    (a_move_that_was_cut_short_is_ended_by_others, believe_that_it_arrived),
    (a_move_that_was_cut_short_is_ended_by_others, remove_without_appending),
    (every_move_of_a_shard_arrives, use_a_number_again),
    (messages_come_back_from_a_queue_that_is_gone, remove_what_cannot_arrive),
    (the_compactor_ends_a_move, leave_moves_to_receivers),
]


@pytest.mark.spec("DLQ-2", "DLQ-8")
@pytest.mark.parametrize(
    ("scenario", "mutation"),
    PAIRS,
    ids=[f"{s.__name__}-{m.__name__}" for s, m in PAIRS],
)
def test_the_guarantee_holds_and_its_check_can_fail(
    tmp_path: Path, scenario: Callable[[Pair, Pair], None], mutation: Callable[[Patch], None]
) -> None:
    scenario(*stage(tmp_path / "as-it-is", ManualClock()))
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        with pytest.raises((AssertionError, LakeQueueError, pytest.fail.Exception)):
            scenario(*stage(tmp_path / "mutated", ManualClock()))
