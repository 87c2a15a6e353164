"""Real processes on one queue, on the system's clock; their diaries must agree with the tables."""

from __future__ import annotations

import random
import time

import pytest

from concurrency.processes import SOAK_SECONDS, Workers, judge, most_in_flight, stopped_again_and_again


@pytest.mark.spec("RCV-15", "QUE-33")
def test_three_processes(workers: Workers) -> None:
    for name in ("a", "b", "c"):
        workers.start(name)
    for name in ("a", "b", "c"):
        workers.wait_until_ready(name)
    workers.run(at_least=1, at_most=40, until={"a": 10, "b": 10, "c": 10})
    workers.stop()
    summary = judge(workers)
    assert summary.unknown == 0
    assert summary.merges > 2
    assert min(summary.sent, summary.received, summary.changed, summary.deleted) > 5, summary


@pytest.mark.slow
@pytest.mark.spec("RCV-15", "QUE-33")
def test_a_process_that_is_killed_again_and_again(workers: Workers) -> None:
    workers.start("steady")
    until, chance = time.monotonic() + 12, random.Random(7)
    _kill_again_and_again(workers, until, chance)
    workers.stop()
    summary = judge(workers)
    assert workers.killed >= 4
    assert summary.merges > 2
    assert min(summary.sent, summary.received, summary.changed, summary.deleted) > 20, summary


@pytest.mark.spec("RCV-15", "QUE-33", "DLT-7")
@pytest.mark.parametrize("workers", [4], indirect=True)
def test_processes_that_are_stopped_again_and_again(workers: Workers) -> None:
    summary = stopped_again_and_again(workers, 4)
    assert min(summary.sent, summary.received, summary.deleted) > 5, summary


@pytest.mark.long
@pytest.mark.timeout(SOAK_SECONDS + 600)
@pytest.mark.spec("RCV-15", "QUE-33", "DLT-7")
@pytest.mark.parametrize("workers", [1, 4], indirect=True, ids=["one shard", "four shards"])
def test_ten_minutes_of_processes_that_are_stopped_and_killed(workers: Workers) -> None:
    summary = stopped_again_and_again(workers, SOAK_SECONDS, kill=0.1)
    print(summary, f"stopped {workers.stopped} times, killed {workers.killed} times")
    assert workers.stopped > SOAK_SECONDS / 4
    assert min(summary.sent, summary.received, summary.deleted) > SOAK_SECONDS, summary


LIMITED = pytest.mark.parametrize(
    "workers", [{"group_in_flight_limit": limit} for limit in (1, 3)], indirect=True, ids=["one", "three"]
)


@pytest.mark.long
@pytest.mark.timeout(SOAK_SECONDS + 600)
@LIMITED
@pytest.mark.spec("FAI-4")
def test_ten_minutes_of_processes_on_a_queue_with_a_limit_for_each_group(workers: Workers) -> None:
    summary = stopped_again_and_again(workers, SOAK_SECONDS, kill=0.1)
    print(summary, f"stopped {workers.stopped} times, killed {workers.killed} times")
    assert most_in_flight(workers) == workers.queue._runtime.attributes.group_in_flight_limit
    assert min(summary.sent, summary.received, summary.deleted) > SOAK_SECONDS / 4, summary


@pytest.mark.spark
@pytest.mark.spec("RCV-15", "QUE-33")
def test_two_processes_through_different_engines(workers: Workers) -> None:
    workers.start("spark", "spark")
    workers.wait_until_ready("spark")
    # a ledger that changes many times a second leaves no room for a MERGE of Spark, which takes a second
    workers.start("point", pause=4)
    workers.wait_until_ready("point")
    workers.run(at_least=5, at_most=120, until={"spark": 1, "point": 10})
    workers.stop()
    summary = judge(workers)
    assert min(summary.sent, summary.received, summary.deleted) > 5, summary
    for name in ("spark", "point"):
        assert workers.done(name, 1), name


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(SOAK_SECONDS + 600)
@pytest.mark.spec("RCV-15", "QUE-33")
def test_ten_minutes_through_different_engines_with_one_killed_again_and_again(workers: Workers) -> None:
    until, chance = time.monotonic() + SOAK_SECONDS, random.Random(8)
    workers.start("spark", "spark")
    workers.wait_until_ready("spark")
    workers.start("steady", pause=4)
    _kill_again_and_again(workers, until, chance, through_spark=0.1, pause=1)
    workers.stop()
    summary = judge(workers)
    print(summary, f"killed {workers.killed} times")
    assert workers.killed > SOAK_SECONDS / 60
    assert min(summary.sent, summary.received, summary.changed, summary.deleted) > SOAK_SECONDS / 60, summary


def _kill_again_and_again(
    workers: Workers, until: float, chance: random.Random, through_spark: float = 0.0, pause: float = 0
) -> None:
    life = 0
    while time.monotonic() < until or life < 5:  # beside load, lives begin late
        life += 1
        engine = "spark" if chance.random() < through_spark else "point"
        workers.start(f"mortal{life}", engine, pause)
        workers.wait_until_ready(f"mortal{life}")
        time.sleep(chance.uniform(5, 15) if engine == "spark" else chance.uniform(0.3, 3))
        workers.kill(f"mortal{life}")
