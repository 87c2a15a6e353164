"""``python -m simulation``: runs seeds in one process for a while; the last line is a tally in JSON.

Exits with 1 at the first failure, told with its seed and the smallest run that fails in the same way.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable

import attrs
import pyarrow as pa

from simulation.runs import RARE_STYLES, STYLES, Aim, Mutate, run, script
from simulation.shrinking import described, shrunk
from simulation.workloads import OF_KIND


@attrs.define
class Tally:
    """Many runs."""

    runs: int = 0
    steps: int = 0
    calls: int = 0
    kills: int = 0
    cuts: int = 0
    seconds: float = 0.0
    failed: dict[int, str] = attrs.field(factory=dict)


def many(seeds: Iterable[int], seconds: float, aim: Aim, mutate: Mutate = lambda patch: None) -> Tally:
    """Runs seeds for a while."""
    quiet()
    tally, began = Tally(), time.monotonic()
    for seed in seeds:
        if time.monotonic() - began > seconds or tally.failed:
            break
        outcome = run(script(seed, aim), mutate)
        tally.runs += 1
        tally.steps += outcome.steps
        tally.calls += outcome.calls
        tally.kills += outcome.kills
        tally.cuts += outcome.cuts
        if tally.runs % 20 == 0:
            gc.collect()
        if outcome.failure is not None:
            tally.failed[seed] = f"{outcome.what} {str(outcome.failure)[:200]}"
    tally.seconds = time.monotonic() - began
    return tally


def quiet() -> None:
    """One thread, no pauses of the collector in the midst of a run, no warnings of what is provoked."""
    pa.set_cpu_count(1)
    gc.collect()
    gc.freeze()  # to look through all that was imported takes longer than a run
    gc.disable()
    logging.getLogger("lakequeue").setLevel(logging.CRITICAL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--runs", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=10**9)
    parser.add_argument("--place", choices=["disk", "store"])
    parser.add_argument("--kind", choices=list(OF_KIND))
    parser.add_argument("--style", choices=[*STYLES, *RARE_STYLES])
    parser.add_argument("--mutation", help="take a safeguard out, by its name")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have the same order in each run
        command = [sys.executable, "-m", "simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": "0"})
    aim, mutate = Aim(given.place, given.kind, given.style), {}
    if given.mutation:
        from simulation.safeguards import MUTATIONS

        [mutation] = [each for each in MUTATIONS if each.name == given.mutation]
        mutate = {"mutate": mutation.apply}
        [found_by] = mutation.scenarios
        chosen = {name: value for name, value in attrs.asdict(aim).items() if value}
        aim = attrs.evolve(found_by, **chosen)
    tally = many(range(given.seed, given.seed + given.runs), given.seconds, aim, **mutate)
    for seed in tally.failed:  # with a mutation: it fails by that alone
        outcome = run(script(seed, aim))
        if outcome.failure is not None:
            traceback.print_exception(outcome.failure, limit=-6)
            print(described(shrunk(outcome), seed))
    print(json.dumps(attrs.asdict(tally)))
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
