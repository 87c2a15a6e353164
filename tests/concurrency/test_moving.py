"""Moves between queues that end at any point, and processes that move messages concurrently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.faults import killed
from concurrency.harness import apart, at_once, drain, spread, unfinished
from concurrency.steps import Killed, at, before_write, cut_off, dying, meanwhile
from lakequeue import (
    LakeQueue,
    LakeQueueError,
    Queue,
    QueueClientError,
    RedrivePolicy,
    RequestThrottled,
    SendEntry,
    UnsupportedOperation,
)
from lakequeue.model.clock import SystemClock
from lakequeue.operations import move
from lakequeue.runtime import shard_sender
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.shard.commands import Claim, Moved
from lakequeue.storage.engines.commit_failures import LostRace
from lakequeue.storage.engines.point import Table
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, shown_by

MARK, APPEND, REMOVAL = 1, 2, 3
"""The writes of a move in order."""


@attrs.frozen
class Pair:
    """A queue and its dead-letter queue in one process."""

    lq: LakeQueue
    queue: Queue
    dead: Queue

    @classmethod
    def of(cls, lq: LakeQueue) -> Pair:
        return cls(lq, lq.queue("orders"), lq.queue("dead"))

    @classmethod
    def create(cls, lq: LakeQueue, *, shards: int = 1, dead_shards: int = 1, **attributes: Any) -> Pair:
        dead = lq.create_queue("dead", shards=dead_shards)
        policy = RedrivePolicy("dead", 1)
        return cls(lq, lq.create_queue("orders", shards=shards, redrive_policy=policy, **attributes), dead)

    def fail(self, *bodies: str) -> None:
        """Sends messages that the next receive moves as dead letters."""
        self.queue.send_batch([SendEntry(body) for body in bodies])
        assert set(bodies) <= set(received(self.queue))

    def stored(self) -> tuple[list[str], list[str]]:
        """Bodies in the two queues, as a new process sees them."""
        fresh = Pair.of(apart(self.lq.root, self.lq.clock, 1)[0])
        return stored(fresh.queue), stored(fresh.dead)


Two = tuple[Pair, Pair]


def received(queue: Queue) -> list[str]:
    return [message.body for message in queue.receive(1_000, visibility_timeout=0, wait_time=0)]


def stored(queue: Queue) -> list[str]:
    return sorted(message.body for message in queue.peek(limit=1_000))


def two_processes(root: Path, clock: ManualClock) -> Two:
    """One queue with two dead letters and a new message, in two processes."""
    here, there = apart(root, clock)
    mine = Pair.create(here)
    mine.fail("a", "b")
    mine.queue.send("c")
    return mine, Pair.of(there)


@pytest.fixture
def two(tmp_path: Path, clock: ManualClock) -> Two:
    return two_processes(tmp_path / "root", clock)


def letters(pair: Pair) -> None:
    """Moves the dead letters, and receives the new message if it is the first to do so."""
    pair.queue.receive(1_000, wait_time=0)


def redrive(pair: Pair) -> None:
    pair.dead.redrive()


def compact(pair: Pair) -> None:
    assert not any(summary.failures for summary in pair.lq.compact())


TAKING_OVER = [letters, redrive, compact]


def long(*values: Any) -> Any:
    """A case that runs only among the long tests."""
    return pytest.param(*values, marks=pytest.mark.long)


def go_on_for_long(pair: Pair) -> None:
    """Completes the current move, then redrives and moves all messages again, twice."""
    for _ in range(2):
        letters(pair)
        pair.dead.redrive()
        received(pair.queue)
    letters(pair)


def commits_to_both_queues(pair: Pair) -> None:
    for queue in (pair.queue, pair.dead):
        queue.cancel(queue.send("more").message_id)


def dies_in_a_move(pair: Pair) -> None:
    with dying(APPEND):
        (redrive if stored(pair.dead) else letters)(pair)


Interruption = Callable[[Pair], AbstractContextManager[None]]
"""What ends or delays a move of one process, given what the other one has of the queues."""


def killed_at(step: int, by: Callable[[Pair], None]) -> Any:
    @contextmanager
    def interrupted(theirs: Pair) -> Iterator[None]:
        with dying(step):
            yield
        by(theirs)

    return pytest.param(interrupted, by is not redrive, id=f"killed before write {step}, then {by.__name__}")


def overtaken_at(step: int, by: Callable[[Pair], None]) -> Any:
    name = f"{by.__name__} before write {step}"
    return pytest.param(lambda theirs: before_write(step, lambda: by(theirs)), by is not redrive, id=name)


def raised(method: str, error: Exception) -> Any:
    @contextmanager
    def interrupted(_: Pair) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            step = at(patch, Table, method, error, landed=True, times=3)
            yield
        assert step.seen

    return pytest.param(interrupted, True, id=f"{method} landed and raised")


def cut_off_at_append(landed: bool) -> Any:
    return pytest.param(lambda _: cut_off("append", landed), True, id=f"append cut off, {landed=}")


def slept_before_the_target(theirs: Pair) -> AbstractContextManager[None]:
    return meanwhile(move, "_bring", lambda *_: go_on_for_long(theirs))


INTERRUPTIONS = [
    *(each(step, by) for each in (killed_at, overtaken_at) for step in (APPEND, REMOVAL) for by in TAKING_OVER),
    *(overtaken_at(step, by) for step in (APPEND, REMOVAL) for by in (go_on_for_long, commits_to_both_queues)),
    overtaken_at(MARK, dies_in_a_move),
    pytest.param(slept_before_the_target, True, id="slept before it looked at the target"),
    raised("merge", LostRace("answer lost")),
    raised("append", OSError("post-commit work failed")),
    *map(cut_off_at_append, (False, True)),
]


@pytest.mark.spec("DLQ-2", "DLQ-8", "ERR-2")
@pytest.mark.parametrize("verb", [letters, redrive])
@pytest.mark.parametrize(("interrupted", "nobody_redrives"), INTERRUPTIONS)
def test_messages_of_a_move_that_was_interrupted_are_in_one_queue_once(
    two: Two, verb: Callable[[Pair], None], interrupted: Interruption, nobody_redrives: bool
) -> None:
    mine, theirs = two
    if verb is redrive:
        letters(mine)
        assert theirs.stored() == (["c"], ["a", "b"])
    with interrupted(theirs):
        verb(mine)
    verb(theirs)
    source, dead = theirs.stored()
    assert sorted(source + dead) == ["a", "b", "c"]
    if verb is letters and nobody_redrives:
        assert dead == ["a", "b"]
    assert (stored(mine.queue), stored(mine.dead)) == (source, dead)
    assert mine.dead.redrive() in (0, 2)
    assert mine.stored() == (["a", "b", "c"], [])
    assert mine.dead.counts().in_flight == 0
    assert not unfinished(mine.queue) and not unfinished(mine.dead)


@pytest.mark.spec("DLQ-8")
@pytest.mark.parametrize("step", [APPEND, REMOVAL])
def test_a_redrive_counts_what_it_moved_although_another_process_ended_it(two: Two, step: int) -> None:
    mine, theirs = two
    received(mine.queue)
    mine.fail("d", "e")  # and takes away c
    letters(mine)
    assert mine.stored() == ([], list("abcde"))
    counted: list[int] = []
    with before_write(step, lambda: compact(theirs)):
        assert mine.dead.redrive(max_messages=3, progress=counted.append) == 3
    assert counted == [3]
    source, dead = mine.stored()
    assert (source, dead) == (list("abc"), ["d", "e"])


@pytest.mark.spec("DLQ-2", "QUE-13")
@pytest.mark.parametrize("step", [long(MARK), APPEND, REMOVAL])
@pytest.mark.parametrize("again", [False, True])
def test_messages_come_back_from_a_queue_that_is_deleted_under_a_move(two: Two, step: int, again: bool) -> None:
    mine, theirs = two

    def delete() -> None:
        theirs.lq.delete_queue("dead")
        if again:
            theirs.lq.create_queue("dead")

    with before_write(step, delete):
        seen = received(mine.queue)
    if step == REMOVAL:  # they had arrived, and were deleted with the queue
        assert seen == ["c"] and stored(mine.queue) == ["c"]
    elif again:  # what a failed move left counts anew, and is delivered once more
        assert sorted(seen) == ["a", "b", "c"]
        assert received(theirs.queue) == []
        assert mine.stored() == ([], ["a", "b", "c"])
    else:
        assert sorted(seen) == sorted(received(theirs.queue)) == ["a", "b", "c"]
        assert mine.queue.counts().visible == 3


@pytest.mark.spec("DLQ-8", "QUE-13")
@pytest.mark.parametrize("step", [long(MARK), APPEND])
def test_a_redrive_to_a_queue_that_is_deleted_under_it_leaves_the_letters(two: Two, step: int) -> None:
    mine, theirs = two
    letters(mine)
    with before_write(step, lambda: theirs.lq.delete_queue("orders")):
        assert mine.dead.redrive() == 0
    assert stored(mine.dead) == ["a", "b"]
    assert mine.dead.counts().visible == 2


@pytest.mark.spec("DLQ-2")
def test_a_later_move_follows_the_log_on_the_handle_of_the_first(two: Two) -> None:
    mine, theirs = two
    letters(mine)
    sender = mine.dead._runtime.shards[0].sender
    handle = sender._delivers
    theirs.dead.send("between")
    mine.fail("d")
    letters(mine)
    assert handle is not None and sender._delivers is handle
    assert mine.stored() == (["c"], ["a", "b", "between", "d"])


@pytest.mark.spec("DLQ-2", "PUR-1")
@pytest.mark.parametrize("step", [APPEND, REMOVAL])
def test_a_purge_takes_what_a_killed_process_was_moving(two: Two, clock: ManualClock, step: int) -> None:
    mine, theirs = two
    with dying(step):
        letters(mine)
    theirs.queue.purge()
    letters(theirs)
    assert theirs.stored() == ([], [] if step == APPEND else ["a", "b"])
    mine.fail("d")
    letters(theirs)
    assert mine.stored() == ([], ["d"] if step == APPEND else ["a", "b", "d"])


@pytest.mark.spec("DLQ-2", "RET-7")
def test_what_expires_while_it_is_on_its_way_arrives_nowhere(two: Two, clock: ManualClock) -> None:
    mine, theirs = two
    with dying(APPEND):
        letters(mine)
    clock.advance(4 * 86_400)
    compact(theirs)
    letters(theirs)
    assert theirs.stored() == ([], [])
    mine.fail("d")
    letters(theirs)
    assert mine.stored() == ([], ["d"])


@pytest.mark.spec("DLQ-2", "ERR-9", "RCV-3")
@pytest.mark.parametrize("error", [LostRace("conflict"), OSError("no space left on device")], ids=type)
def test_a_dead_letter_queue_that_cannot_be_written_hides_no_other_message(
    two: Two, monkeypatch: Patch, error: Exception
) -> None:
    mine, _ = two
    monkeypatch.setattr("lakequeue.storage.engines.transaction.ATTEMPTS", 2)
    monkeypatch.setattr("lakequeue.storage.engines.transaction.REPEATS", 2)
    with monkeypatch.context() as patch:
        at(patch, Table, "append", error, times=10_000)
        with pytest.raises((RequestThrottled, QueueClientError)):  # the dead letters are on their way now
            received(mine.queue)
        assert [message.body for message in mine.queue.receive(10)] == ["c"]
    assert mine.queue.counts().in_flight == 3
    compact(mine)
    assert mine.stored() == (["c"], ["a", "b"])
    assert mine.queue.counts().in_flight == 1


@pytest.mark.spec("DLQ-10")
@pytest.mark.parametrize("step", [APPEND, REMOVAL])
def test_a_group_goes_on_once_somebody_ended_the_move_of_its_first_message(
    tmp_path: Path, clock: ManualClock, step: int
) -> None:
    here, there = apart(tmp_path / "root", clock)
    here.create_queue("dead.fifo", fifo=True)
    queue = here.create_queue("orders.fifo", fifo=True, redrive_policy=RedrivePolicy("dead.fifo", 1))
    other = there.queue("orders.fifo")
    for body in ("A1", "A2", "B1"):
        queue.send(body, group_id=body[0], dedup_id=body)
    assert [m.body for m in queue.receive(1, visibility_timeout=0)] == ["A1"]
    with dying(step):
        queue.receive(10)
    assert sorted(drain(other)) == ["A2", "B1"]
    assert stored(there.queue("dead.fifo")) == ["A1"]


@pytest.mark.spec("DLQ-2", "DLQ-8")
def test_threads_of_two_processes_that_move_to_and_fro_keep_every_message_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    here, there = apart(tmp_path / "root", clock)
    pairs = [Pair.create(here, shards=2), Pair.of(here), Pair.of(there)]
    for start in range(0, 40, 10):
        pairs[0].queue.send_batch([SendEntry(f"{start + number:02}") for number in range(10)])

    def toss(pair: Pair) -> None:
        for _ in range(3):
            received(pair.queue)
            pair.dead.redrive(max_messages=7)

    assert at_once([lambda pair=pair: toss(pair) for pair in pairs * 2], 120) == [None] * 6  # type: ignore[misc]
    source, dead = pairs[2].stored()
    assert sorted(source + dead) == [f"{number:02}" for number in range(40)]


class TestKilled:
    """SIGKILL before steps that no test above has; another process, already running, completes it."""

    @pytest.mark.spec("QUE-25", "DLQ-2", "DLQ-9", "RWD-8")
    @pytest.mark.parametrize("before", [1, 2, 4, long(6), 7])
    def test_a_change_of_attributes_over_several_shards(self, tmp_path: Path, before: int) -> None:
        """Writes are numbered by table: the catalog, then the ledger and the log of each shard."""
        here, there = apart(tmp_path / "root", SystemClock())
        mine = Pair.create(here, shards=3, rewind_range=3_600)
        other = here.create_queue("other")
        spread(mine.queue, "xyz")
        mine.queue.delete_batch(mine.queue.receive(3)).raise_for_failures()
        spread(mine.queue, "abcdef")
        assert sorted(received(mine.queue)) == list("abcdef")
        killed(tmp_path / "root", "change", before)
        new = there.queue("orders")
        assert new.attributes(wire=True)["DelaySeconds"] == ("0" if before == 1 else "50")
        assert new.dead_letter_queue == (mine.dead if before == 1 else other).arn
        new.send("g")
        counts = mine.queue.counts()
        assert (counts.visible, counts.delayed, counts.rewindable) == ((7, 0, 3) if before == 1 else (6, 1, 0))
        assert received(mine.queue) == (["g"] if before == 1 else [])
        assert stored(mine.dead if before == 1 else other) == list("abcdef")
        assert stored(other if before == 1 else mine.dead) == []
        if before > 1:
            for queue in (new, mine.queue):
                with pytest.raises(UnsupportedOperation):
                    queue.rewind(queue.created_at)
            new.set_attributes(rewind_range=3_600)
        assert mine.queue.rewind(new.created_at) == (3 if before == 1 else 0)

    @pytest.mark.spec("QUE-25", "DLQ-2")
    @pytest.mark.parametrize("before", [long(2), 4, long(6)])
    def test_while_nobody_ended_a_change_of_policy_each_message_is_in_one_queue(
        self, tmp_path: Path, before: int
    ) -> None:
        [here] = apart(tmp_path / "root", SystemClock(), 1)
        mine = Pair.create(here, shards=3)
        other = here.create_queue("other")
        spread(mine.queue, "abcdef")
        received(mine.queue)
        killed(tmp_path / "root", "change", before)
        assert received(mine.queue) == []  # an object from before the change, which brings no change to shards
        assert sorted(stored(mine.dead) + stored(other)) == list("abcdef")
        assert len(stored(other)) == (before - 2)
        assert other.redrive() + mine.dead.redrive() == 6
        assert stored(mine.queue) == list("abcdef")


@pytest.mark.spec("DLQ-8", "FAI-5", "QUE-34")
@pytest.mark.parametrize(
    ("dead", "change"),
    [({"shards": 4, "group_in_flight_limit": 5}, {"group_in_flight_limit": None}), ({"shards": 1}, {"shards": 3})],
    ids=["limit", "shards"],
)
@pytest.mark.parametrize("delivered", [1, 2, 3])
def test_a_target_that_changes_before_a_move_is_completed_gets_each_message_once(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, dead: dict[str, Any], change: dict[str, Any], delivered: int
) -> None:
    target = lq.create_queue("dead", **dead)
    queue = lq.create_queue("orders", redrive_policy=RedrivePolicy("dead", 1))
    sent = [f"message {number}" for number in range(8)]
    queue.send_batch([SendEntry(body, group_id=f"g{number}") for number, body in enumerate(sent)])
    queue.receive(max_messages=10, visibility_timeout=0)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        at(patch, shard_sender, "deliver", Killed(), number=delivered + 1)
        at(patch, move, "Moved", Killed())
        queue.receive(max_messages=10)
    fresh = Pair.of(apart(lq.root, lq.clock, 1)[0])
    target.set_attributes(**change)
    assert fresh.queue.receive(max_messages=10) == []
    assert sorted(stored(fresh.dead)) == sent and stored(fresh.queue) == []


# --- mutations that no schedule of tests/simulation comes by


def the_compactor_ends_a_move(mine: Pair, theirs: Pair) -> None:
    with dying(APPEND):
        letters(mine)
    compact(theirs)
    assert theirs.stored() == (["c"], ["a", "b"])


def a_process_that_meets_its_first_dead_letters_decides_twice(mine: Pair, theirs: Pair) -> None:
    """It begins their move, then ends it and claims: it knows where they go before it decides."""
    command, claims = ShardLedger.command, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardLedger, "command", lambda *given: claims.append(given[1][-1]) or command(*given))
        letters(theirs)
    assert [type(claim) for claim in claims].count(Claim) == 2
    assert theirs.stored() == (["c"], ["a", "b"])


deleted_under_a_move = shown_by(
    test_messages_come_back_from_a_queue_that_is_deleted_under_a_move,
    lambda mine, theirs: ((mine, theirs), APPEND, False),
)
MUTATIONS = [
    Mutation(
        "remove what cannot arrive",
        replace("lakequeue.operations.move.MoveBack", Moved),
        {deleted_under_a_move: "DLQ-2 DLQ-8"},
    ),
    Mutation(
        "leave moves to receivers",
        replace(move, "finish_all", lambda _: None),
        {the_compactor_ends_a_move: "DLQ-2 DLQ-8"},
    ),
    Mutation(
        "look for the dead-letter queue once letters are there",
        replace(move.DeadLetterMoves, "resolve", lambda _: None),
        {a_process_that_meets_its_first_dead_letters_decides_twice: "DLQ-2"},
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda _: two_processes(tmp_path, ManualClock()), (LakeQueueError, pytest.fail.Exception))
