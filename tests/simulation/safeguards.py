"""Safeguards that the simulation must miss when they are gone, and defects of the past.

Each is taken out of the simulated processes, not of the check of what they left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np

from lakequeue import QueueClientError, RequestThrottled
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations.delivery import Delivering
from lakequeue.operations.delivery_protocol import DeliveryStatus, OpenedDeliveryTable
from lakequeue.operations.tokens import Tokens
from lakequeue.runtime.calls import CallCounters
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.runtime.shard_sender import ShardSender
from lakequeue.shard import decide, move
from lakequeue.shard.commands import Rewrite
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import IN_FLIGHT, Run
from lakequeue.shard.state import ShardState
from lakequeue.storage import folder, ledger, requests, snapshot
from lakequeue.storage.delivery.identity import DeliveryIdentity
from lakequeue.storage.delta_log import checkpoint_name
from lakequeue.storage.engines import commit, log_trimming, point
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages import append, merge_segments, read, staged_sends
from lakequeue.storage.messages.append import Appender
from lakequeue.storage.messages.dedup_window import DedupWindow
from lakequeue.storage.messages.read import LogReader
from lakequeue.storage.snapshot import Snapshot
from mutations import (
    Mutation,
    Patch,
    a_block_looks_like_an_append,
    a_refused_block_is_an_arrival,
    accept_any_lease,
    an_acknowledged_append_counts_unseen,
    believe_every_clock,
    messages_are_deleted_first,
    receive_in_a_pause,
    replace,
    slots_are_used_again_with_their_number,
    verify_no_checksums,
    what_is_undecided_is_visible,
)
from simulation.runs import Aim
from simulation.target import SimulatedTable

# --- mutations of guarantees


def overwrite_log_entries(folder: LocalFolder, name: str, data: bytes, **_: Any) -> bool:
    folder.write(name, data)
    return True


def drop_whatever_is_closed(patch: Patch) -> None:
    merge = merge_segments.merge_recent
    patch.setattr("lakequeue.runtime.shard_sender.merge_recent", lambda table, *_: merge(table, 2**62))


def merge_without_a_fence(patch: Patch) -> None:
    change = merge_segments.Change
    patch.setattr(merge_segments, "Change", lambda _, *given, **more: change({}, *given, **more))


def answer_from_memory(patch: Patch) -> None:
    init = Ledger.__init__

    def deaf(self: Ledger, table: Any) -> None:
        init(self, table)
        refresh, calls = table.refresh, count()
        # but for one look of 16: a commit that is refused would be tried in vain until the log is trimmed
        table.refresh = lambda: refresh() if next(calls) % 16 == 15 else None

    patch.setattr(Ledger, "__init__", deaf)


def read_no_newer_log(patch: Patch) -> None:
    refresh = LogReader.refresh
    patch.setattr(LogReader, "refresh", lambda self, *sure: self.log if self.log.end else refresh(self, *sure))


def keep_the_machine_after_a_failure(patch: Patch) -> None:
    run = ShardLedger._run

    def forgetful(self: ShardLedger, groups: Any) -> Any:
        known = self._machine, self._ledger
        try:
            return run(self, groups)
        except BaseException:
            self._machine, self._ledger = known
            raise

    patch.setattr(ShardLedger, "_run", forgetful)
    patch.setattr(Ledger, "is_current", lambda *_: True)


@contextmanager
def _without_finishing(queue: OpenQueue, verb: str) -> Iterator[CallCounters]:
    with queue.root.storage_errors():
        yield CallCounters()


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


def add_staged_sends_again(patch: Patch) -> None:
    others = staged_sends.others

    def all_of_them(table: Any, own: Any, *listed: Any) -> Any:
        unread = SimpleNamespace(
            version=table.version,
            folder=table.folder,
            state=SimpleNamespace(newest_files=lambda: (0, {})),
            files=lambda: (),
        )
        return others(unread, own, *listed)

    patch.setattr(staged_sends, "others", all_of_them)


def overlook_that_others_sent(patch: Patch) -> None:
    change = append.Change
    patch.setattr(
        append, "Change", lambda fence, ids, write, value, *_, **more: change(fence, ids, write, value, **more)
    )
    patch.setattr("lakequeue.runtime.send_strategies.SharedFile.find", lambda *_: None)


def apply_requests_again(patch: Patch) -> None:
    fitting = requests.fitting

    def all_of_them(table: Any, posted: Any, listed: Any) -> Any:
        entries = {version: SimpleNamespace(answers=()) for version in table.state.latest}
        state = SimpleNamespace(latest=entries)
        return fitting(SimpleNamespace(version=table.version, state=state), posted, listed)

    patch.setattr(requests, "fitting", all_of_them)


def leave_requests_without_a_change(patch: Patch) -> None:
    decide = ShardMachine.decide

    def unforced(self: ShardMachine, commands: Any, now: int) -> Any:
        return decide(self, [] if [*map(type, commands)] == [Rewrite] else commands, now)

    patch.setattr(ShardMachine, "decide", unforced)


def take_a_posted_request_for_refused(patch: Patch) -> None:
    patch.setattr(requests, "unknown", lambda reason: QueueClientError(f"nothing was changed: {reason}"))
    patch.setattr(requests, "failure", lambda error: error)


def take_a_late_request_for_refused(patch: Patch) -> None:
    post = requests.post

    def posted(*given: Any) -> Any:
        try:
            return post(*given)
        except QueueClientError as error:
            raise RequestThrottled(f"nothing was changed: {error}", lost_races=1) from error

    patch.setattr(requests, "post", posted)
    patch.setattr(requests, "failure", lambda error: error)


def wait_for_requests_of_dead_processes(patch: Patch) -> None:
    for bound in ("LOOKS", "RECENT"):  # either bound ends the wait
        patch.setattr(requests, bound, 10**9)


def commit_requests_without_a_fence(patch: Patch) -> None:
    change = ledger.Change
    patch.setattr(ledger, "Change", lambda _, *given, **more: change({}, *given, **more))


def know_the_first_attributes_only(patch: Patch) -> None:
    init, first = ShardMachine.__init__, list[Any]()

    def as_they_were(self: ShardMachine, head: Any, *more: Any) -> None:
        init(self, head, *more)
        first.append(self._state.attributes)
        self._state.attributes = first[0]

    patch.setattr(ShardMachine, "__init__", as_they_were)


def offer_what_a_power_cut_tears(patch: Patch) -> None:
    offer = LocalFolder.offer
    patch.setattr(
        LocalFolder,
        "offer",
        lambda self, *given: offer(LocalFolder(self.uri, self._prefix, syncs=False), *given),
    )


def look_for_duplicates_before_the_first_try_only(patch: Patch) -> None:
    run, window, known = ShardSender._run, Appender.window, dict[Any, DedupWindow]()

    def judged_once(self: ShardSender, sends: Any) -> Any:
        known.pop(self._appender, None)
        return run(self, sends)

    def first(self: Appender, *arguments: Any) -> DedupWindow:
        if self not in known:
            known[self] = window(self, *arguments)
        return known[self]

    patch.setattr(ShardSender, "_run", judged_once)
    patch.setattr(Appender, "window", first)


def drop_segments_with_live_ids(patch: Patch) -> None:
    merge = merge_segments.merge_recent
    patch.setattr("lakequeue.runtime.shard_sender.merge_recent", lambda table, floor, *_: merge(table, floor))


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
    patch.setattr(Run, "unattempted", lambda run: run)


def use_a_number_again(patch: Patch) -> None:
    set_aside = move.set_aside

    def reused(state: ShardState, *more: Any) -> None:
        state.head = attrs.evolve(state.head, move_number=0)
        set_aside(state, *more)

    patch.setattr("lakequeue.shard.move.set_aside", reused)
    patch.setattr("lakequeue.shard.claim.standard.set_aside", reused)


# --- defects of the past, put back


def trust_a_fence_without_its_log(patch: Patch) -> None:
    """Commits on a snapshot whose entry was trimmed: the fence outlives its log."""
    patch.setattr(commit, "has_entry", lambda *_: True)
    patch.setattr(commit, "is_base_in_log", lambda *_: True)


def take_a_late_put_for_refused(patch: Patch) -> None:
    patch.setattr(commit, "unanswered_version", lambda *_: None)


def never_sync_a_checkpoint(patch: Patch) -> None:
    replace = LocalFolder.replace

    def replaced(self: LocalFolder, name: str, data: bytes) -> None:
        folder = LocalFolder(self.uri, syncs=False, descriptor=self.descriptor)
        replace(folder if "checkpoint" in name else self, name, data)

    patch.setattr(LocalFolder, "replace", replaced)
    patch.setattr(log_trimming, "_holds", lambda *_: True)


def sync_no_entry(patch: Patch) -> None:
    """Acknowledges before the entry's directory is on disk."""
    patch.setattr(LocalFolder, "_sync_folder", lambda *_: None)


