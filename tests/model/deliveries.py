"""Explores the interleavings of holders and deciders of one shard, over the real protocol of deliveries.

The table and the ledger are in memory; the code between them is `operations.delivery_protocol`. Each holder and
each decider runs in a greenlet and hands over before each step: a read of the table, each of the two halves of a
commit, a change of the ledger. The explorer takes every order of steps and of what may happen besides: a receipt
ends, another program appends, the log is cleaned up to its checkpoint, the power is cut, an answer is lost. After
each step no message may be lost, be in the table twice, or be in the table and in the queue. A process that is
killed is one that takes no further step, so kills need no steps of their own.

Two runs are in the same state if tables and ledger are equal and each process has seen the same: the code is
deterministic. So each state is continued once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import attrs
import pyarrow as pa
from greenlet import getcurrent, greenlet

from lakequeue.errors import LeaseLost, TableUnavailable
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations.delivery_protocol import DeliveryStatus, OpenedDeliveryTable
from lakequeue.shard.commands import LeaseCounts
from lakequeue.storage.delivery.identity import CommitRefused, DeliveryIdentity

SCHEMA = pa.schema([("id", pa.int64())])
READY, GONE = "ready", "gone"


class Marks(NamedTuple):
    """A message in flight."""

    lease: str
    slot: int
    number: int
    live: bool = True


class Commit(NamedTuple):
    """An entry of the table's log."""

    app_id: str
    version: int
    rows: tuple[int, ...]
    lease: str | None


class Bad(AssertionError):
    """The guarantee does not hold; the text says what was done."""


