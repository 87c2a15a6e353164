"""A rule that is switched off makes the comparison with the model fail, or the comparison proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any

import attrs

from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.deliveries import Mark
from lakequeue.model.rates import Pace
from lakequeue.model.redrive_policies import RedrivePolicy
from lakequeue.shard import admin, decide, deliver, expire, move, settle
from lakequeue.shard.claim import standard as claim
from lakequeue.shard.claim import tenants
from lakequeue.shard.claim.fifo import Groups, _Deliverable, _GroupOffsets
from lakequeue.shard.claim.tenants import Tenants
from lakequeue.shard.commands import (
    Claim,
    ClaimResult,
    Command,
    Decide,
    Decision,
    Discard,
    MakeVisible,
    Remark,
    Rewind,
    Spans,
)
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import DELETED, VISIBLE, Head, Run, RunMap
from lakequeue.shard.spans import Span, apart
from lakequeue.shard.state import ShardState
from mutations import (
    Case,
    Mutation,
    Patch,
    accept_any_lease,
    each_case,
    receive_in_a_pause,
    replace,
    slots_are_used_again_with_their_number,
    what_is_undecided_is_visible,
)

from .command_sequences import random_commands, run_commands, small_steps

SEQUENCES = 210
"""Number of sequences: slightly more than the rarest mutation needs, except mutations of tenants."""
FIRST = {
    "standard": (35, 57, 46, 5, 0, 11, 14, 15, 39, 104, 206),
    "fifo": (9, 48, 27, 10, 47, 3, 14, 17, 19, 21, 49),
    "fair": (5, 14, 15, 156, 181, 2720, 2312, 2185, 1368),  # the last ones change attributes where it shows
    "delivery": (2, 3, 5, 10, 28, 128),
}
"""Seeds of sequences that find all mutations between them; they run first, as a mutation ends when it is found."""


def seeds(kind: str, more: int = SEQUENCES) -> Iterable[int]:
    return dict.fromkeys((*FIRST[kind], *range(more)))


def standard_queues_agree() -> None:
    for seed in seeds("standard"):
        run_commands(*random_commands(seed, "standard"))


def fifo_queues_agree() -> None:
    for seed in seeds("fifo"):
        run_commands(*random_commands(seed, "fifo"))


def tenants_agree() -> None:
    for seed in seeds("fair"):
        steps = small_steps if seed % 2 else nullcontext
        with steps():
            run_commands(*random_commands(seed, "fair"))


def deliveries_agree() -> None:
    for seed in seeds("delivery", 40):
        run_commands(*random_commands(seed, "delivery"))


STANDARD = {standard_queues_agree: "DEL-8 RCP-6 RCP-7 RCV-3 DLY-1 RET-1 INF-11 VIS-9 PUR-2 STA-13"}
DRAINED = {standard_queues_agree: "HBN-27"}
MOVES = {standard_queues_agree: "DLQ-2 DLQ-4 RET-7 STA-13"}
HELD = {standard_queues_agree: "INF-8 INF-9 STA-13"}
REWINDS = {standard_queues_agree: "RWD-4 RWD-5 RWD-6 RWD-8 RWD-11 RWD-19 RWD-20 RWD-21 RWD-23 RWD-25"}
DELIVERIES = {deliveries_agree: "TAB-2 TAB-3 TAB-4 TAB-5 TAB-6 TAB-7"}
FAIR = {tenants_agree: "FAI-1 FAI-2 FAI-4 INF-11"}
FIFO = {fifo_queues_agree: "FIF-4 FIF-9 FIF-14 RET-10 INF-4 RCP-7 DLY-10 ATT-3 ATT-4 ATT-5 ATT-6 RWD-22"}


def only_claims_are_noted(patch: Patch) -> None:
    note = ShardMachine._note

    def noted(self: ShardMachine, command: Command, result: Any) -> None:
        if isinstance(command, Claim):
            note(self, command, result)

    patch.setattr(ShardMachine, "_note", noted)


def has_the_log_of_its_claim(self: ShardMachine, now: int) -> bool:
    return self._drained is not None and self._drained[0] == self.log.end


def receipts_that_ended_count(patch: Patch) -> None:
    count = Tenants.count

    def only_up(self: Tenants, spans: Spans, sign: int) -> None:
        if sign > 0:
            count(self, spans, sign)

    patch.setattr(Tenants, "count", only_up)


def nothing_is_let_through(patch: Patch) -> None:
    """As if a receive that the rate limit stopped had to wait for another reason."""
    patch.setattr(ShardMachine, "next_event", ShardMachine._next_change)


def pauses_of_groups_ignored(patch: Patch) -> None:
    patch.setattr(QueueAttributes, "reasons", None)


def visibility_timeout_ignored(patch: Patch) -> None:
    set_runs = ShardState.set_runs

    def visible_at_once(self: ShardState, runs: list[Run]) -> None:
        set_runs(self, runs)
        for run in runs:
            self.available.add(run.first, run.last)

    patch.setattr(ShardState, "set_runs", visible_at_once)


def delay_ignored(patch: Patch) -> None:
    def visible_at_once(self: ShardState, first: int, last: int) -> int:
        self.available.add(first, last)
        return last + 1

    patch.setattr(ShardState, "_scan", visible_at_once)


def clock_may_go_back(patch: Patch) -> None:
    advance = ShardState.advance

    def jump(self: ShardState, now: int) -> None:
        self.now = now
        advance(self, now)

    patch.setattr(ShardState, "advance", jump)


def one_more_may_be_delayed(patch: Patch) -> None:
    held_from = ShardState._held_from
    patch.setattr(ShardState, "_held_from", lambda self, cap, *span: held_from(self, cap + 1, *span))


def only_delayed_messages_are_held(patch: Patch) -> None:
    held_from = ShardState._held_from

    def or_end(self: ShardState, cap: int, start: int, end: int, instant: int) -> int:
        return held_from(self, cap, start, end, instant) if instant > self.now else end

    patch.setattr(ShardState, "_held_from", or_end)


def what_is_gone_still_counts_as_delayed(patch: Patch) -> None:
    forget = ShardState.forget

    def remember(self: ShardState, below: int) -> None:
        gone = [span for span in self.delayed if span[0] < below]
        forget(self, below)
        for span in gone:
            self.delayed.add(*span)

    patch.setattr(ShardState, "forget", remember)


def deleted_rows_left_in_the_table(patch: Patch) -> None:
    changes = RunMap.changes
    patch.setattr(RunMap, "changes", lambda self: (changes(self)[0], []))


def hidden_heads_do_not_block(patch: Patch) -> None:
    head = _GroupOffsets.head

    def visible(self: _GroupOffsets, state: ShardState) -> int | None:
        oldest = head(self, state)
        offsets = [offset for piece in self.pieces for offset in piece if offset in state.available]
        return min(offsets, default=oldest)

    patch.setattr(_GroupOffsets, "head", visible)


def hidden_messages_are_skipped(patch: Patch) -> None:
    def skip(self: _GroupOffsets, state: ShardState, start: int, end: int, count: int) -> _Deliverable:
        part = _Deliverable()
        found = [offset for piece in self.pieces for offset in piece if offset in state.available]
        part.pieces.append([offset for offset in found if offset >= start][:count])
        return part

    patch.setattr(_GroupOffsets, "deliverable", skip)


def expired_heads_still_block(patch: Patch) -> None:
    serve = Groups.serve

    def only_behind(self: Groups, *, behind: bool) -> None:
        if behind:
            serve(self, behind=True)
        self._served = []

    patch.setattr(Groups, "serve", only_behind)


def expiry_wakes_nobody(patch: Patch) -> None:
    def next_event(self: ShardMachine, now: int) -> int | None:
        return self._at(now).next_arrival()

    patch.setattr(ShardMachine, "next_event", next_event)


def attempts_survive_changes(patch: Patch) -> None:
    leave = ShardState.leave
    patch.setattr(ShardState, "leave", lambda self, run: leave(self, run._replace(attempt_id=None)))


def attempts_lose_their_order(patch: Patch) -> None:
    repeat = claim._repeat

    def sort(state: ShardState, attempt_id: str, visible_at: int) -> tuple[ClaimResult, bool]:
        result, changed = repeat(state, attempt_id, visible_at)
        return attrs.evolve(result, order=tuple(sorted(result.order))), changed

    patch.setattr(claim, "_repeat", sort)


def no_history(patch: Patch) -> None:
    remove = ShardState.remove

    def for_good(self: ShardState, run: Run, *kept: Any) -> None:
        remove(self, run, *kept)
        self.history.cut(run.first, run.last)

    patch.setattr(ShardState, "remove", for_good)


def history_without_times(patch: Patch) -> None:
    patch.setattr(Run, "deleted", lambda self, now: Run(self.first, self.last, DELETED))


def history_kept_when_disabled(patch: Patch) -> None:
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


def range_judged_only_later(patch: Patch) -> None:
    remove = ShardState.remove

    def into_the_history(self: ShardState, run: Run, kept: Sequence[Span] = (), *failure: Any) -> None:
        remove(self, run, kept, *failure)
        for first, last in apart(run.first, run.last, kept) if self.attributes.rewind_micros else ():
            self.history.put(Run(first, last, DELETED))

    patch.setattr(ShardState, "remove", into_the_history)


def rewind_from_the_wrong_side(patch: Patch) -> None:
    def after(state: ShardState, command: Rewind) -> tuple[int, bool]:
        admin.check_rewind(state, command)
        count = state.rewind(state.log.first_sent_at_or_after(command.to + 1)) if command.to < state.now else 0
        return count, count > 0

    patch.setitem(decide._RULES, Rewind, after)


def rewind_to_now_brings_back(patch: Patch) -> None:
    def at_once(state: ShardState, command: Rewind) -> tuple[int, bool]:
        admin.check_rewind(state, command)
        count = state.rewind(state.log.first_sent_at_or_after(command.to))
        return count, count > 0

    patch.setitem(decide._RULES, Rewind, at_once)


def rewind_takes_what_is_in_flight(patch: Patch) -> None:
    rewind = ShardState.rewind

    def all_of_it(self: ShardState, first: int) -> int:
        count = rewind(self, first)
        for run in [run for run in self.runs.pieces(first, self.log.end) if self.live(run)] if count else []:
            self.hand_back(run)
        return count

    patch.setattr(ShardState, "rewind", all_of_it)


def rewound_as(**columns: Any) -> Callable[[Patch], None]:
    """Rewound messages keep part of their former state; `visible_at` is the time of the rewind."""

    def apply(patch: Patch) -> None:
        rewind = ShardState.rewind

        def changed(self: ShardState, first: int) -> int:
            again = list(self.history.pieces(first, self.log.end))
            count = rewind(self, first)
            for run in again:
                self.runs.put(Run(run.first, run.last, VISIBLE, visible_at=self.now)._replace(**columns))
            self._index(self.runs)
            return count

        patch.setattr(ShardState, "rewind", changed)

    return apply


def rewound_messages_stay_outside_their_groups(patch: Patch) -> None:
    rewind = ShardState.rewind

    def with_the_old_groups(self: ShardState, first: int) -> int:
        groups, scanned = self._groups, self.scanned
        count = rewind(self, first)
        if groups is not None:
            self.scan_to(scanned)
            self._groups = groups
        return count

    patch.setattr(ShardState, "rewind", with_the_old_groups)


def floor_without_history(patch: Patch) -> None:
    def floor(self: ShardState) -> Head:
        first = self.runs.first
        at = self.head.head_offset
        return attrs.evolve(self.head, floor_offset=at if first is None else min(first, at))

    patch.setattr(ShardState, "current_head", floor)


def dead_letters_are_delivered_once_more(patch: Patch) -> None:
    policy = RedrivePolicy("arn:lakequeue:sqs:local:000000000000:dead", 3)
    patch.setattr(QueueAttributes, "redrive", property(lambda self: self.redrive_policy and policy))


def messages_next_to_dead_letters_are_claimed(patch: Patch) -> None:
    def everything(state: ShardState, spans: Spans) -> list[Run]:
        runs = [run for span in spans for run in state.known(*span)]
        return runs if move.dead(state, spans) else []

    patch.setattr(claim, "dead", everything)


def moved_messages_can_be_rewound(patch: Patch) -> None:
    remove = ShardState.remove
    patch.setattr(ShardState, "remove", lambda self, run, *more: remove(self, run._replace(state=VISIBLE), *more))


def redrives_keep_the_receive_count(patch: Patch) -> None:
    take = ShardState.take

    def counted(self: ShardState, spans: Any) -> list[Run]:
        return [run._replace(receive_count=run.receive_count + 1) for run in take(self, spans)]

    patch.setattr(ShardState, "take", counted)


def operators_delete_what_is_in_flight(patch: Patch) -> None:
    def everything(state: ShardState, command: Discard) -> tuple[int, bool]:
        found = [run for span in command.spans for run in list(state.runs.pieces(*span))]
        for run in found:
            state.remove(run)
        return len(found), bool(found)

    patch.setitem(decide._RULES, Discard, everything)


def operators_end_receipts_unasked(patch: Patch) -> None:
    patch.setitem(
        decide._RULES,
        MakeVisible,
        lambda state, command: admin.make_visible(state, attrs.evolve(command, in_flight=True)),
    )


def nothing_is_rescheduled(patch: Patch) -> None:
    show_at = admin._show_at
    patch.setattr(admin, "_show_at", lambda state, run, at, anew: show_at(state, run, state.now, anew))


def claims_come_first(patch: Patch) -> None:
    """Claims come before settles. A round then cannot claim the messages that it settles."""
    decide_in_order = ShardMachine.decide

    def decided(self: ShardMachine, commands: Sequence[Command], now: int) -> Decision:
        order = sorted(range(len(commands)), key=lambda index: not isinstance(commands[index], Claim))
        decision = decide_in_order(self, [commands[index] for index in order], now)
        results = [result for _, result in sorted(zip(order, decision.results, strict=True), key=itemgetter(0))]
        return attrs.evolve(decision, results=results)

    patch.setattr(ShardMachine, "decide", decided)


def every_release_removes_the_mark(patch: Patch) -> None:
    """A message is visible although its holder, which may have appended its row, has only given up."""
    hand_back = ShardState.hand_back
    patch.setattr(
        ShardState, "hand_back", lambda self, run, *more: hand_back(self, run._replace(mark=None), *more)
    )


def a_decision_names_the_slot_alone(patch: Patch) -> None:
    """A late decision takes the messages of the slot's next delivery."""
    patch.setattr(
        deliver, "_of", lambda state, mark: [run for run in deliver._marked(state) if run.mark.slot == mark.slot]
    )