def sync_no_file(patch: Patch) -> None:
    patch.setattr(LocalFolder, "_sync_file", lambda *_: None)


def answer_what_others_did_not_sync(patch: Patch) -> None:
    """Builds on entries of others that are not on disk yet: a head beyond the log."""
    sync = LocalFolder.sync
    patch.setattr(
        LocalFolder,
        "sync",
        lambda self, names, **more: sync(self, [name for name in names if name != point.LOG], **more),
    )


def trim_without_a_checkpoint(patch: Patch) -> None:
    patch.setattr(log_trimming, "_holds", lambda *_: True)
    patch.setattr(Table, "checkpoint", lambda self: self.folder.write(checkpoint_name(self.version), b""))


def trim_newest_first(patch: Patch) -> None:
    remove = LocalFolder.remove
    patch.setattr(LocalFolder, "remove", lambda self, names: remove(self, reversed(list(names))))


def write_entries_in_place(patch: Patch) -> None:
    """A reader may see a part of an entry."""

    def create(self: LocalFolder, name: str, data: bytes, *, new_folder: bool = True) -> bool:
        if self.exists(name):
            return False
        self.write(name, data, new_folder=new_folder)
        return True

    patch.setattr(LocalFolder, "create", create)


def lose_the_type_of_what_is_gone(patch: Patch) -> None:
    """A ledger as it was, over a log whose files others have dropped since: KeyError, not a newer look."""
    patch.setattr(read, "FileNotFoundError", KeyError, raising=False)


