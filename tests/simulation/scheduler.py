"""Simulated processes, one running at a time, and the plan that says when another one takes over.

A process hands over at each system call, request, wait and clock read: `World.step`. What may happen there besides
the call itself - another process goes on, this one dies, is stopped, the clock jumps, the power is cut, a store's
answer is lost - is an action of the plan, by process and number of its step. So a plan repeats a run exactly, and
leaving actions out makes it smaller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
from greenlet import getcurrent, greenlet

TICK = 0.002
"""Seconds that a step takes."""
START = 1_800_000_000.0
"""When a world begins, in seconds since the epoch."""
PATIENCE = 100_000
"""Steps of all processes without the end of a call that count as endless: a call has some hundred, or polls a lock
15,000 times."""

COMMITS = {"link": 8.0, "linked": 8.0, "commit": 8.0, "lock": 3.0, "trim": 5.0}
"""How much likelier a fault is at the steps around a commit: right before and after an entry of a log is linked,
at its PUT, at a lock, at the removal of a file that was in use."""
ASLEEP = 7200.0
"""Seconds that a process sleeps through what others do."""

STORAGE = -1
REQUESTS = ("request", "commit")
"""Kinds of steps that are requests to a store."""

Action = tuple[Any, ...]
Place = tuple[int, int]
"""A process, and the number of its step."""


class Killed(BaseException):
    """Unwinds a process that died; nothing that it does on its way has an effect."""


class Endless(BaseException):
    """The processes do not come to an end. The code under test cannot catch this error."""


class Plan(Protocol):
    order: list[int]
    """Processes by priority: the first of those that can run goes on when another one rests."""
    actions: Any

    def action(self, place: Place, what: str, world: World) -> Action | None: ...


@attrs.define
class Fixed:
    """Actions of an earlier run."""

    order: list[int]
    actions: Mapping[Place, Action]

    def action(self, place: Place, what: str, world: World) -> Action | None:
        return self.actions.get(place)


@attrs.define
class Faults:
    """What may go wrong, each with its chance at a step."""

    kill: float = 0.0
    stop: float = 0.0
    jump: float = 0.0
    cut: float = 0.0
    request: float = 0.0
    """That a request to a store is refused, is slow, loses its answer, or lands later."""
    asleep: float = 0.0
    """That a process is stopped for two hours at a step of the kind ``where``, once in a run."""
    where: str = "link"
    then_cut: float = 0.0
    """That the power is cut at a step while a process is stopped so."""
    flip: float = 0.0
    """That bits of files change."""
    restore: float = 0.0
    """That the root or a table goes back at a step of the first process, once it was saved, and once in a run."""
    restored: tuple[Any, ...] = ()
    """What goes back, and how long that takes: arguments of ``World.restore``."""


@attrs.define
class Drawn:
    """Actions drawn at random, and noted."""

    chance: random.Random
    order: list[int]
    faults: Faults
    switch: float | None
    """Chance of a handover at a step; None: priorities, with a few changes of them (PCT)."""
    changes: set[int] = attrs.field(factory=set)
    """Numbers of steps of the world at which the running process becomes the last one."""
    actions: dict[Place, Action] = attrs.field(factory=dict)

    def action(self, place: Place, what: str, world: World) -> Action | None:
        found = self._draw(what, world)
        if found is not None:
            self.actions[place] = found
        return found

    def _draw(self, what: str, world: World) -> Action | None:
        chance, faults = self.chance, self.faults
        draw = chance.random()
        asleep = bool(faults.asleep) and ("stop", ASLEEP) in self.actions.values()
        if what == faults.where and draw < faults.asleep and not asleep:
            return "stop", ASLEEP
        if asleep and faults.then_cut and not world.cuts and draw > 1 - faults.then_cut:
            return "cut", chance.randrange(2**31)
        if what in COMMITS:
            draw /= COMMITS[what]
        if what in REQUESTS and faults.request and draw < faults.request:
            kind = chance.choice(["refuse", "lose", "late", "slow", "slow"])
            return kind, chance.choice([0.01, 1.0, 5.0, 60.0])
        draw -= faults.request
        if 0 <= draw < faults.kill:
            return ("kill",)
        draw -= faults.kill
        if 0 <= draw < faults.stop:
            return "stop", chance.choice([0.002, 0.1, 1.0, 10.0, 40.0, 700.0, ASLEEP])
        draw -= faults.stop
        if 0 <= draw < faults.jump:
            return "jump", chance.choice([0.5, 3.0, 20.0, 100.0, 4000.0, -0.5, -20.0])
        draw -= faults.jump
        if 0 <= draw < faults.cut:
            return "cut", chance.randrange(2**31)
        draw -= faults.cut
        if 0 <= draw < faults.flip and what not in COMMITS:
            return "flip", chance.randrange(2**31)
        draw -= faults.flip
        if 0 <= draw < faults.restore and world.may_restore():
            return ("restore", *faults.restored)
        draw -= faults.restore
        if self.switch is not None:
            if not 0 <= draw < self.switch:
                return None
        elif world.steps not in self.changes:
            return None
        others = [process.number for process in world.able() if process is not world.running]
        return ("go", chance.choice(others)) if others else None


@attrs.define(eq=False)
class Process:
    """A simulated process: its greenlets share what a real one keeps in memory."""

    number: int
    memory: dict[tuple[Any, str], Any] = attrs.field(factory=dict)
    """Values of variables of modules."""
    thread: greenlet | None = None
    dead: bool = False
    """It was killed, and unwinds."""
    steps: int = 0
    wakes: float | None = None
    """When a wait ends, by the monotonic clock."""
    lives: int = 0

    @property
    def alive(self) -> bool:
        return self.thread is not None and not self.thread.dead


class World:
    """Time, processes, and who runs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(0)
        """For what the code itself draws: ids, pauses."""
        self.wall, self.monotonic = START, 1_000.0
        self.latest = START
        """The latest time that any clock has shown."""
        self.ahead: dict[int, float] = {}
        """Seconds by which the clocks of processes are, and that of the storage, by its number ``STORAGE``."""
        self.processes: list[Process] = []
        self.running: Process | None = None
        self.steps = self.last_end = 0
        self.cuts = 0
        self.kills = 0
        self.failed = 0
        """Requests to a store that failed for good."""
        self.flips = 0
        self.room: int | None = None
        """Files that a disk has room for; None: any number."""
        self.later: list[tuple[float, Callable[[], None]]] = []
        """What happens by itself at an instant of the monotonic clock."""
        self.on_kill: Callable[[Process], None] = lambda process: None
        self.on_cut: Callable[[int], None] = lambda seed: None
        self.on_flip: Callable[[int], None] = lambda seed: None
        self.save: Callable[[], None] = lambda: None
        self.restore: Callable[[int | None, float], None] = lambda table, seconds: None
        """Makes the root, or the table of this number, what it was at ``save``; takes some seconds."""
        self.may_restore: Callable[[], bool] = lambda: False
        self.on_link: Callable[[Any], None] = lambda folder: None
        self.table: Any = None
        """Log of the delivery table, if queues of the world have one."""
        self._hub: greenlet | None = None
        self.failure: BaseException | None = None

    # --- time

    def time(self) -> float:
        self.step("clock")
        return self.now()

    def now(self) -> float:
        """The wall clock of the running process, without a step."""
        now = self.wall + (self.ahead.get(self.running.number, 0.0) if self.running else 0.0)
        self.latest = max(self.latest, now)
        return now

    @property
    def stamp(self) -> float:
        """The clock of the storage, which stamps files."""
        return self.wall + self.ahead.get(STORAGE, 0.0)

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds
        while self.later and self.later[0][0] <= self.monotonic:
            self.later.pop(0)[1]()

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        self.later.append((self.monotonic + seconds, call))
        self.later.sort(key=lambda each: each[0])

    def sleep(self, seconds: float) -> None:
        process = self.running
        if process is None:
            self.pass_time(seconds)
            return
        self._check(process)
        self.steps += 1
        process.wakes = self.monotonic + max(0.0, seconds)
        self._rest(process)

    # --- handing over

    def step(self, what: str = "") -> Action | None:
        """Called before each access to what processes share; returns a fault of a request, if there is one."""
        process = self.running
        if process is not None:
            self._check(process)
        self.steps += 1
        if self.steps > self.last_end + PATIENCE:
            raise Endless(f"no end after {self.steps} steps")
        if process is None:
            return None
        process.steps += 1
        self.pass_time(TICK)
        action = self.plan.action((process.number, process.steps), what, self)
        if action is None:
            return None
        kind = action[0]
        if kind == "go":
            other = self.processes[action[1]]
            if other is not process and other in self.able():
                self._switch(process, other)
        elif kind == "kill":
            self._kill(process)
            raise Killed
        elif kind == "cut":
            self.cuts += 1
            for each in self.processes:
                self._kill(each)
                each.wakes = None
            self.on_cut(action[1])
            raise Killed
        elif kind == "stop":
            process.wakes = self.monotonic + action[1]
            self._rest(process)
        elif kind == "jump":
            self.wall += action[1]
        elif kind == "restore":
            self.restore(*action[1:])
        elif kind == "flip":
            self.flips += 1
            self.on_flip(action[1])
        elif what in REQUESTS:
            return action
        return None

    def end_others(self) -> None:
        """Kills all processes but the running one; they begin again."""
        for each in self.processes:
            if each is not self.running:
                self._kill(each)
                each.wakes = None

    def able(self) -> list[Process]:
        """Processes that can go on now."""
        return [each for each in self.processes if self._can(each)]

    def _can(self, process: Process) -> bool:
        return process.alive and (process.wakes is None or process.wakes <= self.monotonic + 1e-9)

    def _kill(self, process: Process) -> None:
        if process.alive:
            self.kills += 1
            process.dead = True
            self.on_kill(process)

    def _check(self, process: Process) -> None:
        if process.dead:
            raise Killed

    def _rest(self, process: Process) -> None:
        """Lets others go on until the process may."""
        other = self._next()
        if other is process:
            process.wakes = None
            return
        self._switch(process, other)

    def _next(self) -> Process:
        for _ in range(2):
            for number in self.plan.order:
                if self._can(self.processes[number]):
                    return self.processes[number]
            waiting = [each.wakes for each in self.processes if each.alive and each.wakes]
            self.pass_time(max(0.0, min(waiting) - self.monotonic))
        raise AssertionError("somebody can run")

    def _switch(self, process: Process, other: Process) -> None:
        self._enter(process, other)
        assert other.thread is not None
        other.thread.switch()
        # here again
        self._check(process)

    def _enter(self, process: Process | None, other: Process) -> None:
        other.wakes = None
        if process is other:
            return
        if process is not None:
            for module, name in process.memory:
                process.memory[module, name] = getattr(module, name)
        for (module, name), value in other.memory.items():
            setattr(module, name, value)
        self.running = other

    def run(
        self, bodies: list[Callable[[Process], None]], memory: Callable[[], dict[tuple[Any, str], Any]]
    ) -> None:
        """Runs a body for each process to its end; a process that died starts it again."""
        self._hub = getcurrent()

        def life(process: Process, body: Callable[[Process], None]) -> None:
            while True:
                process.memory = memory()
                for (module, name), value in process.memory.items():
                    setattr(module, name, value)
                try:
                    body(process)
                    return
                except Killed:
                    if self.failure is not None:
                        return
                    process.dead = False
                    process.lives += 1
                except BaseException as error:
                    self.failure = self.failure or error
                    return

        for number, body in enumerate(bodies):
            process = Process(number, memory())
            process.thread = greenlet(lambda process=process, body=body: life(process, body))
            self.processes.append(process)
        while self.failure is None and any(each.alive for each in self.processes):
            following = self._next()
            self._enter(self.running, following)
            assert following.thread is not None
            following.thread.switch()
        self.running = None
        for each in self.processes:  # after a failure
            if each.thread:
                each.dead = True
                self.running = each
                each.thread.throw(Abandoned)
        self.running = None


class Abandoned(BaseException):
    """Ends what is left of a run that failed."""