def receipts_outlive_the_decision(patch: Patch) -> None:
    """A holder that was blocked still settles its messages by its lease."""

    def kept(state: ShardState, command: Decide) -> tuple[int, bool]:
        leases = {run.first: run.lease_id for run in deliver._of(state, Mark(command.slot, command.number))}
        answer = deliver.decide(state, command)
        for first, lease_id in leases.items():
            for run in list(state.runs.pieces(first, first)):
                state.runs.put(run._replace(lease_id=lease_id))
        return answer

    patch.setitem(decide._RULES, Decide, kept)


def parts_keep_their_number(patch: Patch) -> None:
    """Parts are delivered under a number that was blocked."""
    remark = deliver.remark

    def same(state: ShardState, command: Remark) -> Any:
        answer, changed = remark(state, command)
        return answer and tuple(Mark(mark.slot, command.number) for mark in answer), changed

    patch.setitem(decide._RULES, Remark, same)


def expiry_takes_what_is_undecided(patch: Patch) -> None:
    forget = ShardState.forget

    def all_below(self: ShardState, below: int) -> None:
        self.marked.discard(0, below - 1)
        self.undecided.discard(0, below - 1)
        forget(self, below)

    patch.setattr(ShardState, "forget", all_below)


def a_recorded_table_is_overlooked(patch: Patch) -> None:
    """A process removes a mark while its holder, which has just recorded the table, appends."""
    patch.setitem(
        decide._RULES,
        Decide,
        lambda state, command: deliver.decide(state, attrs.evolve(command, unrecorded=False)),
    )


