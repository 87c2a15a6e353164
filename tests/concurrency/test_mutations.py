"""Mutations of a queue in several processes: each guarantee, and the safeguards that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency import test_stops as stops
from concurrency.harness import apart, check_log, drain, shard_of, small_segments, without_merging
from concurrency.stopping import short_logs, without_turns
from lakequeue import (
    LakeQueue,
    LakeQueueError,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    ReceiptHandleIsInvalid,
)
from lakequeue.runtime.calls import Call
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage import layout
from lakequeue.storage.engines.interface import LostRace
from lakequeue.storage.engines.point import PointTable
from lakequeue.storage.folder import Folder
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages import merge_segments
from lakequeue.storage.messages.append import Appender
from lakequeue.storage.messages.read import LogReader
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, shown_by


@attrs.frozen
class TwoProcesses:
    """Two processes on one queue."""

    patch: Patch
    clock: ManualClock
    here: LakeQueue
    there: LakeQueue
    queue: Queue
    other: Queue


def overwrite_log_entries(folder: Folder, name: str, data: bytes, **_: Any) -> bool:
    folder.write(name, data)
    return True


# --- scenarios


def offsets_are_given_once(on: TwoProcesses) -> None:
    on.queue.send("0")
    on.other.send("1")
    shard_of(on.queue)._open_appender().table.refresh()  # as a merge of segments does
    on.queue.send("2")
    assert [row.body for row in check_log(on.queue)] == ["0", "1", "2"]


def a_stale_sender_decides_again(on: TwoProcesses) -> None:
    on.queue.send("0")
    on.other.send("1")
    on.queue.send("2")
    assert [row.body for row in check_log(on.queue)] == ["0", "1", "2"]


def a_stale_consumer_decides_again(on: TwoProcesses) -> None:
    for body in "ab":
        on.queue.send(body)
    shard_of(on.queue).query(lambda machine: machine)
    held = [*on.other.receive(), *on.queue.receive()]
    assert [message.body for message in held] == ["a", "b"]


def a_message_is_held_once(on: TwoProcesses) -> None:
    for body in "ab":
        on.queue.send(body)
    shard_of(on.queue).query(lambda machine: machine)  # knows the shard as it is now
    held = on.other.receive()
    shard_of(on.queue)._open_ledger().table.refresh()
    held += on.queue.receive()
    assert [message.body for message in held] == ["a", "b"]


def a_deleted_message_stays_away(on: TwoProcesses) -> None:
    for body in "ab":
        on.queue.send(body)
    first, second = on.queue.receive(max_messages=2)
    on.other.delete(first.receipt_handle)
    shard_of(on.queue)._open_ledger().table.refresh()
    on.patch.setattr(Ledger, "_wants_compaction", lambda *_: True)  # writes every run anew
    on.queue.change_visibility(second.receipt_handle, 0)
    on.clock.advance(30)
    third = apart(on.here.root, on.clock, 1)[0].queue("orders")
    assert drain(third) == ["b"]


def an_append_that_landed_and_raised_is_not_repeated(on: TwoProcesses) -> None:
    original = PointTable.append

    def lost_answer(*args: Any) -> None:
        on.patch.setattr(PointTable, "append", original)
        original(*args)
        raise LostRace("the answer was lost")

    on.patch.setattr(PointTable, "append", lost_answer)
    on.queue.send("once")
    assert [row.body for row in check_log(on.queue)] == ["once"]


def a_claim_that_landed_and_raised_is_answered(on: TwoProcesses) -> None:
    original = PointTable.merge
    on.queue.send("a")

    def lost_answer(*args: Any) -> None:
        on.patch.setattr(PointTable, "merge", original)
        original(*args)
        raise LostRace("the answer was lost")

    on.patch.setattr(PointTable, "merge", lost_answer)
    assert [message.body for message in on.queue.receive()] == ["a"]


def undelivered_messages_survive_merging_and_dropping(on: TwoProcesses) -> None:
    small_segments(on.patch)
    for number in range(9):
        on.queue.send(str(number))
    assert drain(on.other) == [str(number) for number in range(9)]


def overlapping_merges_leave_every_row_there_once(on: TwoProcesses) -> None:
    small_segments(on.patch)
    with without_merging(on.patch):
        for number in range(12):
            on.queue.send(str(number))
    mine, theirs = (shard_of(queue)._open_appender() for queue in (on.queue, on.other))
    mine.refresh()
    theirs.refresh()
    replace = PointTable.replace

    def overtaken(*args: Any) -> None:
        on.patch.setattr(PointTable, "replace", replace)
        merge_segments.merge_recent(theirs.table, 0)
        replace(*args)

    on.patch.setattr(PointTable, "replace", overtaken)
    merge_segments.merge_recent(mine.table, 0)
    assert len(check_log(on.queue)) == 12


def an_empty_answer_is_a_fresh_one(on: TwoProcesses) -> None:
    on.queue.send("a")
    held = on.queue.receive()
    on.other.change_visibility(held[0].receipt_handle, 0)
    assert [message.body for message in on.queue.receive()] == ["a"]


def an_empty_answer_has_seen_the_newest_messages(on: TwoProcesses) -> None:
    on.queue.send("later", delay=60)
    assert on.queue.receive() == []
    on.other.send("now")
    assert [message.body for message in on.queue.receive()] == ["now"]


def a_forged_receipt_deletes_nothing(on: TwoProcesses) -> None:
    for body in "ab":
        on.queue.send(body)
    mine, theirs = on.queue.receive(max_messages=2)
    key, incarnation, shard, offset, lease, mac = theirs.receipt_handle.split("-")
    forged = "-".join([key, incarnation, shard, offset, lease, mac[::-1]])
    with pytest.raises(ReceiptHandleIsInvalid):
        on.queue.delete(forged)
    on.clock.advance(30)
    assert drain(on.queue) == ["a", "b"]


def an_old_receipt_deletes_nothing(on: TwoProcesses) -> None:
    on.queue.send("a")
    old = on.queue.receive(visibility_timeout=5)[0]
    on.clock.advance(5)
    assert on.other.receive()
    on.queue.delete(old.receipt_handle)
    on.clock.advance(30)
    assert drain(on.other) == ["a"]


def a_failed_receive_hides_nothing(on: TwoProcesses) -> None:
    on.queue.send("a")
    shard_of(on.queue).query(lambda machine: machine)

    def broken(*_: Any) -> None:
        raise OSError("no space left on device")

    with on.patch.context() as patch:
        patch.setattr(PointTable, "merge", broken)
        with pytest.raises(QueueClientError):
            on.queue.receive()
    assert [message.receive_count for message in on.queue.receive()] == [1]


def a_throttled_send_stored_nothing(on: TwoProcesses) -> None:
    on.patch.setattr("lakequeue.storage.engines.retry.ATTEMPTS", 2)
    on.patch.setattr("lakequeue.storage.engines.commit._REPEATS", 2)
    on.patch.setattr("lakequeue.storage.engines.retry.back_off", lambda _: None)
    original = PointTable.append

    def refused(*_: Any) -> None:
        raise LostRace("conflict")

    on.queue.send("a")
    on.patch.setattr(PointTable, "append", refused)
    with pytest.raises(LakeQueueError):
        on.queue.send("b")
    on.patch.setattr(PointTable, "append", original)
    assert [row.body for row in check_log(on.queue)] == ["a"]


def a_deletion_that_was_cut_short_is_finished_by_others(on: TwoProcesses) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with on.patch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(on.here._runtime, "update", killed)  # the shards are closed, the catalog does not know
        on.here.delete_queue("orders")
    with suppress(QueueDoesNotExist):
        on.other.send("a")
    assert on.there.list_queues() == []


def another_process_settles_what_one_received(on: TwoProcesses) -> None:
    on.queue.send("a")
    handle = on.queue.receive()[0].receipt_handle
    on.other.delete(handle)
    on.clock.advance(30)
    assert drain(on.queue) == []


def a_closed_log_takes_nothing(on: TwoProcesses) -> None:
    on.other.send("a")
    on.here.delete_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        on.other.send("b")
    assert [row.body for row in check_log(on.queue)] == ["a"]


def silence_of_a_trimmed_log_proves_nothing(on: TwoProcesses) -> None:
    on.patch.setattr("lakequeue.storage.engines.commit.local_path", lambda _: None)  # as where there is no lock
    append, landed = PointTable.append, PointTable.landed
    on.queue.send("first")

    def landed_and_raised(table: PointTable, *args: Any) -> None:
        on.patch.setattr(PointTable, "append", append)
        append(table, *args)
        entry = Path(table.path) / "_delta_log" / f"{table.version - 1:020}.json"
        on.patch.setattr(PointTable, "landed", lambda *_: entry.unlink())
        raise OSError("the answer was lost")

    on.patch.setattr(PointTable, "append", landed_and_raised)
    with pytest.raises(QueueClientError) as caught:
        on.queue.send("second")
    on.patch.setattr(PointTable, "landed", landed)
    assert caught.value.outcome_unknown


def a_late_send_into_an_idle_segment_survives(on: TwoProcesses) -> None:
    late = apart(on.here.root, ManualClock(), 1)[0].queue("orders")
    for number in range(3):
        late.send(str(number))
    on.clock.advance(2 * 3600)
    replace = PointTable.replace

    def overtaken(*_: Any) -> None:
        on.patch.setattr(PointTable, "replace", replace)
        late.send("late")
        raise LostRace("conflict")

    on.patch.setattr(PointTable, "replace", overtaken)
    on.queue.compact()
    assert [row.body for row in check_log(on.queue)] == ["0", "1", "2", "late"]


def a_message_whose_file_was_joined_and_removed_is_read(on: TwoProcesses) -> None:
    small_segments(on.patch)
    for name in ("MESSAGES", "RECEIPTS"):
        on.patch.setattr(layout, f"{name}_RETENTION", layout.Retention(0, 0))
    for number in range(9):
        on.other.send(str(number))
    shard_of(on.queue).query(lambda machine: machine)  # knows the files as they are now
    for _ in range(9):
        on.other.send("more")
    on.other.compact()
    rows = shard_of(on.queue).messages(0, 8)
    assert [row and row["body"] for row in rows] == [str(number) for number in range(9)]


# --- mutations


def join_the_open_segment_without_its_fence(patch: Patch) -> None:
    step = merge_segments._open_step

    def unfenced(*args: Any) -> Any:
        found = step(*args)
        return found and attrs.evolve(found, with_send=False)

    patch.setattr(merge_segments, "_open_step", unfenced)


def drop_whatever_is_closed(patch: Patch) -> None:
    merge = merge_segments.merge_recent
    patch.setattr("lakequeue.runtime.shard_sender.merge_recent", lambda table, *_: merge(table, 2**62))


def merge_without_a_fence(patch: Patch) -> None:
    commit = merge_segments.commit
    patch.setattr(merge_segments, "commit", lambda table, _, attempt: commit(table, {}, attempt))


def answer_from_memory(patch: Patch) -> None:
    init = Ledger.__init__

    def deaf(self: Ledger, table: Any) -> None:
        init(self, table)
        table.refresh = lambda: None  # it was opened on the newest snapshot

    patch.setattr(Ledger, "__init__", deaf)


def read_no_newer_log(patch: Patch) -> None:
    refresh = LogReader.refresh
    patch.setattr(LogReader, "refresh", lambda self: self.log if self.log.end else refresh(self))


def keep_the_machine_after_a_failure(patch: Patch) -> None:
    run = ShardService._run_commands

    def forgetful(self: ShardService, groups: Any) -> Any:
        machine = self._machine
        try:
            return run(self, groups)
        except BaseException:
            self._machine = machine
            raise

    patch.setattr(ShardService, "_run_commands", forgetful)


@contextmanager
def _without_finishing(queue: OpenQueue, verb: str) -> Iterator[Call]:
    with queue.root.storage_errors():
        yield Call()


def forget_leases_on_loading(patch: Patch) -> None:
    init = ShardMachine.__init__
    patch.setattr(
        ShardMachine,
        "__init__",
        lambda self, head, runs, *more: init(self, head, [run._replace(lease_id=None) for run in runs], *more),
    )


def clean_without_a_lock(patch: Patch) -> None:
    for module in ("cleaning", "engines.log_trimming"):
        patch.setattr(f"lakequeue.storage.{module}.committing", lambda *_, **__: nullcontext())


STOPPED = {
    shown_by(test, lambda on: ((on.queue, on.other), on.patch)): "6"
    for test in (
        stops.test_a_send_that_was_stopped_while_others_filled_and_trimmed_the_log_is_stored_once,
        stops.test_a_compactor_leaves_the_files_of_a_process_that_is_stopped_in_its_commit,
    )
}

MUTATIONS = [
    Mutation(
        "commit without a lock",
        replace("lakequeue.storage.engines.commit.committing", lambda *_, **__: nullcontext()),
        STOPPED,
    ),
    Mutation(
        "clean without a lock",
        clean_without_a_lock,
        STOPPED,
    ),
    Mutation(
        "take silence for no",
        replace("lakequeue.storage.engines.commit._in_log", lambda *_: True),
        {silence_of_a_trimmed_log_proves_nothing: "7"},
    ),
    Mutation(
        "join the open segment without its fence",
        join_the_open_segment_without_its_fence,
        {a_late_send_into_an_idle_segment_survives: "1"},
    ),
    Mutation(
        "read in the log as it was known",
        replace(ShardService, "messages", ShardService._read),
        {a_message_whose_file_was_joined_and_removed_is_read: "1"},
    ),
    Mutation(
        "overwrite log entries",
        replace(Folder, "create", overwrite_log_entries),
        {a_stale_sender_decides_again: "1", a_stale_consumer_decides_again: "2"},
    ),
    Mutation(
        "no check of the snapshot",
        replace("lakequeue.storage.engines.commit.holds", lambda *_: True),
        {offsets_are_given_once: "1", a_message_is_held_once: "2", a_deleted_message_stays_away: "3"},
    ),
    Mutation(
        "no search for the token",
        replace(PointTable, "landed", lambda *_: False),
        {an_append_that_landed_and_raised_is_not_repeated: "5", a_claim_that_landed_and_raised_is_answered: "7"},
    ),
    Mutation(
        "drop whatever is closed",
        drop_whatever_is_closed,
        {undelivered_messages_survive_merging_and_dropping: "1"},
    ),
    Mutation("merge without a fence", merge_without_a_fence, {overlapping_merges_leave_every_row_there_once: "1"}),
    Mutation("answer from memory", answer_from_memory, {an_empty_answer_is_a_fresh_one: "8"}),
    Mutation(
        "know the log as it was",
        replace("lakequeue.runtime.shard_ledger._short", lambda *_: False),
        {an_empty_answer_has_seen_the_newest_messages: "1"},
    ),
    Mutation("read no newer log", read_no_newer_log, {an_empty_answer_has_seen_the_newest_messages: "1"}),
    Mutation(
        "accept any mac",
        replace("lakequeue.model.receipt_handles.hmac.compare_digest", lambda *_: True),
        {a_forged_receipt_deletes_nothing: "3"},
    ),
    Mutation(
        "accept any lease",
        replace("lakequeue.shard.settle.holds", lambda *_: True),
        {an_old_receipt_deletes_nothing: "3"},
    ),
    Mutation(
        "keep the machine after a failure", keep_the_machine_after_a_failure, {a_failed_receive_hides_nothing: "7"}
    ),
    Mutation(
        "take a refused commit for landed",
        replace("lakequeue.storage.engines.commit._landed", lambda *_: True),
        {a_throttled_send_stored_nothing: "7"},
    ),
    Mutation(
        "leave deletions unfinished",
        replace(OpenQueue, "service", _without_finishing),
        {a_deletion_that_was_cut_short_is_finished_by_others: "6"},
    ),
    Mutation(
        "forget leases on loading", forget_leases_on_loading, {another_process_settles_what_one_received: "8"}
    ),
    Mutation(
        "send to closed logs", replace(Appender, "check_open", lambda _: None), {a_closed_log_takes_nothing: "7"}
    ),
]


def _two_processes(patch: Patch, root: Path) -> TwoProcesses:
    short_logs(patch)
    without_turns(patch)
    clock = ManualClock()
    here, there = apart(root, clock)
    return TwoProcesses(patch, clock, here, there, here.create_queue("orders"), there.create_queue("orders"))


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda patch: (_two_processes(patch, tmp_path),), (LakeQueueError, OSError, pytest.fail.Exception))
