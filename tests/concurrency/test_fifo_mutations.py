"""Mutations of FIFO queues in several processes: each guarantee, and the safeguards that it needs."""

from __future__ import annotations

from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.fifo_history import fifo_rows
from concurrency.harness import apart, application_id, check_log, drain, small_segments
from lakequeue import LakeQueueError, Message, Queue, SendEntry
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import IN_FLIGHT
from lakequeue.shard.state import ShardState
from lakequeue.storage import layout, ledger
from lakequeue.storage.engines.point import PointTable
from lakequeue.storage.messages import merge_segments
from lakequeue.storage.messages.append import Appender
from lakequeue.storage.messages.dedup_window import DedupWindow
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace


@attrs.frozen
class TwoProcesses:
    """Two processes on one FIFO queue."""

    patch: Patch
    clock: ManualClock
    queue: Queue
    other: Queue

    def third(self) -> Queue:
        """The queue, as a new process sees it."""
        return apart(self.queue._runtime.root.path, self.clock, 1)[0].queue("orders.fifo")


def _send(queue: Queue, *bodies: str) -> None:
    """Sends messages whose group is their first letter."""
    entries = [SendEntry(body, group_id=body[0], dedup_id=body) for body in bodies]
    assert not queue.send_batch(entries).failed


def _bodies(messages: list[Message]) -> list[str]:
    return [message.body for message in messages]


# --- scenarios


def an_id_that_others_sent_is_a_duplicate(on: TwoProcesses) -> None:
    _send(on.queue, "a1")
    theirs = on.other.send("theirs", group_id="g", dedup_id="d")
    mine = on.queue.send("mine", group_id="g", dedup_id="d")
    assert (mine.message_id, mine.sequence_number) == (theirs.message_id, theirs.sequence_number)
    assert [row.body for row in fifo_rows(on.queue)] == ["a1", "theirs"]


def an_id_that_others_send_meanwhile_is_a_duplicate(on: TwoProcesses) -> None:
    _send(on.queue, "a1")
    append = PointTable.append

    def overtaken(*args: Any) -> None:
        on.patch.setattr(PointTable, "append", append)
        on.other.send("theirs", group_id="g", dedup_id="d")
        append(*args)

    on.patch.setattr(PointTable, "append", overtaken)
    on.queue.send("mine", group_id="g", dedup_id="d")
    assert [row.body for row in check_log(on.queue)] == ["a1", "theirs"]


def a_duplicate_does_not_prolong_the_window(on: TwoProcesses) -> None:
    for seconds in (0, 200, 99, 1):
        on.clock.advance(seconds)
        on.other.send(f"after {seconds} more", group_id="g", dedup_id="d")
    assert _bodies(on.queue.receive(max_messages=10)) == ["after 0 more", "after 1 more"]


def a_purge_by_others_frees_the_ids(on: TwoProcesses) -> None:
    _send(on.queue, "a1", "a2")
    on.other.purge()
    _send(on.queue, "a1")
    _send(on.other, "a2", "a1")
    assert drain(on.queue) == ["a1", "a2"]


def ids_outlive_their_messages(on: TwoProcesses) -> None:
    small_segments(on.patch)
    for number in range(4):
        _send(on.queue, f"a{number}")
    messages = on.other.receive(max_messages=4)
    on.other.delete_batch([message.receipt_handle for message in messages])
    on.clock.advance(299)
    for number in range(4, 10):
        _send(on.queue, f"a{number}")
    assert application_id(on.queue, layout.FILES_ID) > 0  # a time to drop what is below the floor
    _send(on.third(), "a0", "a3", "a5", "new")
    assert drain(on.other) == [*(f"a{number}" for number in range(4, 10)), "new"]


def a_group_waits_for_what_others_received(on: TwoProcesses) -> None:
    _send(on.queue, "a1", "a2", "b1")
    held = on.queue.receive()
    assert _bodies(held) == ["a1"]
    assert _bodies(on.other.receive(max_messages=10)) == ["b1"]
    on.queue.delete(held[0].receipt_handle)
    assert _bodies(on.third().receive(max_messages=10)) == ["a2"]


def a_message_that_was_handed_back_comes_before_those_behind_it(on: TwoProcesses) -> None:
    _send(on.queue, "a1", "a2", "a3")
    held = on.queue.receive(max_messages=2)
    on.other.change_visibility(held[0].receipt_handle, 0)
    assert _bodies(on.third().receive(max_messages=10)) == ["a1"]


def sequence_numbers_are_the_same_for_everybody_and_rise(on: TwoProcesses) -> None:
    numbers = [one.send(f"{n}", group_id="g", dedup_id=f"{n}").sequence_number for n in (1, 2) for one in _all(on)]
    assert numbers[0] == numbers[1] == numbers[2] < numbers[3] == numbers[4] == numbers[5]  # type: ignore[operator]
    received = on.third().receive(max_messages=2)
    assert [message.sequence_number for message in received] == [numbers[0], numbers[3]]


def _all(on: TwoProcesses) -> list[Queue]:
    return [on.queue, on.other, on.third()]


