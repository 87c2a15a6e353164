"""Which message group comes next on a standard queue, and which groups are noisy."""

from __future__ import annotations

import pytest

from lakequeue.shard.claim.fair import PATIENCE, GroupLoad, Turn, next_turn, noisy

NOW = 10 * PATIENCE


@pytest.mark.spec("FAI-2")
@pytest.mark.parametrize(
    ("waiting", "next_group"),
    [
        ([], None),
        ([Turn(0, NOW, 0, "a")], "a"),
        ([Turn(3, NOW - 9, 0, "noisy"), Turn(1, NOW, 9, "quiet")], "quiet"),
        ([Turn(1, NOW, 0, "late"), Turn(1, NOW - 1, 9, "early")], "early"),
        ([Turn(1, NOW, 9, "higher"), Turn(1, NOW, 8, "lower")], "lower"),
        ([Turn(0, NOW, 0, "idle"), Turn(4, NOW - PATIENCE, 9, "overdue")], "overdue"),
        ([Turn(0, NOW, 0, "idle"), Turn(4, NOW - PATIENCE + 1, 9, "nearly")], "idle"),
        ([Turn(0, NOW, 0, "idle"), Turn(5, NOW - PATIENCE, 9, "limited")], "idle"),
        ([Turn(5, NOW, 0, "limited")], None),
    ],
)
def test_the_group_with_fewest_in_flight_comes_next_then_the_one_that_waits_longest(waiting, next_group):
    turn = next_turn(waiting, NOW, 5, True)
    assert (None if turn is None else turn.group) == next_group


@pytest.mark.spec("FAI-2")
def test_only_the_first_message_of_a_claim_goes_to_an_overdue_group():
    waiting = [Turn(0, NOW, 0, "idle"), Turn(4, NOW - PATIENCE, 9, "overdue")]
    assert next_turn(waiting, NOW, None, False) == waiting[0]


@pytest.mark.spec("FAI-3")
@pytest.mark.parametrize(
    ("loads", "found"),
    [
        ([], set()),
        ([("only", 1_000_000, 50)], set()),
        ([("million", 1_000_000, 0), ("quiet", 1, 0)], {"million"}),
        ([("million", 1_000_000, 0), *((f"quiet {n}", 1, 0) for n in range(100))], {"million"}),
        ([("slow", 0, 50), ("quiet", 3, 1)], {"slow"}),
        ([("few", 9, 9), ("none", 0, 1)], set()),
        ([("like", 40, 4), ("others", 10, 4)], set()),
        ([("more", 41, 4), ("others", 10, 4)], {"more"}),
        ([(f"busy {n}", 1_000, 9) for n in range(5)] + [("quiet", 1, 0)], set()),
        ([("", 500, 0), ("a", 1, 0), ("b", 2, 0)], {""}),
    ],
)
def test_a_group_is_noisy_by_what_it_has_in_flight_or_waiting_beside_the_usual(loads, found):
    assert noisy([GroupLoad(*load) for load in loads]) == found
