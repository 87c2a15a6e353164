"""Lost races are told by shard, and a process that loses too many says so once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from concurrency.harness import apart, keep_to
from concurrency.stopping import without_turns
from lakequeue import Queue, ShardCounts
from lakequeue.operations.depth import NEWEST_COMMITS
from lakequeue.runtime.shard_races import ROUNDS, RaceCounts
from lakequeue.testing import ManualClock

pytestmark = pytest.mark.spec("QUE-35")


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock) -> tuple[Queue, Queue]:
    here, there = apart(tmp_path / "root", clock)
    queue = here.create_queue("orders", shards=2)
    keep_to(queue, 0)
    for body in range(6):
        queue.send(str(body), delay=900 if body == 5 else None)
    other = there.create_queue("orders")
    keep_to(other, 0)
    return queue, other


@pytest.mark.parametrize("turns", [True, False])
def test_each_shard_shows_its_messages_and_lost_races(
    pair: tuple[Queue, Queue], turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A race that a turn avoided counts, too: the process decided again."""
    if not turns:
        without_turns(monkeypatch)
    for queue in (*pair, *pair):
        queue.receive()
    assert pair[1].shard_counts() == [
        ShardCounts(0, visible=1, in_flight=4, delayed=1, held=0, commits=12, lost_races=2),
        ShardCounts(1, 0, 0, 0, 0, commits=2, lost_races=0),
    ]
    assert pair[0]._runtime.shards[0].shared.races.by_shard() == {0: (8, 1)}
    assert pair[1]._runtime.shards[0].shared.races.by_shard() == {0: (2, 1)}


def test_lost_races_are_counted_in_the_newest_commits(pair: tuple[Queue, Queue]) -> None:
    for queue in (*pair, *pair):
        queue.receive()
    queue = pair[0]
    assert queue.shard_counts()[0].lost_races == 2
    for _ in range(NEWEST_COMMITS + 1):
        assert queue.receive(1, 0)
    found = queue.shard_counts()[0]
    assert found.lost_races == 0 and NEWEST_COMMITS < found.commits <= 2 * NEWEST_COMMITS


def test_a_process_warns_once_when_it_lost_more_than_a_third(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="lakequeue")
    races = RaceCounts("orders")
    for round_ in range(ROUNDS):
        races.committed(0, round_ % 2)
    assert not caplog.records, "a third of the rounds, not more"
    for _ in range(2 * ROUNDS):
        races.committed(2, 0, avoided=1)
    assert not caplog.records, "turns avoided them"
    for _ in range(2 * ROUNDS):
        races.committed(1, 2)
    [record] = caplog.records
    assert record.getMessage().startswith("orders: other processes came first in ")
    assert races.by_shard() == {0: (ROUNDS, ROUNDS // 2), 1: (2 * ROUNDS, 4 * ROUNDS), 2: (2 * ROUNDS, 2 * ROUNDS)}
