"""Which shard a process begins with: its home, now and then another one, elsewhere where it meets others."""

from __future__ import annotations

from collections import Counter

import pytest

from lakequeue.home_shard import ELSEWHERE_EVERY, HomeShard


@pytest.mark.parametrize("shards", [1, 2, 4, 16])
def test_every_order_names_every_shard_once_and_sends_begin_at_home(shards: int) -> None:
    home = HomeShard(shards)
    assert home.order()[0] == home.current
    for _ in range(3 * ELSEWHERE_EVERY):
        assert sorted(home.order()) == sorted(home.order_of_receive()) == [*range(shards)]


@pytest.mark.spec("RCV-4")
@pytest.mark.parametrize("shards", [2, 4, 16])
def test_a_consumer_that_always_finds_messages_at_home_still_begins_at_every_shard(shards: int) -> None:
    home = HomeShard(shards)
    first = Counter(home.order_of_receive()[0] for _ in range(ELSEWHERE_EVERY * (shards - 1)))
    assert first[home.current] == (ELSEWHERE_EVERY - 1) * (shards - 1)
    assert [first[shard] for shard in range(shards) if shard != home.current] == [1] * (shards - 1)


def test_a_home_is_left_where_others_are_met_and_kept_where_not() -> None:
    home = HomeShard(4)
    kept = home.current
    for _ in range(1_000):
        home.committed(kept, met=False)
        home.committed((kept + 1) % 4, met=True)  # not the home
    assert home.current == kept
    for _ in range(10_000):
        home.committed(home.current, met=True)
        if home.current != kept:
            return
    pytest.fail("it never moved")


def test_one_shard_is_no_choice() -> None:
    home = HomeShard(1)
    for _ in range(10):
        home.committed(0, met=True)
    assert home.order_of_receive() == [0]


@pytest.mark.parametrize("processes", [2, 3, 4, 8])
def test_as_many_processes_as_shards_soon_have_one_each(processes: int) -> None:
    homes = [HomeShard(processes) for _ in range(processes)]
    for _ in range(5_000):
        at = Counter(home.current for home in homes)
        if len(at) == processes:
            return
        for home in homes:
            home.committed(home.current, met=at[home.current] > 1)
    pytest.fail(f"{at} after 5,000 commits")