def write_no_draft_again(patch: Patch) -> None:
    """A compactor removes the draft of a process that stands still, which then fails."""

    def place(self: LocalFolder, place: Any, data: bytes, name: str, **_: Any) -> None:
        draft, here = self._path(f"{folder.uuid.uuid4().hex}.draft"), self.descriptor
        target = self._path(name)
        with folder.open(draft, "wb", opener=self._opener) as file:  # type: ignore[attr-defined]
            file.write(data)
            self._sync_file(file)
        try:
            place(draft, target, src_dir_fd=here, dst_dir_fd=here)
        finally:
            with suppress(FileNotFoundError):
                folder.os.unlink(draft, dir_fd=here)
        self._sync(folder.os.path.dirname(target))

    def in_folder(self: LocalFolder, path: str, act: Any, new_folder: bool = True) -> Any:
        if new_folder:
            self._make(folder.os.path.dirname(path))
        return act()

    patch.setattr(LocalFolder, "_place", place)
    patch.setattr(LocalFolder, "_in_folder", in_folder)


# --- what only some runs have: restores, clocks that are wrong, disks without inodes, bits that change


def take_any_log_for_the_same(patch: Patch) -> None:
    """Whether an entry of its version exists is all that a handle asks."""

    def compare(self: Snapshot, *_: Any) -> None:
        self.confirmed_at = snapshot.time.time()

    patch.setattr(Snapshot, "_compare", compare)


def take_any_ledger_for_one_of_the_log(patch: Patch) -> None:
    """What the log has lost is given out again, below the head, where nobody reads it."""
    for module in ("storage.ledger", "runtime.shard_sender", "operations.judged_log"):
        patch.setattr(f"lakequeue.{module}.check_head", lambda *_: None)


def take_a_full_disk_for_done(patch: Patch) -> None:
    place = LocalFolder._place

    def placed(self: LocalFolder, *given: Any) -> None:
        with suppress(OSError):
            place(self, *given)

    patch.setattr(LocalFolder, "_place", placed)