@attrs.define
class World:
    """A queue of one shard and its delivery table.

    Attributes:
        happens: what may happen besides, each once for each time that it is named.
        messages: the state of each message.
        log: all entries ever made, those below ``start`` are cleaned up. A power cut may take those from
            ``durable`` on.
    """

    happens: list[str]
    messages: list[Any]
    epoch: int = 0
    leases: int = 0
    recorded: str | None = None
    exists: bool = False
    log: list[Commit] = attrs.field(factory=list)
    start: int = 0
    durable: int = 0
    actors: list[Actor] = attrs.field(factory=list)

    def key(self) -> object:
        """Equal for two states from which the same can follow."""
        seen = tuple(actor.seen if actor.alive else None for actor in self.actors)
        log = (tuple(self.log), self.start, self.durable, self.recorded, self.exists)
        return tuple(self.happens), tuple(self.messages), self.epoch, log, seen

    # --- what may happen next

    def choices(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for actor in self.actors:
            if actor.alive:
                for way in range(actor.ways):
                    yield (
                        f"{actor.name} {actor.next}{f' way {way}' if way else ''}",
                        lambda a=actor, w=way: a.go(w),
                    )
        for lease in dict.fromkeys(each.lease for each in self.messages if isinstance(each, Marks) and each.live):
            yield f"the receipt of {lease} ends", lambda lease=lease: self._end(lease)
        for what in dict.fromkeys(each for each in self.happens if each != "an answer is lost"):
            yield what, lambda what=what: self._happen(what)

    def _end(self, lease: str) -> None:
        for index, each in enumerate(self.messages):
            if isinstance(each, Marks) and each.lease == lease:
                self.messages[index] = each._replace(live=False)

    def _happen(self, what: str) -> None:
        self.happens.remove(what)
        if what == "another program appends":
            self.log.append(Commit("other", 1, (), None))
        elif what == "the log is cleaned up" and self.log:
            self.start = self.durable = len(self.log)
        elif what == "the power is cut":
            del self.log[self.durable :]
            for actor in self.actors:
                actor.alive = actor.alive and not actor.began

    def go_back(self, epoch: int) -> None:
        """No message is marked or deleted any more. Its rows that are in the table are counted, and come again."""
        self.messages[:] = [READY] * len(self.messages)
        self.log[:] = [commit._replace(rows=()) for commit in self.log]
        self.epoch = max(self.epoch, epoch)

    # --- the guarantee

    def check(self) -> None:
        for index, state in enumerate(self.messages):
            landed = [commit for commit in self.log if index in commit.rows]
            if len(landed) > 1:
                raise Bad(f"the rows of message {index} are in the table twice")
            if state == GONE and not landed:
                raise Bad(f"message {index} is lost")
            if state == READY and landed:
                raise Bad(f"message {index} is in the table and visible")
            if isinstance(state, Marks) and landed and landed[0].version != 2 * state.number:
                raise Bad(f"message {index} is in the table and claimed again")

    # --- ledger

    def commit(self) -> int:
        self.epoch += 1
        return self.epoch

    def next_number(self) -> int:
        """The number of the delivery that a commit begins."""
        return self.commit()

    def claim(self, size: int) -> Held | None:
        free = [index for index, each in enumerate(self.messages) if each == READY][:size]
        if not free:
            return None
        used = {each.slot for each in self.messages if isinstance(each, Marks)}
        slot = min(set(range(9)) - used)
        number, lease = self.next_number(), f"lease {self.leases}"
        self.leases += 1
        for index in free:
            self.messages[index] = Marks(lease, slot, number)
        identity = DeliveryIdentity(f"slot {slot}", number, lease, 0)
        return Held(self, identity, slot, tuple(free), self.recorded is not None)


def step(what: str, ways: int = 1) -> int:
    """Hands over before a step; returns which of the ways the explorer takes."""
    actor: Actor = getcurrent().actor  # type: ignore[attr-defined]
    actor.next, actor.ways = what, ways
    way = int(getcurrent().parent.switch())
    actor.began, actor.seen = True, hash((actor.seen, what, way))
    return way


def saw(answer: Any) -> Any:
    actor: Actor = getcurrent().actor  # type: ignore[attr-defined]
    actor.seen = hash((actor.seen, answer))
    return answer


class Actor:
    """A process: its code, what it has seen, and the step that it takes next."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self.name = name
        self.seen = 0
        """Hash of the answers that it got so far, on which alone depends what it does."""
        self.alive, self.began, self.next, self.ways = True, False, "begins", 1
        self._greenlet = greenlet(self._run)
        self._greenlet.actor = self
        self._code = run

    def _run(self, way: int) -> None:
        with suppress(LeaseLost, TableUnavailable):
            self._code()
        self.alive = False

    def go(self, way: int) -> None:
        self._greenlet.switch(way)


@attrs.define
class Held:
    """The ledger's side of one mark, `delivery_protocol.DeliveryMarks`."""

    world: World
    delivery: DeliveryIdentity
    slot: int
    rows: tuple[int, ...] = ()
    was_recorded: bool = False
    queue_name: str = "orders"

    def _mine(self) -> list[int]:
        wanted = (self.slot, self.delivery.number)
        return [
            index
            for index, each in enumerate(self.world.messages)
            if isinstance(each, Marks) and (each.slot, each.number) == wanted
        ]

    def table_id(self) -> str | None:
        step("reads the recorded id")
        return saw(self.world.recorded)

    def record(self, table_id: str) -> str | None:
        step("records the id")
        if not self._mine():
            return saw(None)
        self.world.recorded = self.world.recorded or table_id
        return saw(self.world.recorded)

    def is_there(self) -> bool:
        step("looks for the mark")
        return saw(bool(self._mine()))

    def decide(self, delivered: bool, unrecorded: bool = False) -> int:
        step("deletes the mark's messages" if delivered else "removes the mark")
        if unrecorded and self.world.recorded is not None:
            return int(saw(0))
        return self._change(GONE if delivered else READY)

    def delete(self) -> LeaseCounts:
        """As the holder, by its lease."""
        step("deletes")
        mine = [
            index
            for index, each in enumerate(self.world.messages)
            if isinstance(each, Marks) and each.lease == self.delivery.lease_id
        ]
        return LeaseCounts(self._change(GONE, mine), 0)

    def release(self, index: int) -> bool:
        """Makes a failed message visible, before the append; False if the lease no longer has it."""
        step(f"releases {index}")
        done = index in self._mine()
        if done:
            self._change(READY, [index])
        return saw(done)

    def remark(self, parts: list[tuple[int, ...]]) -> list[Held] | None:
        step("marks the parts anew")
        every = [index for part in parts for index in part]
        if any(index not in self._mine() or not self.world.messages[index].live for index in every):
            return saw(None)
        used = {each.slot for each in self.world.messages if isinstance(each, Marks)} - {self.slot}
        held, number = [], self.world.commit()
        for part in parts:
            slot = self.slot if not held else min(set(range(9)) - used)
            used.add(slot)
            delivery = DeliveryIdentity(f"slot {slot}", number, self.delivery.lease_id, 0)
            for index in part:
                self.world.messages[index] = Marks(self.delivery.lease_id, slot, number)
            held.append(Held(self.world, delivery, slot, part))
        saw(number)
        return held

    def _change(self, to: str, mine: list[int] | None = None) -> int:
        mine = self._mine() if mine is None else mine
        for index in mine:
            self.world.messages[index] = to
        if mine:
            self.world.commit()
        return saw(len(mine))


@attrs.define
class MemoryTable:
    """`delivery_protocol.Table` in the world."""

    world: World
    uri: str = "table"

    def read(self) -> MemorySnapshot | None:
        step("opens the table")
        world = self.world
        saw((world.exists, len(world.log), world.start, tuple(world.log)))
        return MemorySnapshot(world, len(world.log), tuple(world.log)) if world.exists else None

    def latest(self) -> MemorySnapshot | None:
        return self.read()

    def keep(self, snapshot: Any) -> None:
        pass

    def create(self, schema: pa.Schema) -> None:
        step("creates the table")
        self.world.exists = True

    def sync(self, version: int) -> None:
        step("syncs")
        self.world.durable = max(self.world.durable, version)


@attrs.define
class MemorySnapshot:
    """`delivery_protocol.DeliverySnapshot`: commits in two steps, as a table's writers do."""

    world: World
    version: int
    log: tuple[Commit, ...]
    table_id: str = "id"
    schema: pa.Schema = SCHEMA

    def check(self) -> None:
        pass

    def delivered(self, app_id: str) -> int:
        return next((each.version for each in reversed(self.log) if each.app_id == app_id), -1)

    def search(self, delivery: DeliveryIdentity) -> tuple[int, str | None] | None:
        for commit in self.log[self.world.start :]:
            if commit.app_id == delivery.app_id and commit.version in (delivery.version, delivery.block):
                return commit.version, commit.lease
        return None if self.world.start else (-1, None)

    def append(self, delivery: DeliveryIdentity, rows: pa.Table, merge_schema: bool) -> None:
        landing = Commit(delivery.app_id, delivery.version, tuple(rows["id"].to_pylist()), delivery.lease_id)
        self._commit("rows", landing)

    def block(self, *deliveries: DeliveryIdentity) -> None:
        self._commit("a block", *(Commit(each.app_id, each.block, (), each.lease_id) for each in deliveries))

    def _commit(self, what: str, *landing: Commit) -> None:
        world, base = self.world, self.version
        while True:
            step(f"checks what landed before {what}")
            if saw(base < world.start and base < len(world.log)):
                raise CommitRefused("entries to check are cleaned up")
            if saw(any(each.app_id == mine.app_id for each in world.log[base:] for mine in landing)):
                raise CommitRefused("the same id in between")
            base = saw(len(world.log))
            lost = bool(step(f"commits {what}", 1 + ("an answer is lost" in world.happens)))
            lost = lost and "an answer is lost" in world.happens
            if lost:
                world.happens.remove("an answer is lost")
            if saw(base == len(world.log)):
                world.log += landing
            elif saw(base >= world.start):
                continue  # the place is taken
            # else the entry has a place below those that were cleaned up: the create succeeds, and nobody sees it
            if lost:
                raise CommitRefused("the answer is lost")
            return


# --- processes


def rows_of(indexes: tuple[int, ...]) -> pa.Table:
    return pa.table({"id": pa.array(indexes, pa.int64())})


def holder(world: World, size: int = 2, *, fails: bool = False) -> None:
    """Claims messages, maybe releases one that failed, appends the rest, deletes."""
    step("claims")
    held = world.claim(size)
    saw(held and held.rows)
    if held is None:
        return
    indexes = held.rows
    if fails and len(indexes) > 1:
        if not held.release(indexes[-1]):
            return
        indexes = indexes[:-1]
    table = MemoryTable(world)
    opened, snapshot = OpenedDeliveryTable.of(table, held, lambda: SCHEMA)
    protocol.deliver(opened, snapshot, held, rows_of(indexes))


def halving_holder(world: World) -> None:
    """Claims two messages, fails to append their rows together, and delivers each by itself."""
    step("claims")
    held = world.claim(2)
    saw(held and held.rows)
    if held is None:
        return
    opened, snapshot = OpenedDeliveryTable.of(MemoryTable(world), held, lambda: SCHEMA)
    if protocol.state_of(snapshot, held.delivery) is DeliveryStatus.OPEN and step("gives up, or tries", 2):
        with suppress(CommitRefused):
            snapshot.append(held.delivery, rows_of(held.rows), False)
    state, snapshot = protocol.close(opened, held.delivery)
    if state is not DeliveryStatus.BLOCKED:
        return
    for part in held.remark([(index,) for index in held.rows]) or ():
        protocol.append(opened, snapshot, part, rows_of(part.rows))
        part.decide(True)


def decider(world: World) -> None:
    """Decides each mark whose receipt has ended, once."""
    step("looks for undecided marks")
    found = dict.fromkeys(each for each in world.messages if isinstance(each, Marks) and not each.live)
    saw(tuple(found))
    for each in found:
        marked = Held(world, DeliveryIdentity(f"slot {each.slot}", each.number, each.lease, 0), each.slot)
        protocol.decide(MemoryTable(world), marked)


def repairer(world: World) -> None:
    """Puts an older ledger in place, without the claims since, and blocks their deliveries before that."""
    number = world.epoch + 100
    slots = [DeliveryIdentity(f"slot {slot}", number, "repair", 0) for slot in range(2)]
    protocol.block_all(MemoryTable(world), slots)
    step("goes back")
    world.go_back(number)


ROLES: dict[str, Callable[[World], object]] = {
    "holder": holder,
    "failing holder": lambda world: holder(world, fails=True),
    "holder of two": lambda world: [holder(world, 1) for _ in range(2)],
    "halving holder": halving_holder,
    "decider": decider,
    "repairer": repairer,
}


@attrs.frozen
class Scenario:
    """Processes by role, the number of messages, and what happens besides."""

    roles: tuple[str, ...]
    messages: int = 1
    happens: tuple[str, ...] = ()
    is_new: bool = False
    """True if the table does not exist yet."""

    def begin(self) -> World:
        world = World(list(self.happens), [READY] * self.messages, exists=not self.is_new)
        world.recorded = None if self.is_new else "id"
        world.actors = [
            Actor(f"{role} {number}", lambda role=role: ROLES[role](world))
            for number, role in enumerate(self.roles)
        ]
        for actor in world.actors:
            actor.go(0)  # up to its first step
        return world


def explore(scenario: Scenario, most: int = 2_000_000) -> int:
    """Takes every order of steps; returns the number of states.

    Raises:
        Bad: the guarantee does not hold; the text has the steps.
    """
    known: set[object] = set()
    left: list[tuple[int, ...]] = [()]
    while left:
        path = left.pop()
        world, said = scenario.begin(), list[str]()
        for choice in path:
            what, act = list(world.choices())[choice]
            said.append(what)
            act()
        while True:
            try:
                world.check()
            except Bad as bad:
                raise Bad("\n".join([*said, f"=> {bad}"])) from None
            key = world.key()
            if key in known:
                break
            known.add(key)
            if len(known) > most:
                raise AssertionError(f"more than {most} states")
            choices = list(world.choices())
            if not choices:
                break
            left += [(*path, number) for number in range(1, len(choices))]
            what, act = choices[0]
            path = (*path, 0)
            said.append(what)
            act()
    return len(known)
