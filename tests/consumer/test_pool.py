"""The pool of a consumer: random sequences of events, against a naive model of its messages."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from consumer.pools import SECOND, Moves, World
from lakequeue.consumer import ahead, events, jobs, letters, line, pool, totals
from lakequeue.consumer.ahead import Ahead
from lakequeue.consumer.events import Fate, Settlement
from lakequeue.consumer.jobs import Done, Job, State, Turn
from lakequeue.consumer.pool import Pool
from lakequeue.renewal import holds, policies
from lakequeue.renewal.holds import Holds, ReceiptsLost
from mutations import Case, Mutation, Patch, each_case, replace
from unseen import first_seed

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "running-consumers.md"
STEPS = 60


def sequences(first: int = 0, number: int = 400) -> Moves:
    """Runs sequences of random events. Returns how often messages changed from a state to another."""
    moves: Moves = Counter()
    for seed in range(first, first + number):
        try:
            moves += World(seed).run(STEPS)
        except BaseException as error:
            raise AssertionError(f"World({seed})") from error
    return moves


def drawn() -> set[tuple[str, str]]:
    """The transitions in the diagram of the guide: chains of states with arrows."""
    [diagram] = re.findall(r"```text\n(received .*?)```", GUIDE.read_text(), re.DOTALL)
    chains = [re.findall(r"\w+(?= →)|(?<=→ )\w+", line) for line in diagram.splitlines()]
    steps = [step for chain in chains for step in zip(chain, chain[1:], strict=False)]
    return {step for step in steps if step[0] != "received"}


@pytest.mark.spec("HBN-18", "HBN-19", "HBN-23")
def test_messages_move_as_the_guide_and_the_docstring_say() -> None:
    moves = {(before.value, after.value) for before, after in sequences()}
    documented = set(re.findall(r"- (\w+) -> (\w+):", State.__doc__ or ""))
    assert moves <= documented == drawn()
    assert documented - moves <= {("finished", "ended")}, "sequences that are too short to show it"


@pytest.mark.slow
@pytest.mark.spec("HBN-18", "HBN-19", "HBN-23")
def test_sequences_that_nobody_has_seen() -> None:
    sequences(first_seed(), 5_000)


@pytest.mark.parametrize("module", [pool, letters, line, totals, ahead, jobs, events, holds, policies])
def test_a_pool_has_no_threads_clocks_or_queues(module: object) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())  # type: ignore[attr-defined]
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    barred = {"threading", "asyncio", "time", "datetime", "queue", "concurrent", "logging", "random"}
    assert not {name.partition(".")[0] for name in imported} & barred
    assert not imported & {"lakequeue.queue", "lakequeue.client"}


@pytest.mark.spec("HBN-23", "JOB-9")
def test_a_last_receive_that_waits_for_its_batch_holds_up_no_hand() -> None:
    world = next(world for world in map(World, range(100)) if len(world.queues) == 2 and world.hands > 1)
    queue = world.queues[0]
    queue.pool.rules = attrs.evolve(queue.pool.rules, batch=3, batch_wait=SECOND, prefetch=None, fifo=False)
    queue.begin()
    assert queue.pool.claim is not None
    queue.free, queue.pool.claim.passed = 1, 1
    turns: list[Turn] = []
    while not any(turn.is_last for turn in turns):
        turns = queue._claim(1)
    turns[0].jobs[0].context.message.receive_count = 1  # type: ignore[misc]
    queue._receive(turns)
    assert world.hands_of._next(world.now) is None
    world.now += SECOND
    taken = world.hands_of._next(world.now)
    assert taken is not None and list(taken[1]) == queue._in(State.RUNNING)


def turn(group: str, *numbers: int, last: bool = False, receives: int = 1) -> Turn:
    """Messages of a group, one for each number."""
    found = Turn(group)
    for number in numbers or [0]:
        handle = f"{group}-{number}"
        message = SimpleNamespace(
            message_id=handle, receipt_handle=handle, receive_count=receives, last_receive=last, body="x"
        )
        context = SimpleNamespace(message=message, lost=False, over=False, in_doubt=False, received=id(found))
        found.jobs.append(Job(context, found, 1_000 * SECOND))  # type: ignore[arg-type]
    return found


@pytest.mark.spec("HBN-23")
def test_a_last_receive_begins_first_also_behind_a_message_of_its_group_that_has_just_ended() -> None:
    world = next(world for world in map(World, range(100)) if len(world.queues) == 1 and world.hands > 1)
    queue = world.queues[0]
    queue.pool.rules = attrs.evolve(queue.pool.rules, batch=1, prefetch=3, fifo=True)

    queue._receive([turn("a")])
    handled = queue.take()
    assert handled is not None
    queue.on(events.HandlerEnded(handled, [(Fate.SUCCESS, None)], 1_000, {}))
    [due] = queue.on(events.RoundDue(True, world.now, False))
    assert isinstance(due, events.Round)
    queue.on(events.Settled(due.done, [Settlement.SETTLED], 1_000))
    world.now += 1
    queue._receive([turn("b", 1)])
    last = turn("a", 1, last=True)
    [job] = last.jobs
    queue._receive([last])
    assert queue.take() == [job]


@pytest.mark.spec("HBN-23", "JOB-4")
def test_a_message_behind_one_that_is_given_back_begins_at_once() -> None:
    world = next(world for world in map(World, range(100)) if len(world.queues) == 1 and world.hands == 1)
    queue = world.queues[0]
    queue.pool.rules = attrs.evolve(queue.pool.rules, batch=3, batch_wait=60 * SECOND, prefetch=None)
    again = turn("a", *range(3), receives=2)
    first = again.jobs[0]
    queue._receive([again, turn("b", 3, last=True)])
    assert queue.take() is None
    world.now, world.awake = world.now + SECOND, 0
    queue.on(events.Tick(1, paused=False))
    assert world.awake and queue.take() == [first]


# --- safeguards


def goes_on_before_the_delete(patch: Patch) -> None:
    later = Pool._settle_later

    def at_once(self: Pool, done: Done) -> None:
        later(self, done)
        self._go_on(done.job.turn)

    patch.setattr(Pool, "_settle_later", at_once)


def wakes_nobody_for_a_group(patch: Patch) -> None:
    patch.setattr(Pool, "_go_on", lambda self, turn: self.line.go_on(turn) if turn.group else None)


def random_sequences() -> None:
    sequences()


MUTATIONS = [
    Mutation(
        "forgets a round that failed",
        replace(Pool, "_round_failed", lambda self, event: None),
        {random_sequences: "HBN-24"},
    ),
    Mutation(
        "counts no hands",
        replace(Pool, "_keeps_back", lambda self, turn: False),
        {random_sequences: "HBN-18"},
    ),
    Mutation(
        "lets a group go on before the delete", goes_on_before_the_delete, {random_sequences: "HBN-19 FIF-1"}
    ),
    Mutation(
        "claims last receives for busy hands",
        replace(Pool, "_free", lambda self, done: self._totals.hands),
        {random_sequences: "HBN-23 DLQ-1"},
    ),
    Mutation("holds what waits for ever", replace(Ahead, "behind", 10**12), {random_sequences: "HBN-23"}),
    Mutation("wakes nobody for a group", wakes_nobody_for_a_group, {random_sequences: "HBN-19"}),
    Mutation(
        "releases a failure before an extension that is on its way",
        replace(Holds, "is_extending", lambda self, key: False),
        {random_sequences: "HNS-14"},
    ),
    Mutation("never says when to extend", replace(Holds, "_next", lambda *_: None), {random_sequences: "HBN-1"}),
    Mutation(
        "extends what is lost",
        replace(Holds, "_lose", lambda self, keys: [ReceiptsLost([key for key in keys if key in self._held])]),
        {random_sequences: "HBN-20"},
    ),
    Mutation(
        "tells nobody of lost receipts",
        replace(
            Pool, "_renewal", lambda self, event: [self._do(each) for each in self.holds.on(event, self._now)]
        ),
        {random_sequences: "HBN-20"},
    ),
]


@each_case(MUTATIONS)
def test_a_guarantee_needs_its_safeguard(case: Case) -> None:
    case.run(lambda patch: ())