def overlook_in_ledgers(settled: bool) -> Callable[[Patch], None]:
    """Bodies of messages in such runs are removed."""

    def take_out(patch: Patch) -> None:
        forgotten = Ledger.forgotten

        def without(self: Ledger, log: Any) -> Any:
            found = forgotten(self, log)
            kept = self.load()[1 if settled else 2]
            firsts, lasts = (
                np.array([getattr(run, name) for run in kept], np.int64) for name in ("first", "last")
            )
            return attrs.evolve(found, firsts=firsts, lasts=lasts)

        patch.setattr(Ledger, "forgotten", without)

    return take_out


def release_after_the_append(patch: Patch) -> None:
    release, append, failed = Delivering.release_failed, Delivering.append, dict[Delivering, Any]()

    def later(self: Delivering, given: Any, *more: Any) -> None:
        failed[self] = given

    def appended(self: Delivering, *rows: Any) -> int:
        number = append(self, *rows)
        if self in failed:
            release(self, failed[self])
        return number

    patch.setattr(Delivering, "release_failed", later)
    patch.setattr(Delivering, "append", appended)


def block_nothing(opened: OpenedDeliveryTable, delivery: DeliveryIdentity) -> Any:
    """Makes messages visible whose rows have not arrived so far."""
    snapshot = opened.read()
    state = protocol.state_of(snapshot, delivery)
    return DeliveryStatus.BLOCKED if state is DeliveryStatus.OPEN else state, snapshot


def _without_bucket(patch: Patch) -> None:
    """Each process that loads the ledger begins with a full bucket."""
    head = ledger.read_head
    patch.setattr(ledger, "read_head", lambda cells: head(cells | {"paced_to": None}))


_ANY = Aim()
_FIFO = Aim(kind="fifo")
_LETTERS = Aim(kind="letters")
_LEDGER = {"send": 20, "receive": 40, "delete": 40}
_BUSY = {"send": 60, "consume": 30}
_ATTEMPTS = Aim(kind="fifo", verbs=({"send": 20, "attempt": 20, "repeat": 30},))
_BESIDE = ({"send": 20}, {"send": 60, "pause": 15, "compact": 20})
_MOVES = {"send": 20, "receive": 40, "pause": 20, "redrive": 10, "move": 20}
_ASLEEP = Aim(place="disk", style="asleep")
_STAGED = Aim(place="store", kind="standard", shards=1, length=10, verbs=({"send": 60, "receive": 10},))
_DELIVERS = {"send": 20, "deliver": 60, "pause": 20, "receive": 10}
_DELIVERY = Aim(kind="delivery", style="stops", shards=1, length=10, verbs=(_DELIVERS,))
_FAILING = attrs.evolve(_DELIVERY, verbs=({"send": 10, "fail": 60, "receive": 30},))
_LOST = attrs.evolve(_DELIVERY, place="store", style="requests")
_REQUESTS = Aim(
    place="store", kind="standard", shards=1, length=10, verbs=({"send": 20, "receive": 50, "delete": 10},)
)
_FULL = attrs.evolve(_REQUESTS, kind="full", verbs=({"send": 20, "receive": 50, "delete": 10, "cap": 10},))
_COMMIT = "lakequeue.storage.engines.commit"

