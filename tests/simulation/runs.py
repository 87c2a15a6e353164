"""Runs of the simulation, each decided by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from lakequeue import LakeQueue, errors
from lakequeue.storage import layout
from lakequeue.storage.snapshot import NOT_FOLLOWING
from simulation import tables, workloads
from simulation.disk import ROOT, Disk
from simulation.installed import client, installed, memory
from simulation.object_store import URI, Object, ObjectStore
from simulation.oracle import Broken, judge, judge_deliveries
from simulation.scheduler import STORAGE, Drawn, Endless, Faults, Fixed, Place, Plan, World
from simulation.workloads import Client, History, Setting, Verb

PLACES = {"disk": f"{ROOT}/root", "store": URI}
PROCESSES = 3
STYLES = ["calm", "kills", "stops", "asleep", "jumps", "cuts", "requests", "all", "unsynced", "reading", "trims"]
"""What goes wrong. ``asleep``: a process sleeps right before a commit; ``reading``: before it reads a file;
``unsynced``: between a link and its sync, and the power is cut; ``trims``: kills, stops, short logs."""
RARE_STYLES = {"restores": 0.05, "clocks": 0.05, "inodes": 0.03, "bits": 0.01, "tables": 0.05}
"""What else goes wrong, with the shares of such runs: the root goes back to an earlier state while a process keeps
running, often in the middle of a call; the clock of a process, or of the storage, is wrong; a disk is out of
inodes; bits of files change; one table goes back so."""
HOUR, DAY = 3600.0, 86_400.0
WRONG = [HOUR, -HOUR, 10 * DAY, -10 * DAY, 365 * DAY, -365 * DAY]
"""Seconds by which a clock is wrong."""
Mutate = Callable[[pytest.MonkeyPatch], object]
_starts: dict[tuple[Setting, bool], Disk | dict[str, Object]] = {}


@attrs.frozen
class Script:
    """All that decides a run."""

    setting: Setting
    verbs: tuple[tuple[Verb, ...], ...]
    plan: Callable[[], Plan] = attrs.field(repr=False)
    actions: dict[Place, Any] | None = None
    order: tuple[int, ...] = ()
    ahead: tuple[tuple[int, float], ...] = ()
    """Seconds by which clocks are wrong, by process or ``STORAGE``."""
    inodes: int | None = None
    """Further files that a disk has room for."""
    encoded: bool = False
    """Whether files are Parquet."""


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


@attrs.frozen
class Aim:
    """What all runs have in common; None: drawn."""

    place: str | None = None
    kind: str | None = None
    style: str | None = None
    verbs: tuple[Mapping[str, float], ...] = attrs.field(default=(), hash=False)
    """Shares of the verbs of each process, the last of those that follow, too."""
    shards: int | None = None
    length: int | None = None
    settled: bool = False
    """Whether most messages are deleted behind some that are not, and compacted; so are some of the other runs."""


def script(seed: int, aim: Aim = Aim()) -> Script:
    """The script of a seed."""
    chance = random.Random(seed)
    kinds = [*["standard"] * 3, *["fifo"] * 2, *["letters"] * 2, "dropped", "history", "groups"]
    drawn_place, drawn_kind = chance.choice(["disk", "store"]), chance.choice(kinds)
    place, kind = aim.place or drawn_place, aim.kind or drawn_kind
    length = aim.length or chance.choice([3, 4, 5, 10])
    style, apart = aim.style or chance.choice(STYLES), random.Random(f"{seed} apart")
    if aim.style is None and not aim.verbs:
        style = _rare(apart.random(), place) or style
    if kind == "delivery" and style == "bits":  # a repair that drops marks lets messages come again (TAB-11)
        style = "all"
    restores = style in ("restores", "tables")
    kind = "standard" if restores else kind
    asleep = style in ("asleep", "reading", "unsynced")
    # what is stopped or cut off matters where logs are trimmed meanwhile
    lasting = asleep or style in ("stops", "cuts", "all")
    checkpoints = chance.choice([4, 4, 100] if lasting else [4, 100, 100, 100])
    shards = aim.shards or chance.choice([1, 1, 1, 2, 4])
    setting = Setting(place, kind, shards, checkpoints, chance.choice([0, 3, 3]), chance.random() < 0.5)
    if style in ("asleep", "reading", "trims"):
        setting, length = attrs.evolve(setting, shards=1, checkpoints=4), 10
    busy = style == "asleep" or chance.random() < 0.4
    settled = aim.settled or (aim == attrs.evolve(Aim(), place=aim.place) and apart.random() < 0.1)
    if settled:
        length, setting = 10, attrs.evolve(setting, empties=True)
    common = workloads.SETTLED if settled else workloads.CORE if busy and not restores else workloads.RARE
    common = {name: share for name, share in common.items() if name not in workloads.NOT_RESTORED or not restores}
    shares = aim.verbs or (common | workloads.OF_KIND[kind],)
    verbs = tuple(
        tuple(workloads.drawn(chance, length, number, shares[min(number, len(shares) - 1)]))
        for number in range(PROCESSES)
    )
    inside, back = False, ()
    if restores:
        first = list(verbs[0])
        first.insert(saved := apart.randrange(len(first)), ("save",))
        restored = apart.randint(saved + 1, len(first))
        inside = apart.random() < 0.5
        # as long as who has just looked does not look again; inside a call it may take no time
        seconds = 2.0 if place == "disk" else 0.0 if inside and apart.random() < 0.3 else 61.0
        back = (apart.randrange(1 + 2 * setting.shards) if style == "tables" else None, seconds)
        if not inside:
            first.insert(restored, ("restore", *back))
        verbs = (tuple(first), *verbs[1:])
    order = list(range(PROCESSES))
    chance.shuffle(order)
    every, disk = style == "all", place == "disk"
    faults = Faults(
        kill=0.003 * (style in ("kills", "trims") or every),
        stop=0.006 * (style in ("stops", "trims") or every),
        jump=0.004 * (style == "jumps" or every),
        cut=0.002 * ((style == "cuts" or every) and disk),
        asleep=(0.02 if style == "reading" else 0.15) * asleep,
        where={"unsynced": "linked", "reading": "open" if disk else "request"}.get(
            style, "link" if disk else "commit"
        ),
        then_cut=0.02 * (style == "unsynced"),
        request=0.02 * ((style == "requests" or every) and not disk),
        flip=0.003 * (style == "bits"),
        restore=(0.01 if disk else 0.03) * inside,
        restored=back,
    )
    steps = PROCESSES * length * workloads.STEPS // (1 if disk else 3)
    switch: float | None = chance.choice([0.3, 0.1, 0.03, 0.01])
    if asleep:  # most of the rest goes on undisturbed
        switch = 0.003
    changes: set[int] = set()
    if not asleep and chance.random() < 0.4:
        switch, changes = None, {chance.randrange(1, steps) for _ in range(chance.randint(1, 4))}
    drawing = chance.getrandbits(64)
    return Script(
        setting,
        verbs,
        lambda: Drawn(random.Random(drawing), order, faults, switch, changes),
        ahead=((apart.randrange(STORAGE, PROCESSES), apart.choice(WRONG)),) if style == "clocks" else (),
        inodes=apart.randrange(60) if style == "inodes" else None,
        encoded=style == "bits",
    )


def _rare(draw: float, place: str) -> str | None:
    for style, share in RARE_STYLES.items():
        if draw < share:
            return style if place == "disk" or style != "inodes" else None
        draw -= share
    return None


RETENTION = layout.Retention(file_minutes=1, remote_file_hours=4, remote_log_minutes=65)


def _knobs(patch: pytest.MonkeyPatch, setting: Setting) -> None:
    """Makes segments, logs and their ends small enough for a few verbs."""
    for properties in (layout.MESSAGES_PROPERTIES, layout.RECEIPTS_PROPERTIES, layout.QUEUES_PROPERTIES):
        patch.setitem(properties, "delta.checkpointInterval", str(setting.checkpoints))
    storage = "lakequeue.storage"
    patch.setattr(f"{storage}.engines.commit.TRIM_EVERY", setting.checkpoints)
    patch.setattr(f"{storage}.engines.log_trimming.LOG_ENTRIES", 3)
    patch.setattr(f"{storage}.engines.log_trimming.READING", 2.0 if setting.checkpoints > 4 else 0.3)
    if not setting.turns:
        patch.setattr(f"{storage}.engines.turns._DiskTurns._take", lambda *_, **__: False)
        # of those that waited, the sends are staged
        patch.setattr(f"{storage}.engines.turns._DiskTurns.waited", setting.prefilled == 0)
    if not setting.turns and setting.place == "store":  # all calls are requests that any process may commit
        patch.setattr("lakequeue.runtime.ledger_requests.LedgerRequests.wanted", True)
    for table in ("MESSAGES", "RECEIPTS", "QUEUES"):
        patch.setattr(layout, f"{table}_RETENTION", RETENTION)
    patch.setattr("lakequeue.operations.compact.FOLDERS_KEPT", 1)
    patch.setattr(f"{storage}.messages.append.SEGMENT_COMMITS", 2)
    patch.setattr(f"{storage}.messages.merge_segments.TIER_SEGMENTS", 3)
    if setting.empties:
        patch.setattr(f"{storage}.messages.merge_segments.CUT_BYTES", 0)


def _start(setting: Setting, encoded: bool) -> tuple[Disk | None, dict[str, Object] | None]:
    """A copy of the root at the beginning."""
    if (setting, encoded) not in _starts:
        world = World(Fixed([0], {}))
        disk = Disk() if setting.place == "disk" else None
        with pytest.MonkeyPatch.context() as patch, installed(world, disk, {}) as place:
            _knobs(patch, setting)
            workloads.prepare(client(world, PLACES[setting.place]), setting)
            _starts[setting, encoded] = place if disk is not None else dict(place.objects)
            for rows in list(tables.ROWS):
                _KEPT.add(rows)
    start = _starts[setting, encoded]
    return (start.copy(), None) if isinstance(start, Disk) else (None, start)


_KEPT: set[bytes] = set()


def run(script: Script, mutate: Mutate = lambda patch: None) -> Outcome:
    """Runs a script and judges it; ``mutate`` takes a safeguard out of the processes, not of the check."""
    setting = script.setting
    tables.ENCODED[:] = [True] * script.encoded
    disk, objects = _start(setting, script.encoded)
    plan = script.plan()
    world, history = World(plan), History(setting, wrong=dict(script.ahead))
    if disk is not None and script.inodes is not None:
        disk.room = world.room = sum(1 for _ in disk.nodes()) + script.inodes
    world.chance.seed(1)
    failure: BaseException | None = None
    with pytest.MonkeyPatch.context() as patch, installed(world, disk, objects) as where:
        _knobs(patch, setting)
        world.ahead.update(script.ahead)
        _restorable(world, where, history)

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
            world.ahead.pop(STORAGE, None)
            _check_instants(script, client(world, PLACES[setting.place]))
            if disk is not None:
                disk.room = None
            world.pass_time(50_000)
            for (module, name), value in memory().items():
                patch.setattr(module, name, value)
            last = client(world, PLACES[setting.place])
            torn = history.tears and _mended(last, history)
            lost = _repaired(last, history) if world.flips else None
            _check(last, world)
            with pytest.MonkeyPatch.context() as without:
                mutate(without)
                drained = workloads.drain(client(world, PLACES[setting.place]), setting, world)
            went_back = any(action[0] == "jump" and action[1] < 0 for action in _actions(plan).values())
            if setting.kind == "delivery":
                judge_deliveries(history, drained, world.table.rows())
            else:
                judge(history, drained, went_back=went_back or bool(script.ahead), lost=lost, torn=torn)
            _check(last, world)
            # what a storage stamped in the future stays until then
            if history.erased and last.list_queues() and history.wrong.get(STORAGE, 0) <= 0:
                world.pass_time(200_000)
                last.compact()
                world.pass_time(200_000)
                last.compact()
                _erased(history.erased, where)
        except (Exception, Endless) as error:
            failure = error
    for rows in [rows for rows in tables.ROWS if rows not in _KEPT]:
        del tables.ROWS[rows]
    tables.PARSED.clear()
    return Outcome(
        script, failure, _actions(plan), world.steps, len(history.calls), world.kills, world.cuts, history
    )


def _restorable(world: World, where: Disk | ObjectStore, history: History) -> None:
    saved: list[Any] = []
    on_disk = isinstance(where, Disk)

    def save() -> None:
        saved[:] = [where.copy()]
        history.saved = world.steps

    def may_restore() -> bool:
        first = world.running is not None and world.running.number == 0
        return first and history.saved is not None and history.restored is None

    def restore(table: int | None, seconds: float) -> None:
        if history.saved is None:  # a shrunken run may have lost it
            return
        history.restored = world.steps
        world.end_others()
        world.later.clear()  # no request of theirs is under way
        if table is not None:
            tables = sorted(saved[0].tables())
            history.table = tables[table % len(tables)]
        history.tears = table is not None or not on_disk
        where.go_back(saved[0], history.table)
        world.pass_time(seconds)
        history.noticed = 0.0 if seconds else world.wall + 61.0

    def linked(folder: Any) -> None:
        if world.running is None or world.running.number != 0:
            return
        if not history.table or where.node(f"{ROOT}{history.table}/_delta_log") is folder:
            history.linked.append(world.steps)

    world.save, world.restore, world.may_restore, world.on_link = save, restore, may_restore, linked


def _repaired(entry: LakeQueue, history: History) -> int | None:
    """Mends what changed bits have damaged; returns how many messages were told as lost, None if all was sound."""
    reports = entry.repair(apply=True, force=True)
    history.lost += sum(last - first + 1 for each in reports for first, last in each.lost)
    repaired = reports or any(call.verb[0] == "repair" and call.value for call in history.calls)
    return history.lost if repaired else None


def _mended(entry: LakeQueue, history: History) -> bool:
    """Mends what a restore has torn; returns whether there was anything.

    On a store, an entry that was on its way may name files that went away, and the next commits of its process
    remove it, also that of a request which was refused. What it had merged is told as lost.
    """
    found = [each for each in entry.check() if each.damage]
    calls = [call for call in history.calls if call.process == 0]
    posts = not history.setting.turns
    ends = [call.ended for call in calls if call.outcome == "done" or posts and hasattr(errors, call.error)]
    mends = max(ends, default=0) if history.setting.place == "store" else 0
    # on a store, a call that meets a left-over entry says so, and removes it
    known = NOT_FOLLOWING if history.setting.place == "store" else None
    left = [error for step, error in history.damaged if step > mends and not (known and known in error)]
    if left and not found:
        raise Broken(f"7: {left[0]}, and the check finds nothing")
    if found:
        reports = entry.repair(apply=True, force=True)
        if history.setting.place == "store":
            history.lost = sum(last - first + 1 for each in reports for first, last in each.lost)
    return bool(found)


def _check(entry: LakeQueue, world: World) -> None:
    """The verb finds nothing.

    A power cut may leave a torn checkpoint, which replaces nothing (DUR-3), and of entries that were being trimmed
    some, below a checkpoint that has what they said. So may a PUT to a store that took longer than entries stay,
    by the clock: that was told as unknown.
    """
    passed = ("stop", "jump", "late", "slow")
    away = sum(action[1] for action in world.plan.actions.values() if action[0] in passed)
    slept = away >= 60 * RETENTION.remote_log_minutes
    for finding in entry.check():
        orphan = "a checkpoint has its content" in finding.repair
        harmless = (world.cuts or slept) and orphan or world.cuts and "checkpoint" in (finding.file or "")
        if finding.damage and not harmless:
            raise Broken(f"check: {finding}")


def _check_instants(script: Script, entry: LakeQueue) -> None:
    """Nothing stores an instant of a clock that is days ahead, or a repair would set it back."""
    if script.ahead and all(abs(by) > HOUR for _, by in script.ahead) and (found := entry.repair(clock=True)):
        raise Broken(f"8: instants yet to come are stored: {found}")


def _erased(bodies: set[str], where: Disk | ObjectStore) -> None:
    for data in where.contents():
        rows = tables.ROWS.get(data)
        if rows is not None and "body" in rows.column_names and not bodies.isdisjoint(rows["body"].to_pylist()):
            raise Broken(f"9: a file still says what was erased: {bodies & set(rows['body'].to_pylist())}")


def _actions(plan: Any) -> dict[Place, Any]:
    return dict(plan.actions)
