"""The smallest run that fails in the same way as another one, and how it is told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import attrs

from simulation.runs import Outcome, Script, run
from simulation.scheduler import Fixed, Place
from simulation.workloads import Verb


def fixed(script: Script, verbs: Sequence[Sequence[Verb]], actions: dict[Place, Any]) -> Script:
    """A script with the given verbs and actions."""
    order = list(script.plan().order)
    return attrs.evolve(
        script,
        verbs=tuple(map(tuple, verbs)),
        plan=lambda: Fixed(order, actions),
        actions=actions,
        order=tuple(order),
    )


def shrunk(outcome: Outcome, seconds: float = 60.0) -> Outcome:
    """The smallest run found that fails in the same way: fewer verbs, then fewer actions."""
    best = run(fixed(outcome.script, outcome.script.verbs, outcome.actions))
    if best.failure is None:
        return outcome
    until = time.monotonic() + seconds

    def better(verbs: Sequence[Sequence[Verb]], actions: dict[Place, Any]) -> bool:
        nonlocal best
        if time.monotonic() > until:
            return False
        tried = run(fixed(outcome.script, verbs, actions))
        if tried.failure is None or tried.what != outcome.what:
            return False
        best = tried
        return True

    changed = True
    while changed and time.monotonic() < until:
        changed = False
        for process in range(len(best.script.verbs)):
            for number in reversed(range(len(best.script.verbs[process]))):
                verbs = [list(each) for each in best.script.verbs]
                del verbs[process][number]
                changed |= better(verbs, best.script.actions or {})
        size = max(1, len(best.script.actions or {}) // 2)
        while size:
            places = sorted(best.script.actions or {})
            for start in range(0, len(places), size):
                gone = set(places[start : start + size])
                actions = {place: each for place, each in (best.script.actions or {}).items() if place not in gone}
                if gone & set(best.script.actions or {}):
                    changed |= better(best.script.verbs, actions)
            size //= 2
    return best


def described(outcome: Outcome, seed: int | None = None) -> str:
    """A failure in words that another developer can repeat."""
    script = outcome.script
    lines = [f"seed {seed}: {outcome.failure}", f"  {script.setting}"]
    lines.append(f"  clocks ahead {dict(script.ahead)}, inodes {script.inodes}, encoded {script.encoded}")
    for number, verbs in enumerate(outcome.script.verbs):
        lines.append(f"  process {number}: {list(verbs)}")
    lines.append(f"  order {list(outcome.script.order)}, actions by (process, step): {outcome.script.actions}")
    lines += [
        f"    {call.began:>5} process {call.process} {call.verb} -> {call.outcome} {call.error[:160]}"
        + (f" got {[message.body for message in call.got]}" if call.got else "")
        + (f" of {[message.body for message in call.target]}" if call.target else "")
        for call in outcome.history.calls
    ]
    return "\n".join(lines)
