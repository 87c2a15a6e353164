"""Each rule switched off must make the comparison with the model fail, or the comparison proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from lakequeue.attributes import QueueAttributes
from lakequeue.shard import ClaimResult, Run, ShardMachine, claim, machine, settle
from lakequeue.shard.groups import Groups, _Line, _Part
from lakequeue.shard.runmap import RunMap
from lakequeue.shard.state import ShardState

from .stories import play, story

STORIES = 400
FIFO_STORIES = 150


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
    patch.setattr(ShardState, "_scan", lambda self, first, last: self.available.add(first, last))


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


@pytest.mark.spec(
    "FIF-4", "FIF-9", "FIF-14", "RET-10", "INF-4", "RCP-7", "DLY-10", "ATT-3", "ATT-4", "ATT-5", "ATT-6"
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