MUTATIONS = [
    Mutation("claims come first", claims_come_first, STANDARD | FIFO),
    Mutation("a claim leaves nothing", replace(ClaimResult, "left_nothing", lambda self, command: True), DRAINED),
    Mutation("what is made visible counts as claimed", only_claims_are_noted, DRAINED),
    Mutation("time brings nothing", replace(ShardMachine, "is_drained", has_the_log_of_its_claim), DRAINED),
    Mutation("operators delete what is in flight", operators_delete_what_is_in_flight, STANDARD | FIFO),
    Mutation("operators end receipts unasked", operators_end_receipts_unasked, STANDARD | FIFO),
    Mutation("what is rescheduled is visible at once", nothing_is_rescheduled, STANDARD),
    Mutation("any lease settles", accept_any_lease, STANDARD),
    Mutation(
        "ended receipts settle on strict queues",
        replace(settle, "holds", lambda state, run, lease_id: run.lease_id == lease_id),
        STANDARD,
    ),
    Mutation("visibility timeout ignored", visibility_timeout_ignored, STANDARD | FIFO),
    Mutation("a pause ignored", receive_in_a_pause, STANDARD | FIFO),
    Mutation("pauses of groups ignored", pauses_of_groups_ignored, FAIR | FIFO),
    Mutation("a rate limit ignored", replace(Pace, "left", lambda *given: 10), STANDARD | FIFO),
    Mutation("a rate limit wakes nobody", nothing_is_let_through, STANDARD | FIFO),
    Mutation("delay ignored", delay_ignored, STANDARD),
    Mutation("retention ignored", replace(expire, "expire", lambda state: None), STANDARD),
    Mutation(
        "retention off by one microsecond",
        replace(
            expire,
            "expired_below",
            lambda state: state.log.first_sent_at_or_after(state.now - state.attributes.retention_micros),
        ),
        STANDARD | FIFO,
    ),
    Mutation("cap off", replace(ShardState, "room", property(lambda self: None)), STANDARD | FIFO),
    Mutation("twelve hours off", replace(settle, "check_total", lambda state, run, timeout: None), STANDARD),
    Mutation("purge interval off", replace(admin, "PURGE_INTERVAL", 0), STANDARD),
    Mutation("clock may go back", clock_may_go_back, STANDARD),
    Mutation(
        "nothing is held",
        replace(ShardState, "_held_from", lambda self, cap, start, end, instant: end),
        HELD | FIFO,
    ),
    Mutation("one more may be delayed", one_more_may_be_delayed, HELD),
    Mutation("only delayed messages are held", only_delayed_messages_are_held, HELD),
    Mutation(
        "what is released is held again", replace(ShardState, "keep_released", lambda self: None), HELD | FIFO
    ),
    Mutation("what is gone still counts as delayed", what_is_gone_still_counts_as_delayed, HELD),
    Mutation("deleted rows left in the table", deleted_rows_left_in_the_table, STANDARD),
    Mutation("equal neighbours not joined", replace(Run, "alike", lambda self, other: False), STANDARD),
    Mutation(
        "receipts strict everywhere",
        replace(QueueAttributes, "strict_receipts", property(lambda self: True)),
        STANDARD,
    ),
    Mutation("hidden heads do not block", hidden_heads_do_not_block, FIFO),
    Mutation("hidden messages are skipped", hidden_messages_are_skipped, FIFO),
    Mutation(
        "several of a group for a claim of one each",
        replace(claim, "pick", lambda state, count, one_each=False, pick=claim.pick: pick(state, count)),
        FIFO,
    ),
    Mutation("groups visible again stay hidden", replace(Groups, "arrived", lambda self, first, last: None), FIFO),
    Mutation(
        "groups in the order of their heads", replace(ShardState, "visible_since", lambda self, offset: 0), FIFO
    ),
    Mutation("served groups stay in front", replace(ShardState, "stamp", lambda self, offset: None), FIFO),
    Mutation("expired heads still block", expired_heads_still_block, FIFO),
    Mutation("expiry wakes nobody", expiry_wakes_nobody, HELD | FIFO),
    Mutation(
        "full fifo queues refuse",
        replace(QueueAttributes, "inflight_limit_behavior", property(lambda self: "error")),
        FIFO,
    ),
    Mutation(
        "receipts lenient everywhere",
        replace(QueueAttributes, "strict_receipts", property(lambda self: False)),
        FIFO,
    ),
    Mutation("new delay not retroactive", replace(ShardState, "change_delay", lambda self: None), FIFO),
    Mutation(
        "served groups escape a new delay",
        replace(ShardState, "change_delay", lambda self: self._index(self.runs)),
        FIFO,
    ),
    Mutation("attempt ids ignored", replace(claim, "attempt_lives", lambda state, attempt_id: False), FIFO),
    Mutation("attempts hold for ever", replace(claim, "ATTEMPT_WINDOW", 10**15), FIFO),
    Mutation(
        "attempts outlive their receipts",
        replace(claim, "attempt_lives", lambda state, attempt_id: bool(state.attempt(attempt_id))),
        FIFO,
    ),
    Mutation("attempts survive changes", attempts_survive_changes, FIFO),
    Mutation("attempts lose their order", attempts_lose_their_order, FIFO),
    Mutation("no history", no_history, REWINDS),
    Mutation("history without times", history_without_times, REWINDS),
    Mutation("history kept when disabled", history_kept_when_disabled, REWINDS),
    Mutation(
        "range ignored",
        replace(
            ShardState, "earliest_rewind", property(lambda self: self.now - self.attributes.retention_micros + 1)
        ),
        REWINDS,
    ),
    Mutation(
        "retention ignored in the history",
        replace(ShardState, "earliest_rewind", property(lambda self: self.now - self.attributes.rewind_micros)),
        REWINDS,
    ),
    Mutation("range judged only later", range_judged_only_later, REWINDS),
    Mutation(
        "purge leaves history", replace(ShardState, "remove_all", lambda self: self.forget(self.log.end)), REWINDS
    ),
    Mutation("rewind from the wrong side", rewind_from_the_wrong_side, REWINDS),
    Mutation("rewind to now brings back", rewind_to_now_brings_back, REWINDS),
    Mutation("rewind to any instant", replace(admin, "check_rewind", lambda state, command: None), REWINDS),
    Mutation("rewind takes what is in flight", rewind_takes_what_is_in_flight, REWINDS | FIFO),
    Mutation("rewound messages keep their count", rewound_as(receive_count=1), REWINDS),
    Mutation("rewound messages keep their lease", rewound_as(lease_id="lease-1"), REWINDS | FIFO),
    Mutation("rewound messages escape the delay", rewound_as(), FIFO),
    Mutation("rewound messages stay outside their groups", rewound_messages_stay_outside_their_groups, FIFO),
    Mutation("floor without history", floor_without_history, REWINDS),
    Mutation(
        "last receives are claimed ahead",
        replace(claim, "_for_hands", lambda state, picked, hands, most: (list(picked), [], 0, 0)),
        {standard_queues_agree: "HBN-23", fifo_queues_agree: "HBN-23", tenants_agree: "HBN-23"},
    ),
    Mutation("dead letters stay", replace(claim, "dead", lambda state, spans: []), MOVES | FIFO),
    Mutation("dead letters are delivered once more", dead_letters_are_delivered_once_more, MOVES),
    Mutation(
        "receives in other queues count",
        replace(Run, "deliveries", property(lambda self: self.receive_count)),
        {standard_queues_agree: "DLQ-13", fifo_queues_agree: "DLQ-13"},
    ),
    Mutation("messages beside dead letters are taken along", messages_next_to_dead_letters_are_claimed, MOVES),
    Mutation("moved messages can be rewound", moved_messages_can_be_rewound, MOVES),
    Mutation("any number ends a move", replace(move, "_of", lambda state, number: state.moving_runs()), MOVES),
    Mutation("redrives keep the receive count", redrives_keep_the_receive_count, MOVES),
    Mutation("dead letters live anew", replace(expire, "_overdue", lambda state: iter(())), MOVES),
    Mutation(
        "dead letters come uncounted",
        replace(ShardState, "fresh", lambda self, first, last: iter([Run(first, last)] if first <= last else [])),
        MOVES | FIFO,
    ),
    Mutation("moves that ended serve no group", replace(Groups, "removed", lambda self, first, last: None), FIFO),
    Mutation("tenants are ignored", replace(ShardState, "by_tenant", property(lambda self: False)), FAIR),
    Mutation(
        "picks of a claim do not count",
        replace(Tenants, "_load", lambda self, group: self._in_flight.get(group, 0)),
        FAIR,
    ),
    Mutation("receipts that ended count", receipts_that_ended_count, FAIR),
    Mutation(
        "late extensions pass the limit", replace(Tenants, "room", lambda self, first, last: [(first, last)]), FAIR
    ),
    Mutation("no group is overdue", replace(tenants, "is_overdue", lambda since, now: False), FAIR),
    Mutation("groups do not take turns", replace(ShardState, "stamp", lambda self, offset: None), FAIR | FIFO),
    Mutation("a group alone waits anew", replace(Tenants, "_is_alone", lambda self, group: False), FAIR),
    Mutation("turns outlive their message", replace(Tenants, "withdrawn", lambda self, first, last: None), FAIR),
    Mutation("arrivals are overlooked", replace(Tenants, "arrived", lambda self, first, last: None), FAIR),
    Mutation("groups keep old attributes", replace(ShardState, "forget_tenants", lambda self: None), FAIR),
    Mutation(
        "expiry makes no room in a group",
        replace(ShardMachine, "blocks", property(lambda self: self._state.attributes.fifo)),
        FAIR,
    ),
    # deliveries into a table
    Mutation("slots are used again with their number", slots_are_used_again_with_their_number, DELIVERIES),
    Mutation("every release removes the mark", every_release_removes_the_mark, DELIVERIES),
    Mutation("what is undecided is visible", what_is_undecided_is_visible, DELIVERIES),
    Mutation("a decision names the slot alone", a_decision_names_the_slot_alone, DELIVERIES),
    Mutation("receipts outlive the decision", receipts_outlive_the_decision, DELIVERIES),
    Mutation("parts keep their number", parts_keep_their_number, DELIVERIES),
    Mutation("expiry takes what is undecided", expiry_takes_what_is_undecided, DELIVERIES),
    Mutation("a mark is removed although a table is recorded", a_recorded_table_is_overlooked, DELIVERIES),
]


@each_case(MUTATIONS)
def test_machine_and_model_agree_until_a_rule_is_missing(case: Case) -> None:
    case.run()
