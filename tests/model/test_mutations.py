"""Each rule switched off must make the comparison with the model fail, or the comparison proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.redrive_policies import RedrivePolicy
from lakequeue.shard import (
    READY,
    SETTLED,
    ClaimResult,
    Head,
    Rewind,
    Run,
    ShardMachine,
    claim,
    machine,
    move,
    settle,
)
from lakequeue.shard.commands import Spans
from lakequeue.shard.groups import Groups, _Line, _Part
from lakequeue.shard.runmap import RunMap
from lakequeue.shard.state import ShardState

from .stories import play, story

STORIES = 400
FIFO_STORIES = 400


def any_lease_settles(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "holds", lambda state, run, lease_id: True)


def ended_receipts_settle_on_strict_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "holds", lambda state, run, lease_id: run.lease_id == lease_id)


def visibility_timeout_ignored(patch: pytest.MonkeyPatch) -> None:
    set_runs = ShardState.set_runs

    def visible_at_once(self: ShardState, runs: list[Run]) -> None:
        set_runs(self, runs)
        for run in runs:
            self.available.add(run.first, run.last)

    patch.setattr(ShardState, "set_runs", visible_at_once)


def delay_ignored(patch: pytest.MonkeyPatch) -> None:
    def visible_at_once(self: ShardState, first: int, last: int) -> int:
        self.available.add(first, last)
        return last + 1

    patch.setattr(ShardState, "_scan", visible_at_once)


def retention_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "expire", lambda self: None)


def retention_off_by_one_microsecond(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ShardState,
        "expired_below",
        lambda self: self.log.first_sent_at_or_after(self.now - self.attributes.retention_micros),
    )


def cap_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "room", property(lambda self: None))


def twelve_hours_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "check_total", lambda state, run, timeout: None)


def purge_interval_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "PURGE_INTERVAL", 0)


def clock_may_go_back(patch: pytest.MonkeyPatch) -> None:
    advance = ShardState.advance

    def jump(self: ShardState, now: int) -> None:
        self.now = now
        advance(self, now)

    patch.setattr(ShardState, "advance", jump)


def nothing_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "_held_from", lambda self, cap, start, end, instant: end)


def one_more_may_be_delayed(patch: pytest.MonkeyPatch) -> None:
    held_from = ShardState._held_from
    patch.setattr(ShardState, "_held_from", lambda self, cap, *span: held_from(self, cap + 1, *span))


def only_delayed_messages_are_held(patch: pytest.MonkeyPatch) -> None:
    held_from = ShardState._held_from

    def or_end(self: ShardState, cap: int, start: int, end: int, instant: int) -> int:
        return held_from(self, cap, start, end, instant) if instant > self.now else end

    patch.setattr(ShardState, "_held_from", or_end)


def what_is_released_is_held_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "keep_released", lambda self: None)


def what_is_gone_still_counts_as_delayed(patch: pytest.MonkeyPatch) -> None:
    forget = ShardState._forget

    def remember(self: ShardState, below: int) -> None:
        gone = [span for span in self.delayed if span[0] < below]
        forget(self, below)
        for span in gone:
            self.delayed.add(*span)

    patch.setattr(ShardState, "_forget", remember)


def deleted_rows_left_in_the_table(patch: pytest.MonkeyPatch) -> None:
    changes = RunMap.changes
    patch.setattr(RunMap, "changes", lambda self: (changes(self)[0], []))


def equal_neighbours_not_joined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "alike", lambda self, other: False)


def receipts_strict_everywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueAttributes, "strict_receipts", property(lambda self: True))


def hidden_heads_do_not_block(patch: pytest.MonkeyPatch) -> None:
    head = _Line.head

    def visible(self: _Line, state: ShardState) -> int | None:
        oldest = head(self, state)
        offsets = [offset for piece in self.pieces for offset in piece if offset in state.available]
        return min(offsets, default=oldest)

    patch.setattr(_Line, "head", visible)


def hidden_messages_are_skipped(patch: pytest.MonkeyPatch) -> None:
    def skip(self: _Line, state: ShardState, start: int, end: int, count: int) -> _Part:
        part = _Part()
        found = [offset for piece in self.pieces for offset in piece if offset in state.available]
        part.offsets.append([offset for offset in found if offset >= start][:count])
        return part

    patch.setattr(_Line, "deliverable", skip)


def groups_visible_again_stay_hidden(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "arrived", lambda self, first, last: None)


def groups_in_the_order_of_their_heads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "visible_since", lambda self, offset: 0)


def served_groups_stay_in_front(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "stamp", lambda self, offset: None)


def expired_heads_still_block(patch: pytest.MonkeyPatch) -> None:
    serve = Groups.serve

    def only_behind(self: Groups, *, behind: bool) -> None:
        if behind:
            serve(self, behind=True)
        self._served = []

    patch.setattr(Groups, "serve", only_behind)


def expiry_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    def next_event(self: ShardMachine, now: int) -> int | None:
        self._state.advance(now)
        return self._state.next_arrival()

    patch.setattr(ShardMachine, "next_event", next_event)


def full_fifo_queues_refuse(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueAttributes, "inflight_limit_behavior", property(lambda self: "error"))


def receipts_lenient_everywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueAttributes, "strict_receipts", property(lambda self: False))


def new_delay_not_retroactive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "change_delay", lambda self: None)


def served_groups_escape_a_new_delay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "change_delay", lambda self: self._index(self.runs))


def attempt_ids_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "attempt_lives", lambda state, attempt_id: False)


def attempts_hold_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "ATTEMPT_WINDOW", 10**15)


def attempts_outlive_their_receipts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "attempt_lives", lambda state, attempt_id: bool(state.attempt(attempt_id)))


def attempts_survive_changes(patch: pytest.MonkeyPatch) -> None:
    leave = ShardState.leave
    patch.setattr(ShardState, "leave", lambda self, run: leave(self, run._replace(attempt_id=None)))


def attempts_lose_their_order(patch: pytest.MonkeyPatch) -> None:
    repeat = claim._repeat

    def sort(state: ShardState, attempt_id: str, visible_at: int) -> tuple[ClaimResult, bool]:
        result, changed = repeat(state, attempt_id, visible_at)
        return attrs.evolve(result, order=tuple(sorted(result.order))), changed

    patch.setattr(claim, "_repeat", sort)


def no_history(patch: pytest.MonkeyPatch) -> None:
    remove = ShardState.remove

    def for_good(self: ShardState, run: Run) -> None:
        remove(self, run)
        self.history.cut(run.first, run.last)

    patch.setattr(ShardState, "remove", for_good)


def history_kept_when_disabled(patch: pytest.MonkeyPatch) -> None:
    def only_by_purge(self: ShardState) -> None:
        if self.attributes.rewind_micros:
            self.history.cut(0, self.log.end)

    def earliest(self: ShardState) -> int:
        attributes = self.attributes
        return self.now - min(
            attributes.rewind_micros or attributes.retention_micros, attributes.retention_micros - 1
        )

    patch.setattr(ShardState, "forget_history", only_by_purge)
    patch.setattr(ShardState, "earliest_rewind", property(earliest))


def range_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ShardState, "earliest_rewind", property(lambda self: self.now - self.attributes.retention_micros + 1)
    )


def retention_ignored_in_the_history(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "earliest_rewind", property(lambda self: self.now - self.attributes.rewind_micros))


def range_judged_only_later(patch: pytest.MonkeyPatch) -> None:
    remove = ShardState.remove

    def into_the_history(self: ShardState, run: Run) -> None:
        remove(self, run)
        if self.attributes.rewind_micros:
            self.history.put(Run(run.first, run.last, SETTLED))

    patch.setattr(ShardState, "remove", into_the_history)


def purge_leaves_history(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "remove_all", lambda self: self._forget(self.log.end))


def rewind_from_the_wrong_side(patch: pytest.MonkeyPatch) -> None:
    def after(state: ShardState, command: Rewind) -> tuple[int, bool]:
        machine.check_rewind(state, command)
        count = state.rewind(state.log.first_sent_at_or_after(command.to + 1)) if command.to < state.now else 0
        return count, count > 0

    patch.setitem(machine._RULES, Rewind, after)


def rewind_to_now_brings_back(patch: pytest.MonkeyPatch) -> None:
    def at_once(state: ShardState, command: Rewind) -> tuple[int, bool]:
        machine.check_rewind(state, command)
        count = state.rewind(state.log.first_sent_at_or_after(command.to))
        return count, count > 0

    patch.setitem(machine._RULES, Rewind, at_once)


def rewind_to_any_instant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "check_rewind", lambda state, command: None)


def rewind_takes_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    rewind = ShardState.rewind

    def all_of_it(self: ShardState, first: int) -> int:
        count = rewind(self, first)
        for run in [run for run in self.runs.pieces(first, self.log.end) if self.live(run)] if count else []:
            self.hand_back(run)
        return count

    patch.setattr(ShardState, "rewind", all_of_it)


def rewound_as(patch: pytest.MonkeyPatch, **columns: Any) -> None:
    """Lets rewound messages keep something of what they were; `visible_at` is the time of the rewind."""
    rewind = ShardState.rewind

    def changed(self: ShardState, first: int) -> int:
        again = list(self.history.pieces(first, self.log.end))
        count = rewind(self, first)
        for run in again:
            self.runs.put(Run(run.first, run.last, READY, visible_at=self.now)._replace(**columns))
        self._index(self.runs)
        return count

    patch.setattr(ShardState, "rewind", changed)


def rewound_messages_keep_their_count(patch: pytest.MonkeyPatch) -> None:
    rewound_as(patch, receive_count=1)


def rewound_messages_keep_their_lease(patch: pytest.MonkeyPatch) -> None:
    rewound_as(patch, lease_id="lease-1")


def rewound_messages_escape_the_delay(patch: pytest.MonkeyPatch) -> None:
    rewound_as(patch)


def rewound_messages_stay_outside_their_groups(patch: pytest.MonkeyPatch) -> None:
    rewind = ShardState.rewind

    def with_the_old_groups(self: ShardState, first: int) -> int:
        groups, scanned = self._groups, self.scanned
        count = rewind(self, first)
        if groups is not None:
            self.look_up_to(scanned)
            self._groups = groups
        return count

    patch.setattr(ShardState, "rewind", with_the_old_groups)


def floor_without_history(patch: pytest.MonkeyPatch) -> None:
    def floor(self: ShardState) -> Head:
        first = self.runs.first
        at = self.head.head_offset
        return attrs.evolve(self.head, floor_offset=at if first is None else min(first, at))

    patch.setattr(ShardState, "current_head", floor)


def dead_letters_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "dead", lambda state, spans: [])


def dead_letters_are_delivered_once_more(patch: pytest.MonkeyPatch) -> None:
    policy = RedrivePolicy("arn:lakequeue:sqs:local:000000000000:dead", 3)
    patch.setattr(QueueAttributes, "redrive", property(lambda self: self.redrive_policy and policy))


def messages_beside_dead_letters_are_taken_along(patch: pytest.MonkeyPatch) -> None:
    def everything(state: ShardState, spans: Spans) -> list[Run]:
        runs = [run for span in spans for run in state.known(*span)]
        return runs if move.dead(state, spans) else []

    patch.setattr(claim, "dead", everything)


def moved_messages_can_be_rewound(patch: pytest.MonkeyPatch) -> None:
    remove = ShardState.remove
    patch.setattr(ShardState, "remove", lambda self, run: remove(self, run._replace(state=READY)))


def any_number_ends_a_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(move, "_of", lambda state, number: state.moving_runs())


def redrives_keep_the_receive_count(patch: pytest.MonkeyPatch) -> None:
    take = ShardState.take

    def counted(self: ShardState, spans: Any) -> list[Run]:
        return [run._replace(receive_count=run.receive_count + 1) for run in take(self, spans)]

    patch.setattr(ShardState, "take", counted)


def dead_letters_live_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "_overdue", lambda self: iter(()))


def dead_letters_come_uncounted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "fresh", lambda self, first, last: iter([Run(first, last)] if first <= last else []))


def moves_that_ended_serve_no_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "removed", lambda self, first, last: None)


MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    any_lease_settles,
    ended_receipts_settle_on_strict_queues,
    visibility_timeout_ignored,
    delay_ignored,
    retention_ignored,
    retention_off_by_one_microsecond,
    cap_off,
    twelve_hours_off,
    purge_interval_off,
    clock_may_go_back,
    deleted_rows_left_in_the_table,
    equal_neighbours_not_joined,
    receipts_strict_everywhere,
]
MOVE_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    dead_letters_stay,
    dead_letters_are_delivered_once_more,
    messages_beside_dead_letters_are_taken_along,
    moved_messages_can_be_rewound,
    any_number_ends_a_move,
    redrives_keep_the_receive_count,
    dead_letters_live_anew,
    dead_letters_come_uncounted,
]
HELD_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    nothing_is_held,
    one_more_may_be_delayed,
    only_delayed_messages_are_held,
    what_is_released_is_held_again,
    what_is_gone_still_counts_as_delayed,
    expiry_wakes_nobody,
]
REWIND_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    no_history,
    history_kept_when_disabled,
    range_ignored,
    retention_ignored_in_the_history,
    range_judged_only_later,
    purge_leaves_history,
    rewind_from_the_wrong_side,
    rewind_to_now_brings_back,
    rewind_to_any_instant,
    rewind_takes_what_is_in_flight,
    rewound_messages_keep_their_count,
    rewound_messages_keep_their_lease,
    floor_without_history,
    deleted_rows_left_in_the_table,
]
FIFO_MUTATIONS: list[Callable[[pytest.MonkeyPatch], None]] = [
    hidden_heads_do_not_block,
    hidden_messages_are_skipped,
    groups_visible_again_stay_hidden,
    groups_in_the_order_of_their_heads,
    served_groups_stay_in_front,
    expired_heads_still_block,
    expiry_wakes_nobody,
    full_fifo_queues_refuse,
    receipts_lenient_everywhere,
    new_delay_not_retroactive,
    served_groups_escape_a_new_delay,
    attempt_ids_ignored,
    attempts_hold_for_ever,
    attempts_outlive_their_receipts,
    attempts_survive_changes,
    attempts_lose_their_order,
    cap_off,
    visibility_timeout_ignored,
    retention_off_by_one_microsecond,
    rewind_takes_what_is_in_flight,
    rewound_messages_keep_their_lease,
    rewound_messages_escape_the_delay,
    rewound_messages_stay_outside_their_groups,
    dead_letters_stay,
    dead_letters_come_uncounted,
    moves_that_ended_serve_no_group,
    nothing_is_held,
    what_is_released_is_held_again,
]


def first_difference(fifo: bool) -> int | None:
    """Seed of the first story in which machine and model differ."""
    for seed in range(FIFO_STORIES if fifo else STORIES):
        try:
            play(*story(seed, fifo))
        except AssertionError:
            return seed
    return None


@pytest.mark.spec("DEL-8", "RCP-6", "RCP-7", "RCV-3", "DLY-1", "RET-1", "INF-11", "VIS-9", "PUR-2", "STA-13")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_missing_rule_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    assert first_difference(fifo=False) is not None


@pytest.mark.spec("DLQ-2", "DLQ-4", "RET-7", "STA-13")
@pytest.mark.parametrize("mutation", MOVE_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_missing_rule_of_moving_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    assert first_difference(fifo=False) is not None


@pytest.mark.spec("INF-8", "INF-9", "STA-13")
@pytest.mark.parametrize("mutation", HELD_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_missing_rule_of_holding_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    assert first_difference(fifo=False) is not None


@pytest.mark.spec("RWD-4", "RWD-5", "RWD-6", "RWD-8", "RWD-11", "RWD-19", "RWD-20", "RWD-21", "RWD-23", "RWD-25")
@pytest.mark.parametrize("mutation", REWIND_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_missing_rule_of_rewind_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    assert first_difference(fifo=False) is not None


@pytest.mark.spec(
    "FIF-4", "FIF-9", "FIF-14", "RET-10", "INF-4", "RCP-7", "DLY-10", "ATT-3", "ATT-4", "ATT-5", "ATT-6", "RWD-22"
)
@pytest.mark.parametrize("mutation", FIFO_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_missing_fifo_rule_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    assert first_difference(fifo=True) is not None


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_the_same_stories_pass_with_all_rules_in_place(fifo: bool) -> None:
    assert first_difference(fifo) is None
