"""What examples and random commands do not show: rows by the million, decisions that are not committed, batches.

Seconds throughout.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros
from lakequeue.model.failures import DeadLetterReason, parse_note
from lakequeue.shard import state
from lakequeue.shard.claim import standard
from lakequeue.shard.commands import (
    ChangeVisibility,
    Claim,
    Delete,
    Expire,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    MakeVisible,
    Moved,
    StateCounts,
)
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import IN_FLIGHT, VISIBLE, DeadLetterSpan, Destination, Head, Run
from mutations import Case, Mutation, each_case, replace

from .model import DEAD_LETTER_QUEUE, ListLog, Row
from .model import SECOND as S


class Bulk(ListLog):
    """Messages without delays or groups, in one span."""

    def spans(self, first: int, last: int, delay: int | None = None) -> Iterator[tuple[int, int, int]]:
        yield first, last, 0

    def dead_letters(self, first: int, last: int) -> Iterator[DeadLetterSpan]:
        return iter(())

    def only_group(self, first: int) -> str | None:
        return ""


def shard(log: ListLog, *runs: Run, head: int = 0, **attributes: Any) -> ShardMachine:
    """A machine whose messages below `head` are in `runs` or deleted."""
    wire = QueueAttributes.create(**attributes).to_wire()
    return ShardMachine(Head(head_offset=head, attributes=wire), runs, log)


def sent(count: int) -> ListLog:
    return ListLog([Row(0)] * count)


def held(first: int, last: int, lease: str, until: float) -> Run:
    """A run received under a lease at 0."""
    return Run(first, last, IN_FLIGHT, lease, 1, int(until * S), 0, 0)


def ask(machine: ShardMachine, at: float, command: Any) -> Any:
    """The answer to a command whose decision is committed."""
    decision = machine.decide([command], int(at * S))
    if decision.commit:
        machine.committed()
    [result] = decision.results
    return result.value


# -- decisions --------------------------------------------------------------------------------------------


@pytest.mark.spec("RCV-15", "STA-7")
def test_receives_in_one_decision_share_nothing() -> None:
    claims = shard(sent(5)).decide([Claim(2, 30 * S, f"lease-{i}") for i in range(4)], 0)
    taken = [o for r in claims.results for s in r.value.spans for o in range(s.first, s.last + 1)]
    assert taken == [0, 1, 2, 3, 4]
    assert claims.puts == [held(0, 1, "lease-0", 30), held(2, 3, "lease-1", 30), held(4, 4, "lease-2", 30)]


@pytest.mark.spec("ERR-8", "BAT-4")
def test_a_refused_command_does_not_stop_the_others() -> None:
    decision = shard(sent(2), held(0, 1, "a", 30), head=2).decide(
        [ChangeVisibility(0, "b", S, "H"), Delete(0, "a"), Delete(0, "a"), ChangeVisibility(0, "a", S, "H")], S
    )
    codes = [result.error.code if result.error else result.value for result in decision.results]
    assert codes == ["InvalidParameterValue", True, False, "InvalidParameterValue"]
    assert [result.changed for result in decision.results] == [False, True, True, True]


@pytest.mark.spec("DEL-2", "RCP-6")
def test_a_lease_is_deleted_but_for_what_failed() -> None:
    machine = shard(sent(10), held(0, 3, "a", 30), held(4, 4, "b", 30), held(5, 9, "a", 30), head=10)
    delete = LeaseDelete("a", [(0, 9)], except_offsets=[2, 4, 7], failure=reason("why"))
    assert ask(machine, 1, delete) == LeaseCounts(7, 1, 2)
    assert [run[:5] for run in machine.runs] == [
        (2, 2, VISIBLE, "a", 1),
        (4, 4, IN_FLIGHT, "b", 1),
        (7, 7, VISIBLE, "a", 1),
    ]
    again = ask(machine, 1, Claim(10, None, "c")).spans
    assert [(span.first, span.last) for span in again] == [(2, 2), (7, 7)]


@pytest.mark.spec("JOB-10")
@pytest.mark.parametrize("more", [{}, {"profile_name": "cmq"}])
def test_each_message_of_a_lease_may_fail_for_its_own_reason(more: dict[str, str]) -> None:
    why, other, none = (DeadLetterReason("Error", text, from_micros(0), "job") for text in ("a", "b", ""))
    machine = shard(sent(8), held(0, 6, "a", 30), held(7, 7, "b", 30), head=8, **more)
    delete = LeaseDelete("a", [(0, 7)], [1, 2, 3, 5, 6, 7], none, {1: why, 2: why, 3: other, 6: other, 7: why})
    assert ask(machine, 1, delete) == LeaseCounts(2, 1, 5)
    assert [(run.first, run.last, run.failure, not run.failed_attempts) for run in machine.runs] == [
        (1, 2, why, False),
        (3, 3, other, False),
        (5, 5, none, False),
        (6, 6, other, False),
        (7, 7, None, True),
    ]
    assert [attempt.text for attempt in machine.runs[1].failed_attempts] == ["b"]
    again = ask(machine, 1, Claim(10, None, "c")).spans
    assert [(span.first, span.last) for span in again] == [(1, 2), (3, 3), (5, 5), (6, 6)]


@pytest.mark.spec("STA-13")
def test_ranges_that_overlap_are_shown_once() -> None:
    machine = shard(ListLog([Row(0)] * 7 + [Row(0, 9 * S)] * 2), Run(0, 8), head=9)
    assert ask(machine, 1, MakeVisible([(4, 6), (0, 6)])) == 0
    assert list(machine.runs) == [Run(0, 8)]


def test_what_expires_while_a_commit_is_under_way_is_not_forgotten() -> None:
    log = ListLog([Row(0), Row(50 * S)])
    machine = shard(log, held(0, 0, "a", 30), head=1, message_retention_period=60)
    machine.decide([Claim(1, 30 * S, "b")], 59 * S)
    assert machine.stored(60 * S) == 1
    machine.committed()
    decision = machine.decide([Expire()], 60 * S)
    assert (decision.results[0].value, decision.deletes) == (1, [0])


def test_only_a_decision_that_changed_something_can_be_committed() -> None:
    machine = shard(sent(0))
    machine.decide([Claim(1, None, "a")], 0)
    with pytest.raises(RuntimeError, match="nothing to commit"):
        machine.committed()


def test_something_that_is_no_command_is_refused() -> None:
    with pytest.raises(TypeError, match="not a command"):
        shard(sent(1)).decide(["claim"], 0)  # type: ignore[list-item]


# -- many messages ----------------------------------------------------------------------------------------


def test_a_million_messages_are_one_run() -> None:
    machine = shard(Bulk([Row(0)] * 2_000_000))
    decision = machine.decide([Claim(1_000_000, 30 * S, "lease")], 0)
    assert decision.puts == [held(0, 999_999, "lease", 30)]
    assert decision.head.head_offset == 1_000_000
    assert machine.counts(0) == StateCounts(1_000_000, 1_000_000, 0)


@pytest.mark.spec("VIS-1", "VIS-3")
def test_extending_a_lease_of_a_million_messages_is_one_run() -> None:
    machine = shard(Bulk([Row(0)] * 1_000_000), held(0, 999_999, "a", 30), head=1_000_000)
    assert ask(machine, 20, LeaseExtend("a", [(0, 999_999)], 30 * S)) == LeaseCounts(1_000_000, 0)
    assert machine.runs == [held(0, 999_999, "a", 50)]


@pytest.mark.spec("PER-3")
def test_a_hundred_and_twenty_thousand_runs_in_flight_slow_nothing_down() -> None:
    count = 120_000
    runs = [held(2 * i, 2 * i, f"lease-{i}", 1_000 + i) for i in range(count)]
    log = Bulk([Row(0)] * (2 * count + 100_000))
    started = time.process_time()
    machine = shard(log, *runs, head=2 * count)
    assert time.process_time() - started < 3
    started = time.process_time()
    for i in range(500):
        ask(machine, 1, Claim(1, 30 * S, f"new-{i}"))
        ask(machine, 1, Delete(2 * i, f"lease-{i}"))
        machine.counts(S)
    assert time.process_time() - started < 2.5
    assert machine.counts(S).in_flight == count


@pytest.mark.spec("PER-5", "INF-8")
def test_20_000_messages_are_delayed_and_the_next_is_held() -> None:
    machine = shard(ListLog([Row(0, 60 * S)] * 20_000 + [Row(0)] * 2), profile_name="cmq")
    assert machine.counts(0) == StateCounts(0, 0, 20_000, held=2)
    assert ask(machine, 59, Claim(10, None, "a")).spans == ()
    assert machine.counts(60 * S) == StateCounts(20_002, 0, 0)


@pytest.mark.spec("RWD-4", "RWD-7")
@pytest.mark.parametrize("parts", [1, 2])
def test_the_history_says_of_the_newest_deletes_when_they_were_and_stays_short(
    monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(state, "TIMED_RUNS", 8)
    monkeypatch.setattr(state.ShardState, "_history_limit", 8)
    machine = shard(sent(1_000), rewind_range=3_600)
    ask(machine, 0, Claim(1_000, 7_200 * S, "a"))
    for second, offset in enumerate(range(0, 1_000, parts), start=1):
        ask(machine, second, Delete(offset, "a"))
        machine.decide([], second * S)
        history = machine.history
        timed = [run for run in history if run.visible_at is not None]
        assert timed == history[-len(timed) :] and min(4, second) <= len(timed) <= 8
        assert [run.visible_at for run in timed] == [
            (second - len(timed) + 1 + at) * S for at in range(len(timed))
        ]
        assert sum(run.size for run in history) == second
        assert parts > 1 or len(history) <= 9


# -- batches that fail as a whole -------------------------------------------------------------------------


def batch(machine: ShardMachine, at: float, most: int, leased: int = 0) -> tuple[list[int], int | None]:
    """Offsets of the next batch under the lease that is named by its instant, and where dead letters are."""
    claim = Claim(
        most, None, f"at-{at}", dead_letter_queues={DEAD_LETTER_QUEUE: Destination("key", 1, False)}, leased=leased
    )
    claimed = ask(machine, at, claim)
    if claimed.moving:
        [(run, part)] = machine.outgoing()
        assert run.size == 1 and parse_note(part.note)[0] == reason("boom")
        ask(machine, at, Moved(part.number))
        return batch(machine, at, most)[0], run.first
    return [offset for span in claimed.spans for offset in range(span.first, span.last + 1)], None


def reason(text: str) -> DeadLetterReason:
    return DeadLetterReason("ValueError", text, from_micros(0), "batch")


def fail(machine: ShardMachine, at: float, offsets: list[int]) -> None:
    spans = [(offset, offset) for offset in offsets]
    ask(machine, at, LeaseRelease(f"at-{at}", spans, reason("boom"), len(offsets)))


def a_batch_that_fails_comes_in_halves_until_the_message_that_fails_is_alone() -> None:
    machine = shard(sent(100), redrive_policy={"deadLetterTargetArn": DEAD_LETTER_QUEUE, "maxReceiveCount": 3})
    handled: list[int] = []
    sizes: list[int] = []
    dead: list[int] = []
    for at in range(40):
        offsets, letter = batch(machine, at, 100)
        dead += [] if letter is None else [letter]
        if not offsets:
            break
        sizes.append(len(offsets))
        if 37 in offsets:
            fail(machine, at, offsets)
        else:
            handled += offsets
            ask(machine, at, LeaseDelete(f"at-{at}", [(offset, offset) for offset in offsets]))
    assert dead == [37]
    assert sorted(handled) == [offset for offset in range(100) if offset != 37]
    assert sizes[:5] == [100, 50, 25, 25, 12] and sizes.count(1) <= 7


def others_go_on_while_a_message_that_failed_alone_waits_for_its_turn() -> None:
    machine = shard(sent(4), held(0, 0, "at-0", 30), head=1)
    fail(machine, 0, [0])
    assert batch(machine, 0.5, 1) == ([1], None)
    assert batch(machine, 0.6, 9) == ([2, 3], None)
    assert batch(machine, 0.7, 9) == ([0], None)  # nobody else is visible
    fail(machine, 0.7, [0])
    ask(machine, 1, LeaseRelease("at-0.6", [(2, 3)]))
    assert batch(machine, 2.6, 1) == ([2], None)
    assert batch(machine, 2.7, 1) == ([0], None)  # 2 s after the second failure


def a_failed_message_stays_hidden_for_its_delay() -> None:
    """Extensions of its lease, which were on their way, do not change the delay."""
    machine = shard(sent(3), held(0, 2, "at-0", 30), head=3)
    released = LeaseRelease("at-0", [(0, 0)], reason("boom"), 1, unmark=True, delay=4 * S)
    assert ask(machine, 1, released).done == 1
    assert ask(machine, 2, LeaseExtend("at-0", [(0, 2)], 60 * S)).done == 2
    assert machine.counts(2 * S) == StateCounts(0, 3, 0)
    assert batch(machine, 4.9, 9) == ([], None)
    assert batch(machine, 5, 9) == ([0], None)
    late = LeaseRelease("at-5", [(0, 0)], reason("boom"), 1, unmark=True, delay=4 * S)
    assert ask(machine, 40, late).done == 1
    assert batch(machine, 40, 9) == ([0], None)  # its receipt had ended, so others could have had it


def _shown(self: state.ShardState, run: Run, visible_at: int) -> bool:
    self.hand_back(run, run.failure)
    return True


BATCHES = {a_batch_that_fails_comes_in_halves_until_the_message_that_fails_is_alone: "DLQ-12"}
DELAYS = {a_failed_message_stays_hidden_for_its_delay: "TAB-29"}
TURNS = {others_go_on_while_a_message_that_failed_alone_waits_for_its_turn: "DLQ-12"}
MUTATIONS = [
    Mutation("what failed together is not halved", replace(Run, "failed_together", None), BATCHES),
    Mutation("what failed together comes one by one", replace(Run, "failed_together", 1), BATCHES),
    Mutation("a failed message comes again at once", replace(state.ShardState, "hide", _shown), DELAYS),
    Mutation("an extension changes the delay of a failed message", replace(Run, "failure", None), DELAYS),
    Mutation("a message that failed alone comes again at once", replace(standard, "_LONGEST_TURN", 0), TURNS),
]


@each_case(MUTATIONS)
def test_batches_fail_alone_in_the_end(case: Case) -> None:
    case.run()


@pytest.mark.spec("DLQ-12")
def test_what_failed_as_one_batch_comes_without_others_and_in_one_shard() -> None:
    machine = shard(sent(6), held(0, 3, "at-0", 30), head=4)
    fail(machine, 0, [0, 1, 2, 3])
    [single] = ask(machine, 1, Claim(1, 0, "single")).spans
    assert (single.first, single.last) == (0, 0)  # a receive of single messages takes any, and knows of no batch
    assert batch(machine, 1, 10) == ([0], None)  # up to those of the batch
    assert batch(machine, 2, 10, leased=1) == ([], None)
    assert batch(machine, 2, 10) == ([1, 2], None)
    assert batch(machine, 3, 10) == ([3], None)
    assert batch(machine, 4, 10) == ([4, 5], None)
