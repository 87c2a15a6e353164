"""Runs of the simulation, each decided by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from lakequeue import LakeQueue
from lakequeue.storage import layout
from simulation import tables, workloads
from simulation.disk import ROOT, Disk
from simulation.installed import client, installed, memory
from simulation.object_store import URI, Object
from simulation.oracle import Broken, judge
from simulation.scheduler import Drawn, Faults, Fixed, Place, Plan, World
from simulation.workloads import Client, History, Setting, Verb

PLACES = {"disk": f"{ROOT}/root", "store": URI}
PROCESSES = 3
Mutate = Callable[[pytest.MonkeyPatch], object]
_starts: dict[Setting, Disk | dict[str, Object]] = {}


@attrs.frozen
class Script:
    """All that decides a run."""

    setting: Setting
    verbs: tuple[tuple[Verb, ...], ...]
    plan: Callable[[], Plan] = attrs.field(repr=False)
    actions: dict[Place, Any] | None = None
    order: tuple[int, ...] = ()


@attrs.define
class Outcome:
    """What a run was."""

    script: Script
    failure: BaseException | None
    actions: dict[Place, Any]
    steps: int
    calls: int
    kills: int
    cuts: int
    history: History

    @property
    def what(self) -> str:
        """The kind of a failure: runs with equal ones fail in the same way."""
        text = str(self.failure)
        return text[:2] if isinstance(self.failure, Broken) else type(self.failure).__name__


def script(seed: int, place: str | None = None, kind: str | None = None, length: int | None = None) -> Script:
    """The script of a seed."""
    chance = random.Random(seed)
    kinds = ["standard", "standard", "standard", "fifo", "fifo", "letters", "letters", "dropped"]
    drawn_place, drawn_kind = chance.choice(["disk", "store"]), chance.choice(kinds)
    place, kind, length = place or drawn_place, kind or drawn_kind, length or chance.choice([3, 4, 5, 10])
    style = chance.choice(["calm", "kills", "stops", "asleep", "jumps", "cuts", "requests", "all"])
    # what is stopped or cut off matters where logs are trimmed meanwhile
    lasting = style in ("stops", "asleep", "cuts", "all")
    checkpoints = chance.choice([4, 4, 100] if lasting else [4, 100, 100, 100])
    setting = Setting(place, kind, chance.choice([1, 1, 1, 2, 4]), checkpoints, chance.choice([0, 3, 3]))
    if style == "asleep":
        setting, length = attrs.evolve(setting, shards=1, checkpoints=4), 10
    busy = style == "asleep" or chance.random() < 0.4
    verbs = tuple(tuple(workloads.drawn(chance, setting, length, number, busy)) for number in range(PROCESSES))
    order = list(range(PROCESSES))
    chance.shuffle(order)
    every = style == "all"
    asleep = style == "asleep" and place == "disk"
    faults = Faults(
        kill=0.003 * (style == "kills" or every),
        stop=0.006 * (style == "stops" or every),
        jump=0.004 * (style == "jumps" or every),
        cut=0.002 * ((style == "cuts" or every) and place == "disk"),
        asleep=0.15 * asleep,
        request=0.02 * ((style == "requests" or every) and place == "store"),
    )
    steps = PROCESSES * length * workloads.STEPS // (1 if place == "disk" else 3)
    switch: float | None = chance.choice([0.3, 0.1, 0.03, 0.01])
    if asleep:  # most of the rest goes on undisturbed
        switch = 0.003
    changes: set[int] = set()
    if not asleep and chance.random() < 0.4:
        switch, changes = None, {chance.randrange(1, steps) for _ in range(chance.randint(1, 4))}
    drawing = chance.getrandbits(64)
    return Script(setting, verbs, lambda: Drawn(random.Random(drawing), order, faults, switch, changes))


def _knobs(patch: pytest.MonkeyPatch, setting: Setting) -> None:
    """Makes segments, logs and their ends small enough for a few verbs."""
    for properties in (layout.MESSAGES_PROPERTIES, layout.RECEIPTS_PROPERTIES, layout.QUEUES_PROPERTIES):
        patch.setitem(properties, "delta.checkpointInterval", str(setting.checkpoints))
    storage = "lakequeue.storage"
    patch.setattr(f"{storage}.engines.commit.TRIM_EVERY", setting.checkpoints)
    patch.setattr(f"{storage}.engines.log_trimming.LOG_ENTRIES", 3)
    patch.setattr(f"{storage}.engines.log_trimming.READING", 2.0)
    patch.setattr(f"{storage}.messages.append.SEGMENT_COMMITS", 2)
    patch.setattr(f"{storage}.messages.merge_segments.TIER_SEGMENTS", 3)


def _start(setting: Setting) -> tuple[Disk | None, dict[str, Object] | None]:
    """A copy of the root at the beginning."""
    if setting not in _starts:
        world = World(Fixed([0], {}))
        disk = Disk() if setting.place == "disk" else None
        with pytest.MonkeyPatch.context() as patch, installed(world, disk, {}) as place:
            _knobs(patch, setting)
            workloads.prepare(client(world, PLACES[setting.place]), setting)
            _starts[setting] = place if disk is not None else dict(place.objects)
            for rows in list(tables.ROWS):
                _KEPT.add(rows)
    start = _starts[setting]
    return (start.copy(), None) if isinstance(start, Disk) else (None, start)


_KEPT: set[bytes] = set()


def run(script: Script, mutate: Mutate = lambda patch: None) -> Outcome:
    """Runs a script and judges it; ``mutate`` takes a safeguard out of the processes, not of the check."""
    setting = script.setting
    disk, objects = _start(setting)
    plan = script.plan()
    world, history = World(plan), History(setting)
    world.chance.seed(1)
    failure: BaseException | None = None
    with pytest.MonkeyPatch.context() as patch, installed(world, disk, objects) as _:
        _knobs(patch, setting)

        def body(number: int) -> Callable[[Any], None]:
            left = list(script.verbs[number])

            def live(process: Any) -> None:
                actor = Client(world, history, client(world, PLACES[setting.place]), number)
                while left:
                    actor.perform(left.pop(0))

            return live

        try:
            with pytest.MonkeyPatch.context() as without:
                mutate(without)
                world.run([body(number) for number in range(len(script.verbs))], memory)
            if world.failure is not None:
                raise world.failure
            world.pass_time(50_000)
            for (module, name), value in memory().items():
                patch.setattr(module, name, value)
            last = client(world, PLACES[setting.place])
            _check(last, world)
            with pytest.MonkeyPatch.context() as without:
                mutate(without)
                drained = workloads.drain(client(world, PLACES[setting.place]), setting, world)
            went_back = any(action[0] == "jump" and action[1] < 0 for action in _actions(plan).values())
            judge(history, drained, went_back=went_back)
            _check(last, world)
        except Exception as error:
            failure = error
    for rows in [rows for rows in tables.ROWS if rows not in _KEPT]:
        del tables.ROWS[rows]
    tables.PARSED.clear()
    return Outcome(
        script, failure, _actions(plan), world.steps, len(history.calls), world.kills, world.cuts, history
    )


def _check(entry: LakeQueue, world: World) -> None:
    """The verb finds nothing.

    A power cut may leave a torn checkpoint, which replaces nothing (DUR-3), and of entries that were being trimmed
    some, below a checkpoint that has what they said.
    """
    for finding in entry.check():
        harmless = "checkpoint" in (finding.file or "") or "a checkpoint has what it said" in finding.repair
        if finding.damage and not (world.cuts and harmless):
            raise Broken(f"check: {finding}")


def _actions(plan: Any) -> dict[Place, Any]:
    return dict(plan.actions)
