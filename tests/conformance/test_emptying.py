"""Rows of settled messages lose their content behind an older stored message; nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from concurrency.harness import apart, check_log, log_rows, small_segments
from concurrency.steps import meanwhile
from insides import compact, engine_of, messages_of, receipts_of, reopen, shard_of
from lakequeue import DamagedTable, LakeQueue, LakeQueueError, Message, MessageState, Queue, RedrivePolicy, Repair
from lakequeue.model.clock import from_micros
from lakequeue.model.names import shard_of_group
from lakequeue.operations import copy as copying
from lakequeue.operations import judged_log, move
from lakequeue.operations import repair as repairing
from lakequeue.runtime import open_shard
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.shard.runs import Head
from lakequeue.storage.bulk import lease_batches
from lakequeue.storage.delta_log import LOG, LiveFile
from lakequeue.storage.engines.log_trimming import version_of
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import LocalFolder, RemoteFolder
from lakequeue.storage.inspection.shards import FoundShard
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages import merge_segments
from lakequeue.storage.messages.emptied_rows import ForgottenMessages
from lakequeue.storage.messages.merge_segments import MergeCounts
from lakequeue.storage.messages.read import LogFile, ShardLog
from lakequeue.storage.repair.steps import RepairStep
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace

HOUR = 3_600


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(patch: Patch) -> None:
    small_segments(patch)
    patch.setattr(merge_segments, "CUT_BYTES", 0)


def used(queue: Queue, bodies: Sequence[str], **fields: Any) -> None:
    """Sends, receives and deletes messages, a commit each; they land in a closed segment."""
    for number, body in enumerate(bodies):
        queue.send(body, **fields, **({"dedup_id": body} if queue.fifo else {}))
        [message] = queue.receive(1, visibility_timeout=60 + number)
        assert message.body == body
        queue.delete(message)


def one_old(queue: Queue, **fields: Any) -> Message:
    """A message that stays in flight for long."""
    queue.send("old", **fields, **({"dedup_id": "old"} if queue.fifo else {}))
    [message] = queue.receive(1, visibility_timeout=12 * HOUR)
    return message


def with_sent(lq: LakeQueue, bodies: str = "abcdefg", old: bool = True) -> Queue:
    queue = lq.create_queue("orders")
    if old:
        one_old(queue)
    for body in bodies:
        queue.send(body)
    return queue


def seven_held(lq: LakeQueue) -> tuple[Queue, list[Message]]:
    """A queue with an old message, seven in flight that can be emptied once they are deleted, and one behind."""
    queue = with_sent(lq)
    held = queue.receive(7, visibility_timeout=60)
    queue.send("open")
    return queue, held


def seven_used(lq: LakeQueue, **attributes: Any) -> Queue:
    """The same queue after seven messages were deleted one by one."""
    queue = lq.create_queue("orders", **attributes)
    one_old(queue)
    used(queue, list("abcdefg"), attributes={"name": "x"})
    queue.send("open")
    return queue


def emptied_elsewhere(lq: LakeQueue, queue: Queue, held: Sequence[Message]) -> None:
    """Another process deletes messages, and a pass of the compactor empties them."""
    queue.delete_batch(held)
    compact(apart(lq.root, lq.clock, 1)[0])


def comes_once(lq: LakeQueue, clock: ManualClock, *bodies: str) -> None:
    """What a new process receives once all timeouts have ended."""
    clock.advance(12 * HOUR)
    assert sorted(taken(reopen(lq).queue("orders"))) == sorted(bodies)


def full(queue: Queue) -> list[str]:
    """The bodies that the log has."""
    return [row.body for row in log_rows(queue) if row.body is not None]


def taken(queue: Queue) -> list[str]:
    """Receives and deletes all that is visible."""
    found: list[str] = []
    while messages := queue.receive(100):
        found += [message.body for message in messages]
        queue.delete_batch(messages).raise_for_failures()
    return found


def sound(lq: LakeQueue) -> None:
    assert reopen(lq).check() == []


def ledger_of(queue: Queue) -> Table:
    return shard_of(queue).tables.engine.open(receipts_of(queue))


def files_of(lq: LakeQueue, table: str) -> dict[str, bytes]:
    folder = engine_of(lq).store.folder(table)
    names = [file.name for part in ("", LOG) for file in folder.files(part) if "lock" not in file.name]
    return {name: folder.read(name) for name in names}


def put_back(lq: LakeQueue, table: str, files: dict[str, bytes]) -> None:
    """Gives a table the files of a backup."""
    folder = engine_of(lq).store.folder(table)
    folder.remove(files_of(lq, table))
    for name, data in files.items():
        folder.write(name, data)


def damage_ledger(queue: Queue, version: int) -> None:
    """Nothing of what came after a version of the ledger can be read."""
    folder = ledger_of(queue).folder
    for file in list(folder.files(LOG)):
        if version_of(file.name) > version:
            folder.replace(file.name, b"")


def damage_files(queue: Queue, version: Table | None = None) -> None:
    """Nothing of a version of the ledger, by default the newest, can be read by who does not know it."""
    ledger = version or ledger_of(queue)
    for file in ledger.files():
        ledger.folder.replace(file.name, b"")


def killed_after_the_first_step(lq: LakeQueue) -> None:
    done = []

    def killed(report: Repair, steps: Sequence[RepairStep], _: object) -> Iterator[Repair]:
        for step in steps[:1]:
            done.append(step.apply())
        yield report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repairing, "_finished", killed)
        reopen(lq).repair("orders", apply=True, force=True)
    assert done


def goes_on_without_what_was_emptied(lq: LakeQueue, clock: ManualClock) -> None:
    """Checks a queue after a repair that restores "old" and "open". It can be copied."""
    reports = [each for each in reopen(lq).repair(apply=True, force=True) if each.queue]
    assert [report.lost for report in reports] == [[]]
    assert {offset for first, last in reports[0].again for offset in range(first, last + 1)} <= {0, 8}
    sound(lq)
    compact(reopen(lq))
    to = LakeQueue(f"{lq.root}-copy", clock=clock)
    reopen(lq).copy(to)
    assert to.check() == []
    comes_once(lq, clock, "old", "open")


def what_was_deleted_behind_an_old_message_is_emptied(lq: LakeQueue, clock: ManualClock) -> None:
    queue = seven_used(lq)
    before = [(row.offset, row.message_id, row.sent_at) for row in log_rows(queue)]
    summaries = compact(reopen(lq))
    assert full(queue) == ["old", "open"]
    assert [(row.offset, row.message_id, row.sent_at) for row in check_log(queue)] == before
    assert summaries[0].segments_cut + summaries[0].segments_merged > 0
    assert [compact(reopen(lq))[0].segments_cut for _ in range(2)] == [0, 0]
    shown = reopen(lq).arrow_views()["messages"].to_table(columns=["state", "body", "delay_seconds"])
    gone = [(row["body"], row["delay_seconds"]) for row in shown.to_pylist() if row["state"] == "deleted"]
    assert gone == [("", 0.0)] * 7
    emptied = reopen(lq).queue("orders").get(before[1][1])
    assert (emptied.state, emptied.body, queue.cancel(emptied.message_id)) == (MessageState.DELETED, "", False)
    sound(lq)
    clock.advance(12 * HOUR)
    assert sorted(taken(queue)) == ["old", "open"], "through a snapshot from before"
    clock.advance(2 * HOUR)
    compact(reopen(lq))
    assert full(queue) == []
    sound(lq)


def what_a_rewind_restores_stays(lq: LakeQueue, clock: ManualClock) -> None:
    queue = seven_used(lq, rewind_range=300)
    compact(reopen(lq))
    assert full(queue) == ["old", *"abcdefg", "open"]
    sound(lq)
    assert reopen(lq).queue("orders").rewind(clock.now() - timedelta(seconds=200)) == 7
    assert sorted(taken(reopen(lq).queue("orders"))) == sorted([*"abcdefg", "open"])
    clock.advance(301)
    compact(reopen(lq))
    assert full(queue) == ["old", "open"], "the open segment stays as it is"
    comes_once(lq, clock, "old")
    sound(lq)


def a_deduplication_id_counts_for_its_time(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders.fifo", fifo=True)
    one_old(queue, group_id="old")
    used(queue, list("abcdefg"), group_id="g")
    clock.advance(200)
    compact(reopen(lq))
    for root in apart(lq.root, clock, 2):
        for body in "abcdefg":
            root.queue("orders.fifo").send(body, group_id="g", dedup_id=body)
    assert queue.receive(10) == [], "no duplicate"
    clock.advance(101)
    queue.send("open", group_id="g", dedup_id="open")
    clock.advance(301)
    compact(reopen(lq))
    assert full(queue) == ["old", "open"]
    sound(lq)
    clock.advance(12 * HOUR)
    assert sorted(taken(reopen(lq).queue("orders.fifo"))) == ["old", "open"]


def what_is_stored_stays(lq: LakeQueue, clock: ManualClock) -> None:
    """Visible, delayed, in flight and fresh messages between settled ones, of a bulk send and of single ones."""
    queue = lq.create_queue("orders")
    rows = {"body": [str(number) for number in range(40)], "group_id": ["ab"[number % 2] for number in range(40)]}
    queue.send_arrow(pa.table(rows))
    held = queue.receive(30, visibility_timeout=HOUR)
    queue.delete_batch([message for message in held if int(message.body) % 3])
    kept = [str(number) for number in range(40) if number >= 30 or number % 3 == 0]
    queue.send("late", delay=600)
    used(queue, [])
    for body in "xyz":
        queue.send(body)
    compact(reopen(lq))
    assert sorted(full(queue)) == sorted([*kept, "late", *"xyz"])
    check_log(queue)
    sound(lq)
    clock.advance(HOUR)
    found = reopen(lq).queue("orders").receive(100)
    assert sorted(message.body for message in found) == sorted([*kept, "late", *"xyz"])
    groups = {message.body: message.group_id for message in found}
    assert all(groups[body] == "ab"[int(body) % 2] for body in kept)


def a_move_that_another_process_completed_brings_nothing_again(lq: LakeQueue, clock: ManualClock) -> None:
    """Who reads the rows late finds them emptied, and without groups: that are other shards of the target."""
    more: dict[str, Any] = {"fifo": True, "shards": 4, "deduplication_scope": "message_group"}
    dead = lq.create_queue("dead.fifo", **more)
    queue = lq.create_queue("orders.fifo", fifo=True, redrive_policy=RedrivePolicy("dead.fifo", 1))
    one_old(queue, group_id="old")
    elsewhere = (f"g{number}" for number in count() if shard_of_group(f"g{number}", 4) != shard_of_group("", 4))
    for number, group in zip(range(7), elsewhere, strict=False):
        queue.send(f"m{number}", group_id=group, dedup_id=str(number))
    queue.receive(10, visibility_timeout=0)
    queue.send("open", group_id="g", dedup_id="open")
    clock.advance(301)
    [other] = apart(lq.root, clock, 1)

    def act(reader: Any, *_: int) -> None:
        move.finish_all(other.queue("orders.fifo")._runtime)
        other.compact()
        reader.bodies.clear()
        reader._ledger.log()

    with meanwhile(ShardReader, "messages", act, when=lambda reader, *_: reader is shard_of(queue).reader):
        queue.receive(10)
    assert full(queue) == ["old", "open"]
    assert dead.counts().visible == 7
    assert sorted(message.body for message in dead.receive(100)) == [f"m{number}" for number in range(7)]


def a_copy_has_what_its_ledger_names(lq: LakeQueue, clock: ManualClock) -> None:
    queue, held = seven_held(lq)

    def act(table: Any) -> None:
        emptied_elsewhere(lq, queue, held)
        table.refresh()

    to = LakeQueue(f"{lq.root}-copy", clock=clock)
    with meanwhile(copying, "LogReader", act, when=lambda table: table.path == messages_of(queue)):
        lq.copy(to)
    assert to.check() == []
    assert taken(to.queue("orders")) == ["open"]


def a_repair_neither_loses_nor_brings_back_what_was_emptied(lq: LakeQueue, clock: ManualClock) -> None:
    queue, held = seven_held(lq)
    version = ledger_of(queue).version
    queue.delete_batch(held)
    compact(reopen(lq))
    assert full(queue) == ["old", "open"]
    queue.receive(1)
    damage_ledger(queue, version)
    goes_on_without_what_was_emptied(lq, clock)


def a_restored_ledger_is_reported_and_loses_nothing(lq: LakeQueue, clock: ManualClock) -> None:
    queue, held = seven_held(lq)
    kept = files_of(lq, receipts_of(queue))
    queue.delete_batch(held)
    compact(reopen(lq))
    assert full(queue) == ["old", "open"]
    put_back(lq, receipts_of(queue), kept)
    found = reopen(lq).check()
    assert [("it was put back" in each.problem, each.table) for each in found] == [(True, receipts_of(queue))]
    for call in (
        lambda: reopen(lq).copy(LakeQueue(f"{lq.root}-none", clock=clock)),
        lambda: reopen(lq).queue("orders").receive(),
        lambda: reopen(lq).queue("orders").counts(),
    ):
        with pytest.raises(DamagedTable, match="it was put back, and `lakequeue repair` repairs it"):
            call()
    killed_after_the_first_step(lq)
    goes_on_without_what_was_emptied(lq, clock)


def a_compactor_that_slept_through_a_restore_hides_nothing(lq: LakeQueue, clock: ManualClock) -> None:
    """It sleeps right before its entry, and the ledger that was put back has a later epoch when it goes on."""
    queue, held = seven_held(lq)
    kept = files_of(lq, receipts_of(queue))
    queue.delete_batch(held)

    def act(*_: Any) -> None:
        put_back(lq, receipts_of(queue), kept)
        clock.advance(3_600)
        there = reopen(lq).queue("orders")
        for _ in range(12):
            there.receive(1, visibility_timeout=0)

    [other] = apart(lq.root, clock, 1)
    kind = RemoteFolder if "://" in lq.root else LocalFolder
    with meanwhile(kind, "create", act, when=is_entry_of(messages_of(queue))):
        other.queue("orders").compact()
    left = full(queue)
    assert "a" not in left
    for call in (lambda queue: queue.receive(10), Queue.counts, Queue.peek):
        with pytest.raises(DamagedTable, match="it was put back, and `lakequeue repair` repairs it"):
            call(reopen(lq).queue("orders"))
            pytest.fail("messages are hidden, and nobody says so", pytrace=False)
    assert ["it was put back" in each.problem for each in reopen(lq).check()] == [True]
    [repaired] = reopen(lq).repair(apply=True, force=True)
    assert repaired.applied and repaired.lost == []  # they were deleted before the restore
    sound(lq)
    comes_once(lq, clock, *left)


@pytest.mark.spec("DUR-4", "DUR-5")
def test_a_receive_of_an_emptied_message_that_the_ledger_has_is_refused(
    lq: LakeQueue, clock: ManualClock, monkeypatch: Patch
) -> None:
    """No mark shows this, as in a backup taken between the mark and the emptying."""
    with monkeypatch.context() as patch, pytest.raises(AssertionError):
        patch.setattr(Head, "knows", lambda *_: True)
        a_compactor_that_slept_through_a_restore_hides_nothing(lq, clock)
    monkeypatch.setattr(Head, "knows", lambda *_: True)
    clock.advance(3_600)
    with pytest.raises(DamagedTable, match="lacks the body of offset 1, which its ledger has as stored") as caught:
        reopen(lq).queue("orders").receive(10)
    assert caught.value.outcome_unknown


def is_entry_of(table: str) -> Callable[..., bool]:
    """True for the arguments of a file's creation if the file is an entry of a table's log."""
    return lambda folder, name, *_, **__: folder.uri == table and name.startswith("_delta_log/")


def a_ledger_that_is_made_anew_is_copied(lq: LakeQueue, clock: ManualClock) -> None:
    queue = seven_used(lq)
    compact(reopen(lq))
    assert full(queue) == ["old", "open"]
    put_back(lq, receipts_of(queue), {})
    goes_on_without_what_was_emptied(lq, clock)


def a_compactor_that_slept_through_a_repair_empties_nothing(lq: LakeQueue, clock: ManualClock) -> None:
    queue, held = seven_held(lq)
    queue.delete_batch(held)

    deleted = ledger_of(queue)

    def act(*given: Any) -> None:  # it has read the ledger
        damage_files(queue)
        damage_files(queue, deleted)
        assert [each.applied for each in reopen(lq).repair(apply=True, force=True)] == [True]

    with meanwhile(merge_segments, "Change", act):
        reopen(lq).compact()
    assert full(queue) == ["old", *"abcdefg", "open"]
    comes_once(lq, clock, "old", *"abcdefg", "open")


def what_only_memory_knows_is_not_emptied(lq: LakeQueue, clock: ManualClock) -> None:
    """A process knows a ledger that was damaged since, and begins a pass while a repair goes back."""
    queue, held = seven_held(lq)
    queue.delete_batch(held)
    damage_files(queue)
    merge, fence = open_shard.merge_all, repairing.fence_step
    begun: list[Any] = []

    def slow(*given: Any) -> Any:
        begun.append(given)
        given[-1]()  # it reads the ledger now
        return MergeCounts()

    def fenced(*given: Any) -> RepairStep:
        step = fence(*given)
        return RepairStep(step.text, lambda: (step.apply(), queue.compact()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repairing, "fence_step", fenced)
        patch.setattr(open_shard, "merge_all", slow)
        assert [each.applied for each in reopen(lq).repair(apply=True, force=True)] == [True]
    with suppress(LakeQueueError):
        merge(*begun[0])
    assert full(queue) == ["old", *"abcdefg", "open"]
    comes_once(lq, clock, "old", *"abcdefg", "open")


def what_a_restored_root_has_stays(lq: LakeQueue, clock: ManualClock) -> None:
    """Of which the ledger went back while a compactor slept, and the log is as it was."""
    queue, held = seven_held(lq)
    kept = files_of(lq, receipts_of(queue))
    queue.delete_batch(held)
    [other] = apart(lq.root, clock, 1)
    with meanwhile(merge_segments, "Change", lambda *_: put_back(lq, receipts_of(queue), kept)):
        assert other.queue("orders").compact().failures
    assert full(queue) == ["old", *"abcdefg", "open"]
    sound(lq)
    comes_once(lq, clock, "old", *"abcdefg", "open")


def stays_above_the_floor_of_a_restored_ledger(lq: LakeQueue, verb: Callable[[Queue], object]) -> None:
    """It went back once a process had read its floor, and the log is as it was."""
    queue = with_sent(lq, old=False)
    kept = files_of(lq, receipts_of(queue))
    taken(queue)
    [other] = apart(lq.root, lq.clock, 1)
    with meanwhile(merge_segments, "Change", lambda *_: put_back(lq, receipts_of(queue), kept)):
        verb(other.queue("orders"))
    assert full(queue) == list("abcdefg")
    sound(lq)


def a_compactor_drops_nothing_above_the_floor_of_a_restored_ledger(lq: LakeQueue, clock: ManualClock) -> None:
    stays_above_the_floor_of_a_restored_ledger(lq, Queue.compact)


def a_sender_drops_nothing_above_the_floor_of_a_restored_ledger(lq: LakeQueue, clock: ManualClock) -> None:
    stays_above_the_floor_of_a_restored_ledger(lq, lambda queue: shard_of(queue).sender._merge_segments(0, None))


def a_log_that_was_restored_before_its_ledger_stays(lq: LakeQueue, clock: ManualClock) -> None:
    queue = with_sent(lq)
    kept = files_of(lq, messages_of(queue))
    queue.send("late")
    queue.send("later")
    queue.delete_batch(queue.receive(9))
    put_back(lq, messages_of(queue), kept)
    assert reopen(lq).queue("orders").compact().failures
    assert full(queue) == ["old", *"abcdefg"]


def what_was_emptied_meanwhile_is_not_shown(lq: LakeQueue, clock: ManualClock) -> None:
    """By a search that has read runs, and then reads the log."""
    queue, held = seven_held(lq)

    def act(reader: Any, *_: int) -> None:
        emptied_elsewhere(lq, queue, held)
        reader.bodies.clear()
        reader._ledger.log()

    with meanwhile(ShardReader, "rows", act):
        assert [message.body for message in queue.peek(limit=10)] == ["old", "open"]


def what_a_lease_has_lost_is_not_read(lq: LakeQueue, clock: ManualClock) -> None:
    """It has lapsed, and others deleted a part of its messages, before it is read."""
    queue = with_sent(lq)
    lease = queue.lease(visibility_timeout=60)
    queue.send("open")
    clock.advance(61)
    queue.delete_batch([message for message in queue.receive(7) if message.body not in "beg"])
    compact(reopen(lq))
    assert full(queue) == ["old", "b", "e", "g", "open"]
    assert lease.arrow()["body"].to_pylist() == ["b", "e", "g"]


def a_view_has_no_message_without_a_body(lq: LakeQueue, clock: ManualClock) -> None:
    """Of which the ledger is older than the log."""
    queue, held = seven_held(lq)

    def act(table: Any) -> None:
        emptied_elsewhere(lq, queue, held)
        table.refresh()

    with meanwhile(judged_log, "LogReader", act):
        shown = reopen(lq).arrow_views()["messages"].to_table(columns=["log_offset", "state"])
    assert [(row["log_offset"], row["state"]) for row in shown.to_pylist()] == [(0, "in_flight"), (8, "visible")]


def a_check_notices_what_lost_its_body(lq: LakeQueue, clock: ManualClock) -> None:
    queue = with_sent(lq, "abcdef", old=False)
    table = shard_of(queue).tables.engine.open(messages_of(queue))
    nothing = np.array([], np.int64)
    merge_segments.merge_all(table, 0, 0, forgotten=lambda: ForgottenMessages(0, 4, nothing, nothing))
    found = reopen(lq).check()
    assert [("no message at offsets 0 to 3" in each.problem, each.damage) for each in found] == [(True, True)]
    reports = reopen(lq).repair(apply=True, force=True)
    assert [report.lost for report in reports] == [[(0, 3)]]
    sound(lq)
    assert taken(reopen(lq).queue("orders")) == ["e", "f"]


def overlook(part: str) -> Callable[[Patch], None]:
    """The mutation of a ledger that forgets a part."""

    def without(patch: Patch) -> None:
        read = Ledger.rows

        def rows(self: Ledger) -> tuple[Head, pa.Table]:
            head, found = read(self)
            settled = found["settled"].to_numpy(zero_copy_only=False)
            is_head = found["first_offset"].to_numpy() < 0
            return head, found.filter(pa.array(is_head | (settled != (part == "settled"))))

        patch.setattr(Ledger, "rows", rows)

    return without


def empty_what_counts(patch: Patch) -> None:
    empty, step = ForgottenMessages.empty, merge_segments._empty_step
    patch.setattr(ForgottenMessages, "empty", lambda self, rows, _: empty(self, rows, None))
    patch.setattr(merge_segments, "_empty_step", lambda seen, now, _, *more: step(seen, now, None, *more))


def tell_no_epoch(patch: Patch) -> None:
    emptied = merge_segments._emptied
    patch.setattr(merge_segments, "_emptied", lambda *given: attrs.evolve(emptied(*given), epoch=0))


def believe_memory(patch: Patch) -> None:
    def forgotten(self: Any) -> ForgottenMessages:
        return self.ledger._open_ledger().forgotten(self.ledger.log)

    patch.setattr(open_shard.OpenShard, "_forgotten", forgotten)
    patch.setattr(ShardLedger, "announce_emptying", lambda *_: 0)  # which reads the newest one


def believe_what_was_put_back(patch: Patch) -> None:
    patch.setattr(ShardLog, "forgotten", property(lambda self: 0, lambda self, told: None), raising=False)
    patch.setattr(Head, "knows", lambda *_: True)


def look_for_no_restore(patch: Patch) -> None:
    read = ShardLedger.head
    patch.setattr(ShardLedger, "head", lambda self: (read(self)[0], lambda: None))


def bring_rows_without_a_body(patch: Patch) -> None:
    read = ShardReader.messages

    def messages(self: Any, first: int, last: int) -> Any:
        return [row and row | {"body": row["body"] or "-"} for row in read(self, first, last)]

    def rows(self: Any, first: int, last: int) -> Any:
        first, found = tables(self, first, last)
        index = found.column_names.index("body")
        return first, found.set_column(index, "body", pc.fill_null(found["body"], "-"))

    tables = ShardReader.rows
    patch.setattr(ShardReader, "messages", messages)
    patch.setattr(ShardReader, "rows", rows)


MUTATIONS = [
    Mutation(
        "empty nothing",
        replace(ForgottenMessages, "count", lambda *_: 0),
        {what_was_deleted_behind_an_old_message_is_emptied: "DLT-7"},
    ),
    Mutation("overlook runs", overlook("stored"), {what_is_stored_stays: "DLT-6"}),
    Mutation("overlook the history", overlook("settled"), {what_a_rewind_restores_stays: "RWD-4"}),
    Mutation("empty ids that count", empty_what_counts, {a_deduplication_id_counts_for_its_time: "RET-11"}),
    Mutation(
        "believe any pair of snapshots",
        tell_no_epoch,
        {a_copy_has_what_its_ledger_names: "DUR-41", a_view_has_no_message_without_a_body: "DLT-5"},
    ),
    Mutation(
        "believe any ledger that can be read",
        replace(FoundShard, "is_newest", property(lambda self: self.ledger is not None)),
        {a_restored_ledger_is_reported_and_loses_nothing: "DUR-30"},
    ),
    Mutation(
        "believe a ledger that was put back",
        believe_what_was_put_back,
        {a_restored_ledger_is_reported_and_loses_nothing: "DUR-4"},
    ),
    Mutation(
        "believe any mark",
        replace(Head, "knows", lambda *_: True),
        {a_compactor_that_slept_through_a_restore_hides_nothing: "DUR-4"},
    ),
    Mutation(
        "a repair leaves `forgotten` and `files`",
        replace(repairing, "fence_step", lambda *_: RepairStep("", lambda: None)),
        {
            a_ledger_that_is_made_anew_is_copied: "DUR-41",
            a_compactor_that_slept_through_a_repair_empties_nothing: "DUR-32",
        },
    ),
    Mutation(
        "believe what a process knows of its ledger",
        believe_memory,
        {what_only_memory_knows_is_not_emptied: "DUR-32"},
    ),
    Mutation(
        "never look whether a root was restored",
        look_for_no_restore,
        {
            what_a_restored_root_has_stays: "DUR-80",
            a_compactor_drops_nothing_above_the_floor_of_a_restored_ledger: "DUR-80",
            a_sender_drops_nothing_above_the_floor_of_a_restored_ledger: "DUR-80",
        },
    ),
    Mutation(
        "believe any head",
        replace("lakequeue.storage.ledger.check_head", lambda *_: None),
        {a_log_that_was_restored_before_its_ledger_stays: "DUR-4"},
    ),
    Mutation(
        "bring rows without a body",
        bring_rows_without_a_body,
        {
            a_move_that_another_process_completed_brings_nothing_again: "DLQ-2",
            what_was_emptied_meanwhile_is_not_shown: "DLT-7",
        },
    ),
    Mutation(
        "take what is unknown for full",
        replace(lease_batches.pc, "all", lambda values, **_: pc.min(pc.fill_null(values, True))),
        {what_a_lease_has_lost_is_not_read: "DLT-7"},
    ),
    Mutation(
        "bodies are not looked for",
        replace("lakequeue.storage.inspection.shards.FoundShard.blank", lambda *_: []),
        {
            a_check_notices_what_lost_its_body: "DUR-30",
            a_repair_neither_loses_nor_brings_back_what_was_emptied: "DUR-31",
        },
    ),
]


@each_case(MUTATIONS)
def test_the_promise_holds_and_falls_with_its_safeguard(case: Case, lq: LakeQueue, clock: ManualClock) -> None:
    case.run(lambda patch: (make_small(patch), (lq, clock))[1], (LakeQueueError, TypeError, pytest.fail.Exception))


def test_a_ledger_that_cannot_be_read_forgets_nothing(lq: LakeQueue) -> None:
    """Rows that another program removed are of messages that a repair may bring back."""
    queue = with_sent(lq, "abcdef", old=False)
    for _ in range(3):
        queue.receive(1, visibility_timeout=HOUR)
    queue.send("open")
    first = min(ledger_of(queue).files(), key=lambda file: file.path)
    torn = files_of(lq, receipts_of(queue))
    torn[first.name] = torn[first.name][: first.size // 2]
    put_back(lq, receipts_of(queue), torn)
    summary = reopen(lq).queue("orders").compact()
    assert summary.failures
    assert full(queue) == [*"abcdef", "open"]


@pytest.mark.parametrize("told", [None, "x", "3", 2.5, [1], {}])
def test_an_invalid_number_of_emptied_rows_does_not_count(told: Any) -> None:
    bounds = {"position": 0}
    file = LiveFile(
        "", "a.parquet", 1, 1, {"base_offset": 0, "opened_at": from_micros(0)}, bounds, bounds, {"body": told}
    )
    assert LogFile.of(file).emptied == 0
