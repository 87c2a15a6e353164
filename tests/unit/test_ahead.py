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
