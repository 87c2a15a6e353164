"""Which shard a process begins with: its home, now and then another one, elsewhere where it meets others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from lakequeue.runtime.home_shard import ELSEWHERE_EVERY, HomeShard


@pytest.mark.parametrize("shards", [1, 2, 4, 16])
def test_an_order_names_every_shard_once_and_begins_at_home(shards: int) -> None:
    home = HomeShard(shards)
    assert home.order()[0] == home.current
    assert sorted(home.order()) == [*range(shards)]


@pytest.mark.parametrize("shards", [2, 4, 16])
def test_a_consumer_that_always_finds_messages_at_home_still_looks_at_every_shard(shards: int) -> None:
    home = HomeShard(shards)
    looks = Counter(home.elsewhere() for _ in range(ELSEWHERE_EVERY * (shards - 1)))
    assert looks.pop(None) == (ELSEWHERE_EVERY - 1) * (shards - 1)
    assert looks == {shard: 1 for shard in range(shards) if shard != home.current}


@pytest.mark.spec("JOB-5")
@pytest.mark.parametrize("receives", [1, 2, 15])
def test_processes_of_few_receives_start_elsewhere_as_often_as_one_of_many(receives: int) -> None:
    homes = [HomeShard(3) for _ in range(2_000)]
    found = [shard for home in homes for _ in range(receives) if (shard := home.elsewhere()) is not None]
    share = 2_000 * receives / ELSEWHERE_EVERY
    assert 0.5 * share < len(found) < 1.5 * share  # five standard deviations and more
    assert min(Counter(found).values()) > 0.1 * share and len(set(found)) == 3


def test_a_home_is_left_where_races_are_lost_for_a_shard_where_nobody_is() -> None:
    home = HomeShard(4)
    begin, other = home.current, (home.current + 1) % 4
    free = (home.current + 2) % 4
    versions = dict.fromkeys(range(4), 0)

    def activity(shards: Sequence[int]) -> list[int]:
        """Asked for all of them at once: on an object store each takes as long as all."""
        assert sorted(shards) == sorted(set(range(4)) - {home.current})
        for shard in shards:
            versions[shard] += shard != free
        return [versions[shard] for shard in shards]

    for _ in range(1_000):
        home.committed(begin, lost=0)
        home.committed(other, lost=3)  # where it does not live
        home.consider_moving(activity)
    assert home.current == begin
    for _ in range(1_000):
        home.committed(begin, lost=1)
        home.consider_moving(activity)
    assert home.current == free


def test_visitors_do_not_drive_a_process_from_its_home() -> None:
    home = HomeShard(4)
    begin = home.current
    for commit in range(1_000):
        home.committed(begin, lost=int(commit % 16 == 0))
        home.consider_moving(lambda shards: [0] * len(shards))
    assert home.current == begin


def test_a_home_without_messages_is_left_for_one_that_has_some() -> None:
    home = HomeShard(4)
    begin, other = home.current, (home.current + 1) % 4
    for _ in range(100):
        for _ in range(7):
            home.found(other)
        home.found(begin)
    assert home.current == begin
    for _ in range(8):
        home.found(other)
    assert home.current == other


def test_one_shard_is_no_choice() -> None:
    home = HomeShard(1)
    for _ in range(100):
        home.committed(0, lost=1)
        home.consider_moving(lambda shards: [0] * len(shards))
        assert home.elsewhere() is None
    assert home.order() == [0]


@pytest.mark.parametrize("processes", [2, 3, 4, 8])
def test_as_many_processes_as_shards_soon_have_one_each(processes: int) -> None:
    homes = [HomeShard(processes) for _ in range(processes)]
    versions: Counter[int] = Counter()
    for _ in range(1_000):
        at = Counter(home.current for home in homes)
        if len(at) == processes:
            return
        for home in homes:
            home.committed(home.current, lost=at[home.current] - 1)
            versions[home.current] += 1
        for home in homes:
            home.consider_moving(lambda shards: [versions[shard] for shard in shards])
    pytest.fail(f"{at} after 1,000 commits")