MUTATIONS = [
    Mutation(
        "commit without a lock", replace(f"{_COMMIT}.committing", lambda *_, **__: nullcontext()), {_ASLEEP: "6"}
    ),
    Mutation("clean without a lock", clean_without_a_lock, {_ASLEEP: "6"}),
    Mutation("overwrite log entries", replace(LocalFolder, "create", overwrite_log_entries), {_ANY: "1 2"}),
    Mutation("no check of the snapshot", replace(f"{_COMMIT}.Commit._holds", lambda *_: True), {_ANY: "1 2 3"}),
    Mutation("no search for the token", replace(Table, "landed", lambda *_: False), {_ANY: "5 7"}),
    Mutation("drop whatever is closed", drop_whatever_is_closed, {_ANY: "1"}),
    Mutation(
        "merge without a fence",
        merge_without_a_fence,
        {Aim(kind="standard", style="calm", shards=1, length=10, verbs=({"send": 60, "compact": 30},)): "1"},
    ),
    Mutation(
        "answer from memory",
        answer_from_memory,
        {Aim(kind="standard", style="calm", shards=1, verbs=({"send": 20, "receive": 20, "change": 20},)): "8"},
    ),
    Mutation(
        "know the log as it was",
        replace("lakequeue.runtime.shard_ledger._short", lambda *_: False),
        {Aim(kind="standard", style="calm", shards=1, verbs=({"send": 40, "receive": 40, "batch": 10},)): "1"},
    ),
    Mutation("add staged sends again", add_staged_sends_again, {_STAGED: "2"}),
    Mutation("apply requests again", apply_requests_again, {_REQUESTS: "DUR-26"}),
    Mutation(
        "overlook that others committed a request",
        replace(requests, "answers", lambda *_: {}),
        {_REQUESTS: "DUR-26"},
    ),
    Mutation("leave requests without a change", leave_requests_without_a_change, {_REQUESTS: "DUR-26"}),
    Mutation(
        "take a posted request for refused",
        take_a_posted_request_for_refused,
        {attrs.evolve(_REQUESTS, style="requests"): "DUR-26"},
    ),
    Mutation(
        "take a request that lands late for refused",
        take_a_late_request_for_refused,
        {attrs.evolve(_REQUESTS, style="requests"): "DUR-26"},
    ),
    Mutation("commit requests without a fence", commit_requests_without_a_fence, {_REQUESTS: "DUR-26"}),
    Mutation(
        "wait for requests of dead processes",
        wait_for_requests_of_dead_processes,
        {attrs.evolve(_REQUESTS, style="kills"): "DUR-26"},
    ),
    Mutation(
        "overlook how many are in flight",
        replace("lakequeue.shard.claim.standard._allowed", lambda _, command: command.max_messages),
        {_FULL: "INF-11"},
    ),
    Mutation("know the first attributes only", know_the_first_attributes_only, {_FULL: "QUE-25"}),
    Mutation(
        "answer requests to a closed queue",
        replace(ShardMachine, "_apply", lambda self, command: decide._RULES[type(command)](self._state, command)),
        {
            Aim(
                place="store", kind="dropped", shards=1, length=10, verbs=(_LEDGER, _LEDGER | {"drop": 20})
            ): "QUE-13"
        },
    ),
    Mutation("overlook that others sent", overlook_that_others_sent, {attrs.evolve(_STAGED, place="disk"): "2"}),
    Mutation(
        "offer what a power cut tears",
        offer_what_a_power_cut_tears,
        {attrs.evolve(_STAGED, place="disk", style="cuts"): "DUR-1"},
    ),
    Mutation("read no newer log", read_no_newer_log, {_ANY: "1"}),
    Mutation(
        "accept any mac",
        replace("lakequeue.model.receipt_handles.hmac.compare_digest", lambda *_: True),
        {_ANY: "3"},
    ),
    Mutation(
        "accept any lease",
        accept_any_lease,
        {Aim(kind="standard", shards=1, verbs=(_LEDGER | {"pause": 10},)): "3"},
    ),
    Mutation(
        "keep the machine after a failure",
        keep_the_machine_after_a_failure,
        {Aim(place="store", style="requests", shards=1, length=10, verbs=(_LEDGER,)): "7"},
    ),
    Mutation("forget the bucket", _without_bucket, {Aim(kind="jobs"): "JOB-11"}),
    Mutation(
        "hand out what others charged",
        replace(Tokens, "_charge", lambda tokens, count: count),
        {Aim(kind="jobs", shards=2, verbs=({"send": 30}, {"receive": 60, "send": 10})): "JOB-11"},
    ),
    Mutation("receive in a pause", receive_in_a_pause, {Aim(kind="jobs"): "JOB-1"}),
    Mutation("take a refused commit for landed", replace(f"{_COMMIT}._landed", lambda *_: True), {_ANY: "7"}),
    Mutation(
        "leave deletions unfinished",
        replace(OpenQueue, "service", _without_finishing),
        {Aim(kind="dropped", style="kills", verbs=({"drop": 30, "counts": 10},)): "6"},
    ),
    Mutation("forget leases on loading", forget_leases_on_loading, {_ANY: "8"}),
    Mutation(
        "send to closed logs",
        replace(Appender, "check_open", lambda _: None),
        {Aim(kind="dropped", verbs=({"send": 60}, {"send": 20, "drop": 20})): "7"},
    ),
    # FIFO queues
    Mutation(
        "look for duplicates before the first try only",
        look_for_duplicates_before_the_first_try_only,
        {Aim(kind="fifo", style="calm", shards=1, length=4, verbs=({"again": 40},)): "DDP-10"},
    ),
    Mutation(
        "know own ids only",
        replace(DedupWindow, "follow", lambda self, table, end, now: setattr(self, "end", end)),
        {_FIFO: "DDP-1"},
    ),
    Mutation(
        "forget no ids",
        replace(DedupWindow, "advance", lambda *_: None),
        {Aim(kind="fifo", style="calm", verbs=({"again": 40, "pause": 40},)): "DDP-9"},
    ),
    Mutation(
        "overlook purges",
        replace(ShardLedger, "purged_offset", lambda _: 0),
        {Aim(kind="fifo", verbs=({"again": 60, "purge": 10},)): "DDP-13"},
    ),
    Mutation(
        "drop segments with live ids",
        drop_segments_with_live_ids,
        {Aim(kind="fifo", style="kills", shards=1, length=10, verbs=({"again": 20} | _BUSY,)): "RET-11"},
    ),
    Mutation("forget what is in flight on loading", forget_what_is_in_flight_on_loading, {_FIFO: "FIF-3"}),
    Mutation(
        "go past hidden messages", replace(ShardState, "stored_from", _next_available), {_FIFO: "FIF-4 FIF-9"}
    ),
    Mutation("count sequence numbers in memory", count_sequence_numbers_in_memory, {_FIFO: "SEQ-3"}),
    Mutation("store no attempts", store_no_attempts, {_ATTEMPTS: "ATT-3"}),
    Mutation("store no places of attempts", store_no_places_of_attempts, {_ATTEMPTS: "ATT-1"}),
    Mutation("let attempts live on", let_attempts_live_on, {_FIFO: "ATT-5"}),
    # bodies of settled messages
    Mutation("empty what is stored", overlook_in_ledgers(False), {Aim(settled=True): "DLT-6"}),
    Mutation(
        "empty what a rewind restores", overlook_in_ledgers(True), {Aim("disk", "history", settled=True): "RWD-4"}
    ),
    # groups with a limit
    Mutation(
        "forget what of a group is in flight",
        replace("lakequeue.shard.claim.tenants.Tenants._load", lambda self, group: self._taken.get(group, 0)),
        {Aim(kind="groups", verbs=({"send": 40, "receive": 40},)): "FAI-4"},
    ),
    # moves
    Mutation(
        "append without a look at the number",
        replace("lakequeue.storage.messages.deliver_moved.arrived", lambda *_: False),
        {Aim(kind="letters", shards=1, verbs=(_MOVES,)): "DLQ-2 DLQ-8"},
    ),
    Mutation(
        "believe that a move arrived",
        replace("lakequeue.storage.messages.deliver_moved.arrived", lambda *_: True),
        {_LETTERS: "DLQ-2 DLQ-8"},
    ),
    Mutation(
        "remove without appending",
        replace("lakequeue.runtime.shard_sender.deliver", lambda *_: False),
        {_LETTERS: "DLQ-2 DLQ-8"},
    ),
    Mutation("use a move's number again", use_a_number_again, {_LETTERS: "DLQ-2 DLQ-8"}),
    # deliveries into a table
    Mutation("a block looks like an append", a_block_looks_like_an_append, {_DELIVERY: "TAB-20 TAB-26"}),
    Mutation("messages are deleted before the append", messages_are_deleted_first, {_DELIVERY: "TAB-25"}),
    Mutation(
        "rows arrive after failed messages are released", release_after_the_append, {_FAILING: "TAB-6 TAB-29"}
    ),
    Mutation(
        "an acknowledged append counts unseen",
        an_acknowledged_append_counts_unseen,
        {attrs.evolve(_DELIVERY, style="asleep", verbs=(_DELIVERS, {"other": 20, "clean": 20})): "TAB-20"},
    ),
    Mutation("a refused block is an arrival", a_refused_block_is_an_arrival, {_LOST: "TAB-26"}),
    Mutation("nobody blocks", replace(protocol, "close", block_nothing), {_DELIVERY: "TAB-26"}),
    Mutation(
        "rows that arrived are not synced",
        replace(SimulatedTable, "sync", lambda *_: None),
        {attrs.evolve(_DELIVERY, place="disk", style="cuts"): "TAB-24"},
    ),
    Mutation("what is undecided is visible", what_is_undecided_is_visible, {_DELIVERY: "TAB-5"}),
    Mutation(
        "slots are used again with their number", slots_are_used_again_with_their_number, {_DELIVERY: "TAB-2"}
    ),
    # defects of the past
    Mutation("a fence outlives its log", trust_a_fence_without_its_log, {Aim(place="disk", style="trims"): "1 7"}),
    Mutation(
        "a late PUT is taken for refused",
        take_a_late_put_for_refused,
        {Aim(place="store", style="requests", verbs=({"send": 40, "receive": 20},)): "7"},
    ),
    Mutation(
        "a checkpoint is never synced",
        never_sync_a_checkpoint,
        {
            Aim(
                place="disk", style="cuts", shards=1, length=10, verbs=({"send": 40, "receive": 10, "pause": 5},)
            ): "DUR-3"
        },
    ),
    Mutation("an acknowledged entry is not synced", sync_no_entry, {_ANY: "DUR-1"}),
    Mutation("data files are not synced", sync_no_file, {_ANY: "DUR-1"}),
    Mutation(
        "entries of others are not synced",
        answer_what_others_did_not_sync,
        {
            Aim(
                place="disk", kind="standard", style="unsynced", shards=1, verbs=({"send": 40}, {"receive": 40})
            ): "DUR-1"
        },
    ),
    Mutation("a log is trimmed without a checkpoint", trim_without_a_checkpoint, {_ANY: "DUR-3"}),
    Mutation(
        "logs are trimmed newest first",
        trim_newest_first,
        {Aim(place="disk", style="trims", verbs=({"send": 60, "pause": 5},)): "1"},
    ),
    Mutation("entries are written in place", write_entries_in_place, {_ANY: "1"}),
    Mutation(
        "the newest answer is not asked for",
        replace(f"{_COMMIT}.LONG_COMMIT", 10**9),
        {Aim(place="store", style="asleep", kind="standard", verbs=_BESIDE): "7"},
    ),
    Mutation(
        "know what is gone as an error",
        lose_the_type_of_what_is_gone,
        {
            Aim(
                kind="standard", style="calm", shards=1, length=10, verbs=({"receive": 30, "pause": 10}, _BUSY)
            ): "7"
        },
    ),
    Mutation(
        "acknowledge without a look at the place",
        replace(Table, "_is_still_based", lambda _: True),
        {Aim(place="disk", style="restores", shards=1, verbs=({"send": 60},)): "DUR-85"},
    ),
    Mutation(
        "commit where the path leads",
        replace(LocalFolder, "pinned", lambda folder, opened=None: nullcontext(folder)),
        {Aim(place="disk", style="restores", shards=1, verbs=({"send": 60},)): "DUR-85"},
    ),
    Mutation("take any log for the same", take_any_log_for_the_same, {Aim("disk", style="restores"): "DUR-80"}),
    Mutation(
        "take any ledger for one of the log",
        take_any_ledger_for_one_of_the_log,
        {Aim(style="tables"): "DUR-4"},
    ),
    Mutation("every clock is believed", believe_every_clock, {Aim(style="clocks"): "DUR-82"}),
    Mutation("take a full disk for done", take_a_full_disk_for_done, {Aim(place="disk", style="inodes"): "1"}),
    Mutation(
        "verify no checksums",
        verify_no_checksums,
        {Aim(kind="standard", style="bits", shards=1, length=10, verbs=({"send": 40, "receive": 20},)): "DUR-8"},
    ),
    Mutation(
        "a draft is written once",
        write_no_draft_again,
        {Aim(place="disk", style="asleep", verbs=({"send": 20}, {"send": 40, "pause": 30, "compact": 20})): "7"},
    ),
]
"""Each with the runs in which the moment is not rare."""
NOT_FOUND = {"know what is gone as an error", "verify no checksums"}
"""Those that no run has come by so far."""
