"""Each rule switched off must make the comparison with the model fail, or the comparison proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakequeue.attributes import QueueAttributes
from lakequeue.shard import Run, machine, settle
from lakequeue.shard.runmap import RunMap
from lakequeue.shard.state import ShardState

from .stories import play, story

STORIES = 400


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


def first_difference(stories: int, fifo: bool = False) -> int | None:
    """Seed of the first story in which machine and model differ."""
    for seed in range(stories):
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
    assert first_difference(STORIES) is not None


def test_the_same_stories_pass_with_all_rules_in_place() -> None:
    assert first_difference(STORIES) is None
