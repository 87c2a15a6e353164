"""How many messages a consumer claims ahead of its hands."""

from __future__ import annotations

import pytest

from lakequeue.consumer.ahead import MOST, MOST_BYTES, Ahead
from lakequeue.model.messages import Message

MILLI = 1_000
LONG = 10_000 * MILLI


def message(size: int) -> Message:
    found = Message.__new__(Message)
    object.__setattr__(found, "body", "x" * size)
    return found


def settled(ahead: Ahead, hands: int, micros: int) -> int:
    """Its capacity after some rounds with handlers of one length."""
    for _ in range(12):
        for _ in range(2 * hands):
            ahead.took(micros)
        ahead.capacity(hands)
    return ahead.capacity(hands)


@pytest.mark.spec("HBN-23")
@pytest.mark.parametrize(
    ("took", "holds"), [(1_000 * MILLI, 8), (250 * MILLI, 8), (200 * MILLI, 10), (20 * MILLI, 100), (0, MOST)]
)
def test_the_capacity_is_the_work_of_a_quarter_of_a_second(took: int, holds: int) -> None:
    assert settled(Ahead(8, None, LONG), 8, took) == holds


@pytest.mark.spec("HBN-23")
def test_the_capacity_grows_in_a_few_rounds_and_falls_at_once() -> None:
    ahead = Ahead(8, None, LONG)
    assert ahead.capacity(8) == 8
    ahead.took(0)
    assert [ahead.capacity(8) for _ in range(3)] == [64, 512, 1_000]
    for _ in range(16):
        ahead.took(400 * MILLI)
    assert ahead.capacity(8) == 8
    settled(ahead, 8, 0)
    ahead.fell_behind()
    assert ahead.capacity(8) == 8


@pytest.mark.spec("HBN-23")
@pytest.mark.parametrize(
    ("rounds", "longest", "window", "behind"),
    [
        ((), LONG, 250, 1_000),
        ((20,) * 9, LONG, 250, 1_000),
        ((500, 900, 600), LONG, 2_700, 10_000),
        ((900, *(100,) * 8), LONG, 300, 1_200),
        ((9_000,), LONG, 7_500, 10_000),
        ((500,), 300 * MILLI, 225, 300),
    ],
)
def test_the_capacity_lasts_for_the_longest_of_the_last_rounds(
    rounds: tuple[int, ...], longest: int, window: int, behind: int
) -> None:
    ahead = Ahead(8, None, longest)
    for round_ in rounds:
        ahead.round(round_ * MILLI)
    assert (ahead.window, ahead.behind) == (window * MILLI, behind * MILLI)
    assert settled(ahead, 8, 100 * MILLI) == max(8, 8 * window // 100)


@pytest.mark.spec("HBN-23")
def test_large_messages_are_fewer() -> None:
    ahead = Ahead(8, None, LONG)
    ahead.received([message(1 << 20)] * 3)
    assert settled(ahead, 8, 0) == MOST_BYTES >> 20
    ahead.received([message(16 << 20)])
    assert ahead.capacity(8) == 8


@pytest.mark.spec("HBN-23")
def test_a_prefetch_has_the_requested_number() -> None:
    for prefetch in (0, 5):
        assert settled(Ahead(8, prefetch, LONG), 8, 0) == 8 + prefetch


def with_rounds(*rounds: int) -> Ahead:
    """For a FIFO queue, after rounds of so many milliseconds."""
    ahead = Ahead(8, None, LONG, fifo=True)
    for round_ in rounds:
        ahead.round(round_ * MILLI)
    return ahead


@pytest.mark.spec("HBN-23", "HBN-19")
@pytest.mark.parametrize(
    ("rounds", "lacking", "work"), [((10,), 0, 250), ((10,), 1, 115), ((200, 400), 0, 700), ((200, 400), 1, 550)]
)
def test_a_fifo_queue_holds_two_rounds_of_work_and_fewer_while_groups_are_scarce(
    rounds: tuple[int, ...], lacking: int, work: int
) -> None:
    ahead = with_rounds(*rounds)
    ahead.lacking = lacking
    assert settled(ahead, 8, 100 * MILLI) == 8 * work // 100


@pytest.mark.spec("HBN-19", "HBN-24")
@pytest.mark.parametrize(("ready", "gathers"), [(0, 0), (16, 0), (24, 100), (80, 250)])
def test_a_fifo_queue_settles_before_its_hands_have_nothing_to_begin(ready: int, gathers: int) -> None:
    ahead = with_rounds(150, 250)
    settled(ahead, 8, 100 * MILLI)
    assert ahead.gather(ready) == gathers * MILLI


@pytest.mark.spec("HBN-24")
def test_another_queue_settles_after_at_most_a_round_or_when_a_hand_finds_nothing() -> None:
    ahead = Ahead(8, None, LONG)
    ahead.round(200 * MILLI)
    assert ahead.gather(0) == 200 * MILLI
