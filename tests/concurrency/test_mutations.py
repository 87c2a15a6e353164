"""Each guarantee of the design has a check here that holds, and fails once its safeguard is taken out.

A scenario is a function that asserts. It is run twice: as it is, and with one mutation of the code, under
which it must fail; a safeguard that no test misses could be lost without anybody noticing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.rig import apart, check_log, drain, shard_of, small_segments, without_merging
from concurrency.stopping import busy_hours, older, short_logs, stopped_in
from lakequeue import (
    LakeQueue,
    LakeQueueError,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    ReceiptHandleIsInvalid,
)
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard import ShardMachine
from lakequeue.storage import layout
from lakequeue.storage.engines.interface import LostRace
from lakequeue.storage.engines.point import PointTable
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages import merge_segments
from lakequeue.storage.messages.append import Appender
from lakequeue.storage.messages.read import LogReader
from lakequeue.testing import ManualClock

Patch = pytest.MonkeyPatch


@attrs.frozen
class Stage:
    """Two processes on one queue."""

    patch: Patch
    clock: ManualClock
    here: LakeQueue
    there: LakeQueue
    queue: Queue
    other: Queue


# --- scenarios


def offsets_are_given_once(on: Stage) -> None:
    on.queue.send("0")
    on.other.send("1")
    shard_of(on.queue)._open_appender().table.refresh()  # as a merge of segments does
    on.queue.send("2")
    assert [row.body for row in check_log(on.queue)] == ["0", "1", "2"]


def a_message_is_held_once(on: Stage) -> None:
    for body in "ab":
        on.queue.send(body)
    shard_of(on.queue).look(lambda machine: machine)  # knows the shard as it is now
    held = on.other.receive()
    shard_of(on.queue)._open_ledger().table.refresh()
    held += on.queue.receive()
    assert [message.body for message in held] == ["a", "b"]


def a_deleted_message_stays_away(on: Stage) -> None:
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


def an_append_that_landed_and_raised_is_not_repeated(on: Stage) -> None:
    original = PointTable.append

    def lost_answer(*args: Any) -> None:
        on.patch.setattr(PointTable, "append", original)
        original(*args)
        raise LostRace("the answer was lost")

    on.patch.setattr(PointTable, "append", lost_answer)
    on.queue.send("once")
    assert [row.body for row in check_log(on.queue)] == ["once"]


def a_claim_that_landed_and_raised_is_answered(on: Stage) -> None:
    original = PointTable.merge
    on.queue.send("a")

    def lost_answer(*args: Any) -> None:
        on.patch.setattr(PointTable, "merge", original)
        original(*args)
        raise LostRace("the answer was lost")

    on.patch.setattr(PointTable, "merge", lost_answer)
    assert [message.body for message in on.queue.receive()] == ["a"]


def undelivered_messages_survive_merging_and_dropping(on: Stage) -> None:
    small_segments(on.patch)
    for number in range(9):
        on.queue.send(str(number))
    assert drain(on.other) == [str(number) for number in range(9)]


def overlapping_merges_leave_every_row_there_once(on: Stage) -> None:
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


def an_empty_answer_is_a_fresh_one(on: Stage) -> None:
    on.queue.send("a")
    held = on.queue.receive()
    on.other.change_visibility(held[0].receipt_handle, 0)
    assert [message.body for message in on.queue.receive()] == ["a"]


def an_empty_answer_has_seen_the_newest_messages(on: Stage) -> None:
    on.queue.send("later", delay=60)
    assert on.queue.receive() == []
    on.other.send("now")
    assert [message.body for message in on.queue.receive()] == ["now"]


def a_forged_receipt_deletes_nothing(on: Stage) -> None:
    for body in "ab":
        on.queue.send(body)
    mine, theirs = on.queue.receive(max_messages=2)
    key, incarnation, shard, offset, lease, mac = theirs.receipt_handle.split("-")
    forged = "-".join([key, incarnation, shard, offset, lease, mac[::-1]])
    with pytest.raises(ReceiptHandleIsInvalid):
        on.queue.delete(forged)
    on.clock.advance(30)
    assert drain(on.queue) == ["a", "b"]


def an_old_receipt_deletes_nothing(on: Stage) -> None:
    on.queue.send("a")
    old = on.queue.receive(visibility_timeout=5)[0]
    on.clock.advance(5)
    assert on.other.receive()
    on.queue.delete(old.receipt_handle)
    on.clock.advance(30)
    assert drain(on.other) == ["a"]


def a_failed_receive_hides_nothing(on: Stage) -> None:
    on.queue.send("a")
    shard_of(on.queue).look(lambda machine: machine)

    def broken(*_: Any) -> None:
        raise OSError("no space left on device")

    with on.patch.context() as patch:
        patch.setattr(PointTable, "merge", broken)
        with pytest.raises(QueueClientError):
            on.queue.receive()
    assert [message.receive_count for message in on.queue.receive()] == [1]


def a_throttled_send_stored_nothing(on: Stage) -> None:
    on.patch.setattr("lakequeue.runtime.shard_service.ATTEMPTS", 2)
    on.patch.setattr("lakequeue.storage.engines.commit._REPEATS", 2)
    on.patch.setattr("lakequeue.storage.engines.commit.back_off", lambda _: None)
    original = PointTable.append

    def refused(*_: Any) -> None:
        raise LostRace("conflict")

    on.queue.send("a")
    on.patch.setattr(PointTable, "append", refused)
    with pytest.raises(LakeQueueError):
        on.queue.send("b")
    on.patch.setattr(PointTable, "append", original)
    assert [row.body for row in check_log(on.queue)] == ["a"]


def a_deletion_that_was_cut_short_is_finished_by_others(on: Stage) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with on.patch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(on.here, "update", killed)  # the shards are closed, the catalog does not know
        on.here.delete_queue("orders")
    with suppress(QueueDoesNotExist):
        on.other.send("a")
    assert on.there.list_queues() == []


def another_process_settles_what_one_received(on: Stage) -> None:
    on.queue.send("a")
    handle = on.queue.receive()[0].receipt_handle
    on.other.delete(handle)
    on.clock.advance(30)
    assert drain(on.queue) == []


def a_closed_log_takes_nothing(on: Stage) -> None:
    on.other.send("a")
    on.here.delete_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        on.other.send("b")
    assert [row.body for row in check_log(on.queue)] == ["a"]


def a_stopped_send_is_stored_once(on: Stage) -> None:
    on.queue.send("first")
    stopped_in(on.patch, "append", lambda: busy_hours(on.other))
    on.queue.send("stopped")
    assert [row.body for row in check_log(on.other)].count("stopped") == 1


def the_files_of_a_stopped_commit_stay(on: Stage) -> None:
    on.patch.setattr("lakequeue.storage.cleaning.PATIENCE", 0.05)
    on.queue.send("a")
    [message] = on.queue.receive()

    def an_hour_passes() -> None:
        older(on.here.root, 2 * 3600)
        on.other.compact()

    stopped_in(on.patch, "merge", an_hour_passes)
    on.queue.delete(message.receipt_handle)
    assert apart(on.here.root, on.clock, 1)[0].queue("orders").counts().in_flight == 0


def silence_of_a_trimmed_log_proves_nothing(on: Stage) -> None:
    on.patch.setattr("lakequeue.storage.engines.commit.local_path", lambda _: None)  # as where there is no lock
    append, landed = PointTable.append, PointTable.landed
    on.queue.send("first")

    def landed_and_raised(table: PointTable, *args: Any) -> None:
        on.patch.setattr(PointTable, "append", append)
        append(table, *args)
        entry = Path(table.path) / "_delta_log" / f"{table.version - 1:020}.json"
        on.patch.setattr(PointTable, "landed", lambda *_: entry.unlink() or False)
        raise OSError("the answer was lost")

    on.patch.setattr(PointTable, "append", landed_and_raised)
    with pytest.raises(QueueClientError) as caught:
        on.queue.send("second")
    on.patch.setattr(PointTable, "landed", landed)
    assert caught.value.outcome_unknown


def a_late_send_into_an_idle_segment_survives(on: Stage) -> None:
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


def a_message_whose_file_was_joined_and_removed_is_read(on: Stage) -> None:
    small_segments(on.patch)
    for name in ("MESSAGES", "RECEIPTS"):
        on.patch.setattr(layout, f"{name}_RETENTION", layout.Retention(0, 0))
    for number in range(9):
        on.other.send(str(number))
    shard_of(on.queue).look(lambda machine: machine)  # knows the files as they are now
    for _ in range(9):
        on.other.send("more")
    on.other.compact()
    rows = shard_of(on.queue).messages(0, 8)
    assert [row and row["body"] for row in rows] == [str(number) for number in range(9)]


# --- mutations


def commit_without_a_lock(patch: Patch) -> None:
    patch.setattr("lakequeue.storage.engines.commit.committing", lambda *_, **__: nullcontext())


def clean_without_a_lock(patch: Patch) -> None:
    patch.setattr("lakequeue.storage.cleaning.committing", lambda *_, **__: nullcontext())


def take_silence_for_no(patch: Patch) -> None:
    patch.setattr("lakequeue.storage.engines.commit._in_log", lambda *_: True)


def join_the_open_segment_without_its_fence(patch: Patch) -> None:
    step = merge_segments._open_step

    def unfenced(*args: Any) -> Any:
        found = step(*args)
        return found and attrs.evolve(found, with_send=False)

    patch.setattr(merge_segments, "_open_step", unfenced)


def read_in_the_log_as_it_was_known(patch: Patch) -> None:
    patch.setattr(ShardService, "messages", ShardService._read)


def no_check_of_the_snapshot(patch: Patch) -> None:
    patch.setattr("lakequeue.storage.engines.commit.holds", lambda *_: True)


def no_search_for_the_token(patch: Patch) -> None:
    patch.setattr(PointTable, "landed", lambda *_: False)


def drop_whatever_is_closed(patch: Patch) -> None:
    merge = merge_segments.merge_recent
    patch.setattr("lakequeue.runtime.shard_service.merge_recent", lambda table, *_: merge(table, 2**62))


def merge_without_a_fence(patch: Patch) -> None:
    commit = merge_segments.commit
    patch.setattr(merge_segments, "commit", lambda table, _, attempt: commit(table, {}, attempt))


def answer_from_memory(patch: Patch) -> None:
    init = Ledger.__init__

    def deaf(self: Ledger, table: Any) -> None:
        init(self, table)
        loaded = []
        refresh = table.refresh
        table.refresh = lambda: loaded or (loaded.append(1), refresh())

    patch.setattr(Ledger, "__init__", deaf)


def know_the_log_as_it_was(patch: Patch) -> None:
    patch.setattr("lakequeue.runtime.shard_service._short", lambda *_: False)


def read_no_newer_log(patch: Patch) -> None:
    refresh = LogReader.refresh
    patch.setattr(LogReader, "refresh", lambda self: self.log if self.log.end else refresh(self))


def accept_any_mac(patch: Patch) -> None:
    patch.setattr("lakequeue.model.receipt_handles.hmac.compare_digest", lambda *_: True)


def accept_any_lease(patch: Patch) -> None:
    patch.setattr("lakequeue.shard.settle.holds", lambda *_: True)


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


def take_a_refused_commit_for_landed(patch: Patch) -> None:
    patch.setattr("lakequeue.storage.engines.commit._landed", lambda *_: True)


def leave_deletions_unfinished(patch: Patch) -> None:
    # only the deletion that a caller asked for runs to its end
    patch.setattr(Queue, "service", _without_finishing)


@contextmanager
def _without_finishing(queue: Queue) -> Iterator[None]:
    with queue.owner.storage_errors():
        yield


def forget_leases_on_loading(patch: Patch) -> None:
    init = ShardMachine.__init__
    patch.setattr(
        ShardMachine,
        "__init__",
        lambda self, head, runs, *more: init(self, head, [run._replace(lease_id=None) for run in runs], *more),
    )


def send_to_closed_logs(patch: Patch) -> None:
    patch.setattr(Appender, "check_open", lambda _: None)


PAIRS: list[tuple[int, Callable[[Stage], None], Callable[[Patch], None]]] = [
    (1, undelivered_messages_survive_merging_and_dropping, drop_whatever_is_closed),
    (1, overlapping_merges_leave_every_row_there_once, merge_without_a_fence),
    (1, offsets_are_given_once, no_check_of_the_snapshot),
    (1, an_empty_answer_has_seen_the_newest_messages, know_the_log_as_it_was),
    (1, an_empty_answer_has_seen_the_newest_messages, read_no_newer_log),
    (2, a_message_is_held_once, no_check_of_the_snapshot),
    (3, a_deleted_message_stays_away, no_check_of_the_snapshot),
    (3, an_old_receipt_deletes_nothing, accept_any_lease),
    (3, a_forged_receipt_deletes_nothing, accept_any_mac),
    (5, an_append_that_landed_and_raised_is_not_repeated, no_search_for_the_token),
    (6, a_deletion_that_was_cut_short_is_finished_by_others, leave_deletions_unfinished),
    (7, a_claim_that_landed_and_raised_is_answered, no_search_for_the_token),
    (7, a_failed_receive_hides_nothing, keep_the_machine_after_a_failure),
    (7, a_throttled_send_stored_nothing, take_a_refused_commit_for_landed),
    (7, a_closed_log_takes_nothing, send_to_closed_logs),
    (8, an_empty_answer_is_a_fresh_one, answer_from_memory),
    (8, another_process_settles_what_one_received, forget_leases_on_loading),
    (6, a_stopped_send_is_stored_once, commit_without_a_lock),
    (6, a_stopped_send_is_stored_once, clean_without_a_lock),
    (6, the_files_of_a_stopped_commit_stay, commit_without_a_lock),
    (6, the_files_of_a_stopped_commit_stay, clean_without_a_lock),
    (7, silence_of_a_trimmed_log_proves_nothing, take_silence_for_no),
    (1, a_late_send_into_an_idle_segment_survives, join_the_open_segment_without_its_fence),
    (1, a_message_whose_file_was_joined_and_removed_is_read, read_in_the_log_as_it_was_known),
]


def _stage(patch: Patch, root: Path) -> Stage:
    short_logs(patch)
    clock = ManualClock()
    here, there = apart(root, clock)
    return Stage(patch, clock, here, there, here.create_queue("orders"), there.create_queue("orders"))


@pytest.mark.parametrize(
    ("guarantee", "scenario", "mutation"),
    PAIRS,
    ids=[f"{number}-{scenario.__name__}-{mutation.__name__}" for number, scenario, mutation in PAIRS],
)
def test_the_guarantee_holds_and_its_check_can_fail(
    tmp_path: Path,
    guarantee: int,
    scenario: Callable[[Stage], None],
    mutation: Callable[[Patch], None],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        scenario(_stage(patch, tmp_path / "as-it-is"))
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        stage = _stage(patch, tmp_path / "mutated")
        with pytest.raises((AssertionError, LakeQueueError, OSError, pytest.fail.Exception)):
            scenario(stage)