def another_process_repeats_a_receive(on: TwoProcesses) -> None:
    _send(on.queue, "b1", "a1", "b2", "a2")
    first = on.queue.receive(max_messages=4, attempt_id="x")
    assert _bodies(first) == ["b1", "b2", "a1", "a2"]
    for one in _all(on):
        on.clock.advance(20)
        assert one.receive(attempt_id="x") == first


def an_attempt_ends_with_the_first_delete(on: TwoProcesses) -> None:
    _send(on.queue, "a1", "a2", "b1")
    first = on.queue.receive(max_messages=2, attempt_id="x")
    on.other.delete(first[0].receipt_handle)
    assert _bodies(on.third().receive(max_messages=10, attempt_id="x")) == ["b1"]


# --- mutations


def look_for_duplicates_before_the_first_try_only(patch: Patch) -> None:
    run, window = ShardService._run_sends, Appender.window

    def judged_once(self: ShardService, sends: Any) -> Any:
        with patch.context() as inner:
            inner.setattr(Appender, "window", cache(window))
            return run(self, sends)

    patch.setattr(ShardService, "_run_sends", judged_once)


def drop_segments_with_live_ids(patch: Patch) -> None:
    merge = merge_segments.merge_recent
    patch.setattr(
        "lakequeue.runtime.shard_sender.merge_recent", lambda table, shard, floor, _: merge(table, shard, floor)
    )


def forget_what_is_in_flight_on_loading(patch: Patch) -> None:
    init = ShardMachine.__init__
    patch.setattr(
        ShardMachine,
        "__init__",
        lambda self, head, runs, *rest: init(self, head, [run for run in runs if run.state != IN_FLIGHT], *rest),
    )


def _next_available(state: ShardState, offset: int) -> int:
    return next((max(first, offset) for first, last in state.available if last >= offset), state.log.end)


def count_sequence_numbers_in_memory(patch: Patch) -> None:
    counters = (count(10**19), count(10**19))
    patch.setattr("lakequeue.operations.send.sequence_number", lambda *_: str(next(counters[0])))
    patch.setattr("lakequeue.operations.receive.sequence_number", lambda *_: str(next(counters[1])))


def store_no_attempts(patch: Patch) -> None:
    _store_otherwise(patch, attempt_id=None, attempted_at=None, attempt_place=None)


def store_no_places_of_attempts(patch: Patch) -> None:
    _store_otherwise(patch, attempt_place=None)


def _store_otherwise(patch: Patch, **columns: None) -> None:
    rows = ledger.run_rows
    patch.setattr(
        ledger,
        "run_rows",
        lambda puts, *rest, **more: rows([put._replace(**columns) for put in puts], *rest, **more),
    )


def let_attempts_live_on(patch: Patch) -> None:
    patch.setattr(ShardState, "forget_attempt", lambda *_: None)
    patch.setattr("lakequeue.shard.state._unattempted", lambda run: run)


MUTATIONS = [
    Mutation(
        "look for duplicates before the first try only",
        look_for_duplicates_before_the_first_try_only,
        {an_id_that_others_send_meanwhile_is_a_duplicate: "DDP-10"},
    ),
    Mutation(
        "know own ids only",
        replace(DedupWindow, "follow", lambda self, table, files, end, now: setattr(self, "end", end)),
        {an_id_that_others_sent_is_a_duplicate: "DDP-1"},
    ),
    Mutation(
        "forget no ids",
        replace(DedupWindow, "advance", lambda *_: None),
        {a_duplicate_does_not_prolong_the_window: "DDP-9"},
    ),
    Mutation(
        "overlook purges",
        replace(ShardService, "purged_offset", lambda _: 0),
        {a_purge_by_others_frees_the_ids: "DDP-13"},
    ),
    Mutation("drop segments with live ids", drop_segments_with_live_ids, {ids_outlive_their_messages: "RET-11"}),
    Mutation(
        "forget what is in flight on loading",
        forget_what_is_in_flight_on_loading,
        {a_group_waits_for_what_others_received: "FIF-3"},
    ),
    Mutation(
        "go past hidden messages",
        replace(ShardState, "stored_from", _next_available),
        {
            a_group_waits_for_what_others_received: "FIF-4",
            a_message_that_was_handed_back_comes_before_those_behind_it: "FIF-9",
        },
    ),
    Mutation(
        "count sequence numbers in memory",
        count_sequence_numbers_in_memory,
        {sequence_numbers_are_the_same_for_everybody_and_rise: "SEQ-3"},
    ),
    Mutation("store no attempts", store_no_attempts, {another_process_repeats_a_receive: "ATT-3"}),
    Mutation(
        "store no places of attempts", store_no_places_of_attempts, {another_process_repeats_a_receive: "ATT-1"}
    ),
    Mutation("let attempts live on", let_attempts_live_on, {an_attempt_ends_with_the_first_delete: "ATT-5"}),
]


def _two_processes(patch: Patch, root: Path) -> TwoProcesses:
    clock = ManualClock()
    here, there = apart(root, clock)
    queue = here.create_queue("orders.fifo", fifo=True)
    return TwoProcesses(patch, clock, queue, there.queue("orders.fifo"))


@each_case(MUTATIONS)
def test_the_rule_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda patch: (_two_processes(patch, tmp_path),), (LakeQueueError, pytest.fail.Exception))
