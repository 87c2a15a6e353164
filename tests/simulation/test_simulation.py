"""Every interleaving: the real code in a simulated world, under schedules drawn from seeds.

``pytest tests/simulation --seed N`` repeats one run; docs/internals/testing.md says what a run proves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation.safeguards import MUTATIONS, NOT_FOUND
from unseen import first_seed

TESTS = Path(__file__).parents[1]
FIRST = 70
"""Runs for each place, so many that all safeguards are missed within them that random verbs miss at all; any test
command makes the first half."""
SECONDS = float(os.environ.get("LAKEQUEUE_SIMULATION_SECONDS", "45"))
"""Seconds for each place in the slow form."""
SOONEST = {"no check of the snapshot", "overwrite log entries", "an acknowledged entry is not synced"}
"""Safeguards that any test command takes out; the slow form takes all."""
FOUND = {
    "take any log for the same": 1759,
    "take any ledger for one of the log": 207,
    "logs are trimmed newest first": 3009,
    "take a request that lands late for refused": 170,
    "leave deletions unfinished": 45,
    "a draft is written once": 86,
    "entries of others are not synced": 27,
    "take a full disk for done": 20,
    "keep the machine after a failure": 17,
    "commit without a lock": 13,
}
"""Seeds shortly before those that noticed a missing safeguard last: to search from 0 takes up to two minutes."""
RUNS = int(os.environ.get("LAKEQUEUE_SIMULATION_RUNS", "1000000"))
"""Runs for each place in the long form."""


def _simulate(*arguments: object, timeout: float, fails: bool = False) -> dict[str, Any]:
    """The tally of runs in a process of their own: sets have the same order in each.

    It alone is printed, unless a run fails without a mutation.
    """
    done = subprocess.run(
        [sys.executable, "-m", "simulation", *map(str, arguments)],
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert (done.returncode, done.stdout.count("\n")) == (fails, 1), f"{done.stdout}\n{done.stderr}"
    tally: dict[str, Any] = json.loads(done.stdout)
    return tally


@pytest.mark.spec("DUR-1", "RCV-4", "DDP-10", "FIF-1")
@pytest.mark.parametrize("place", ["disk", "store"])
@pytest.mark.parametrize("first", [0, pytest.param(FIRST // 2, marks=pytest.mark.slow)])
def test_processes_keep_the_guarantees_under_any_schedule(
    place: str, first: int, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    if seed is not None:
        _simulate("--seed", seed, "--runs", 1, "--place", place, timeout=280)
        return
    tally = _simulate("--seed", first, "--runs", FIRST // 2, "--place", place, timeout=280)
    assert tally["runs"] == FIRST // 2 and not tally["failed"]


@pytest.mark.spec("JOB-1", "JOB-3", "JOB-6", "JOB-11", "JOB-12", "INF-11", "QUE-25")
@pytest.mark.parametrize("kind", ["jobs", "full"])
def test_queues_with_limits_keep_their_rules_under_any_schedule(kind: str) -> None:
    tally = _simulate("--runs", FIRST // 4, "--kind", kind, timeout=280)
    assert tally["runs"] == FIRST // 4 and not tally["failed"]


@pytest.mark.spec("TAB-2", "TAB-5", "TAB-6", "TAB-24", "TAB-25", "TAB-26", "TAB-27", "TAB-28")
@pytest.mark.parametrize("runs", [FIRST // 10, pytest.param(1_000, marks=pytest.mark.long)])
@pytest.mark.timeout(0)
def test_deliveries_store_each_message_once_under_any_schedule(runs: int) -> None:
    tally = _simulate("--runs", runs, "--kind", "delivery", timeout=280 + 10 * runs)
    assert tally["runs"] == runs and not tally["failed"]


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "aim",
    [
        pytest.param(each, id=each[1])
        for each in (
            ("--place", "disk"),
            ("--place", "store"),
            ("--kind", "jobs"),
            ("--kind", "full"),
            ("--kind", "delivery"),
        )
    ],
)
def test_processes_keep_the_guarantees_under_schedules_that_nobody_has_seen(aim: tuple[str, str]) -> None:
    _simulate("--seed", first_seed(), "--seconds", SECONDS, *aim, timeout=1_100)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("place", ["disk", "store"])
def test_a_million_schedules(place: str) -> None:
    tally = _simulate("--runs", RUNS, "--place", place, timeout=10**6)
    assert tally["runs"] == RUNS


def test_a_run_is_repeated_exactly_by_its_seed() -> None:
    tallies = [_simulate("--seed", 40, "--runs", 5, timeout=120) for _ in range(2)]
    for tally in tallies:
        del tally["seconds"]
    assert tallies[0] == tallies[1]


@pytest.mark.parametrize(
    "safeguard",
    [
        pytest.param(each.name, marks=[*each.specs(), *([] if each.name in SOONEST else [pytest.mark.slow])])
        for each in MUTATIONS
        if each.name not in NOT_FOUND
    ],
)
def test_a_safeguard_that_is_missing_is_noticed(safeguard: str) -> None:
    first = FOUND.get(safeguard, 0)
    _simulate("--mutation", safeguard, "--seed", first, "--runs", 500, timeout=280, fails=True)
