"""Reads a shard that may be damaged: its logs, its ledger, and its files of messages."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from lakequeue.errors import DamagedTable
from lakequeue.model.clock import MICROS
from lakequeue.model.damage import Finding
from lakequeue.shard.spans import SpanSet
from lakequeue.storage import layout
from lakequeue.storage.delta_log import entry_name, obstacles
from lakequeue.storage.inspection.found_log import FoundLog, read_log
from lakequeue.storage.inspection.ledger_rows import LedgerRows, read_ledger
from lakequeue.storage.inspection.message_files import (
    Displaced,
    FoundFile,
    Range,
    displaced,
    find_files,
    kept_files,
    missing_ranges,
    ranges,
    shown,
)
from lakequeue.storage.inspection.send_times import misdated, shown_at
from lakequeue.storage.inspection.unnamed_files import rejoined
from lakequeue.storage.ledger import put_back
from lakequeue.storage.messages.read import LogFile, log_files
from lakequeue.storage.stores import Store
from lakequeue.storage.table_version import TableVersion

CLOCK_AHEAD = 60 * MICROS
"""Microseconds by which the last commit may be ahead of this machine's clock. More is reported as a problem."""


@attrs.frozen
class FoundShard:
    """What can be read of a shard. ``messages`` or ``receipts`` is None if this table has no Delta log."""

    messages_path: str
    receipts_path: str
    messages: FoundLog | None
    receipts: FoundLog | None
    state: TableVersion | None
    """Newest version of the table ``messages``."""
    ledger: LedgerRows | None
    ledger_problem: DamagedTable | None
    files: list[FoundFile]

    @property
    def was_unused(self) -> bool:
        """True if no message was ever received from the shard, because there is no ledger or its head is 0."""
        return self.receipts is None or (self.ledger is not None and self.ledger.head.head_offset == 0)

    @property
    def intact_log(self) -> bool:
        """True if all needed log entries of the table ``messages`` can be read."""
        return self.messages is not None and self.messages.newest_sound == self.messages.last

    @property
    def is_complete(self) -> bool:
        """True if all log entries can be read, all files are sound, and no message is missing."""
        sound = self.intact_log and not any(each.problem for each in self.files)
        return sound and not self.missing(self.ledger)

    @property
    def send_end(self) -> int:
        """End offset of the table ``messages``, as its log entries say."""
        return 0 if self.state is None else layout.end_of(self.state.transaction(layout.SEND_ID))

    @property
    def displaced(self) -> list[Displaced]:
        """Messages that share their offset with another message."""
        return [] if self.state is None else displaced(self.state.folder, self.files)

    @property
    def forgotten(self) -> int:
        """Epoch of the ledger at which bodies were last removed from the log."""
        return 0 if self.state is None else self.state.transaction(layout.FORGOTTEN_ID)

    @property
    def emptying(self) -> int:
        """Random number that identifies the last removal of bodies from the log. 0 if none was removed."""
        return 0 if self.state is None else self.state.transaction(layout.EMPTYING_ID)

    @property
    def is_newest(self) -> bool:
        """True if the ledger knows the last removal of bodies. False if it is unreadable, or an older backup."""
        known = self.ledger is not None and self.ledger.head.knows(self.emptying)
        return known and self.ledger is not None and self.forgotten <= self.ledger.head.epoch

    def low(self, ledger: LedgerRows | None) -> int:
        """Returns the first offset that the log must have: the first offset of the log's files, or the floor of
        ``ledger`` if the floor is lower.

        If ``is_newest`` is False, ``ledger`` may be older than the log. Its floor then counts only if entries of
        the log are unreadable.
        """
        kept = [each.first for each in kept_files(self.files)]
        # Includes damaged files, because the ledger still needs what they held.
        named = [each.logged_first for each in self.files if each.named and each.logged_first is not None]
        begin = min([*kept, *named], default=self.send_end)
        # An older ledger has a lower floor. Messages from there on may have been settled and dropped since.
        exact = ledger is not None and (self.is_newest or not self.intact_log)
        return min(begin, ledger.head.floor_offset) if ledger is not None and exact else begin

    def end(self, ledger: LedgerRows | None) -> int:
        """Returns the offset after the last message that the log, a file or the ledger knows."""
        held = [int(each.offsets.max()) + 1 for each in self.files if len(each.offsets)]
        return max(self.send_end, ledger.head.head_offset if ledger else 0, *held, 0)

    def missing(self, ledger: LedgerRows | None) -> list[Range]:
        """Returns the offsets from ``low`` to ``end`` that no sound file has."""
        present = [(each.first, each.last) for each in kept_files(self.files)]
        return missing_ranges(present, self.low(ledger), self.end(ledger))

    def gone(self, ledger: LedgerRows | None, blank: list[Range]) -> list[Range]:
        """Returns the offsets of lost messages: those in ``blank``, and those that are in no file at all."""
        kept = {each.file.path for each in self._read_by_calls()}
        others = [np.setdiff1d(each.offsets, each.blank) for each in self.files if each.file.path not in kept]
        others += [each.offsets for each in self.files if each.harmless]
        there = ranges(np.unique(np.concatenate([*others, np.array([], np.int64)])))
        gone = [
            part
            for first, last in self.missing(ledger)
            for part in missing_ranges([each for each in there if each[1] >= first], first, last + 1)
        ]
        return sorted([*gone, *blank])

    def blank(self, ledger: LedgerRows | None) -> list[Range]:
        """Returns the offsets whose rows are empty, although the ledger has not forgotten the messages."""
        if ledger is None:
            return []
        held = SpanSet((run.first, run.last) for run in sorted([*ledger.runs, *ledger.history]))
        held.add(ledger.head.head_offset, max(self.end(ledger), ledger.head.head_offset))
        offsets = np.concatenate([np.array([], np.int64), *(each.blank for each in self._read_by_calls())])
        return [part for span in ranges(np.unique(offsets)) for part in held.within(*span)]

    def _read_by_calls(self) -> list[FoundFile]:
        return [*kept_files(self.files), *(each for each in self.files if each.harmless)]


def find_shard(store: Store, root: str, key: str, shard: int) -> FoundShard:
    """Reads all of a shard. Reads the ledger first, so that the log is at least as new as the ledger."""
    paths = layout.messages_path(root, key, shard), layout.receipts_path(root, key, shard)
    receipts = _read(store, paths[1])
    ledger, problem, newest = None, None, None if receipts is None else receipts.newest()
    if newest is not None:
        try:
            ledger = read_ledger(newest)
        except DamagedTable as error:
            problem = error
    if receipts is not None and receipts.newest_sound != receipts.last:
        ledger = None  # The ledger was put together without entries that cannot be read.
    messages = _read(store, paths[0])
    state = None if messages is None else messages.newest()
    files = [] if state is None else find_files(state.folder, state.files())
    found = FoundShard(*paths, messages, receipts, state, ledger, problem, files)
    missing = found.missing(ledger)
    if messages is None or state is None or not (messages.unreadable or (missing and messages.is_being_repaired)):
        return found
    clock = state.transaction(layout.CLOCK_ID)
    more = rejoined(messages, kept_files(files), missing, found.send_end, clock)
    return attrs.evolve(found, files=[*files, *more])


def shard_findings(found: FoundShard, queue: str, region: str, now: int) -> Iterator[Finding]:
    """Yields each problem of a shard, and what a repair will do about it."""

    def finding(table: str, file: str | None, problem: str, repair: str, damage: bool = True) -> Finding:
        return Finding(queue, region, table, file, problem, repair, damage)

    for path, log, lost in (
        (found.messages_path, found.messages, RESTORE),
        (found.receipts_path, found.receipts, _REBUILD),
    ):
        if log is None:
            yield finding(path, None, "is missing", lost)
        else:
            newest = log.newest()
            if newest is not None and layout.is_elsewhere(path, newest.state.metadata.get("name")):
                problem = f"is the table {newest.state.metadata['name']}, and was moved here"
                yield finding(path, None, problem, "nothing; move both directories to where they belong")
            for file, problem, repair in log_findings(log, lost):
                yield finding(path, file, problem, repair)
    if found.ledger_problem is not None:
        error = found.ledger_problem
        yield finding(error.table, error.file, error.reason, _REBUILD)
    for each in found.files:
        if each.problem is not None and each.named:
            repair = "its messages are written anew in order" if len(each.offsets) else "its messages are lost"
            if each.harmless:
                repair += ", as the compactor does, too"
            yield finding(found.messages_path, each.file.name, each.problem, repair, damage=not each.harmless)
    if found.state is None:
        return
    for file, problem, repair in _contradictions(found):
        yield finding(found.messages_path, file, problem, repair)
    ledger = found.ledger
    if ledger is not None and not found.is_newest:
        yield finding(found.receipts_path, None, put_back(ledger.head.epoch, found.forgotten), _PUT_BACK)
    if gone := found.gone(ledger, found.blank(ledger) if found.is_newest else []):
        problem = f"the log has no message at {shown(gone)}"
        yield finding(found.messages_path, None, problem, "messages not deleted yet are reported as lost")
    if found.intact_log:  # A repair that was killed leaves a log like this.
        for each in found.files:
            if not each.named:
                problem = f"has {shown([(each.first, each.last)])}, and the log does not name it"
                yield finding(found.messages_path, each.file.name, problem, "is taken into the log again")
    end = found.end(ledger)
    if found.send_end != end:
        problem = f"messages were given offsets up to {end - 1}, and the log says that it ends at {found.send_end}"
        yield finding(found.messages_path, None, problem, f"the next message gets offset {end}")
    committed = ledger.head.committed_at if ledger is not None else 0
    for path, instant in (
        (found.messages_path, found.state.transaction(layout.CLOCK_ID)),
        (found.receipts_path, committed),
    ):
        if instant > now + CLOCK_AHEAD:
            problem = f"was committed at {shown_at(instant)}, which is in the future: time stands still until then"
            yield finding(path, None, problem, "set this machine's clock, or wait", damage=False)


def _contradictions(found: FoundShard) -> Iterator[tuple[str | None, str, str]]:
    for each in found.displaced:
        problem = f"has message {each.message_id} at offset {each.offset}, and another message is there, too"
        yield each.file.name, problem, "the message gets another offset"
    doubted = list(doubts(found))
    yield from ((file, problem, RESTORE) for file, problem in doubted)
    for own, problem in misdated(found.files) if found.is_complete else ():
        yield own.file.name, problem, RESTORE if doubted else _APART


def doubts(found: FoundShard) -> Iterator[tuple[str | None, str]]:
    """Yields contradictions in a complete log, each as a file and a text. A repair cannot remove them.

    The file is None if the text is about the log.
    """
    files, state = found.files, found.state
    if state is None or not found.is_complete:
        return
    yield from ((each.file.name, each.doubt) for each in files if each.doubt is not None)
    try:
        log_files(state)
    except DamagedTable as error:
        yield error.file, error.reason
        return
    assert found.messages is not None
    sent = {each.file.path: each.sent for each in files}
    for version, entry in found.messages.entries.items():
        end, clock = entry.transactions.get(layout.SEND_ID, 0), entry.transactions.get(layout.CLOCK_ID)
        last = max(map(LogFile.of, entry.added), key=lambda file: file.last, default=None)
        if last is None or clock is None or layout.FILES_ID in entry.transactions:
            continue  # The entry is no send.
        instants = last.opened_at if last.bulk else (sent.get(last.file.path) or (0, clock))[1]
        if (last.last + 1, instants) != (layout.end_of(end), clock):
            yield entry_name(version), "names another end or time of its send than its files"
    newest = max((each.sent[1] for each in files if each.sent is not None), default=0)
    if newest > (clock := state.transaction(layout.CLOCK_ID)):
        yield None, f"has a message of {shown_at(newest)}, and its clock is at {shown_at(clock)}"


_REBUILD = "goes back to its newest readable version, or starts empty; messages received since come again"
_APART = "is written anew as a segment of its own"
_PUT_BACK = "messages deleted since come again unless they were emptied"
RESTORE = "nothing; restore it from a copy"


def log_findings(log: FoundLog, lost: str) -> Iterator[tuple[str | None, str, str]]:
    """Yields each problem of a log: the file (None for the whole log), what is wrong, and what a repair does."""
    if log.start is None:
        yield None, "its log has no beginning: no checkpoint and no first entry can be read", lost
    needed = set(map(entry_name, log.unreadable))
    for file, problem in sorted(log.problems.items()):
        if log.start is None:
            repair = "nothing can be read without it"
        elif "checkpoint" in file:
            repair = "is moved aside, and another written"
        elif file in log.strays:
            repair = "is moved aside"
        elif file in needed:
            repair = "is moved aside; its changes are found in other files where possible"
        else:
            repair = "is moved aside with older files; a checkpoint has its content"
        yield file, problem, repair
    newest = log.newest()
    if newest is not None and (found := obstacles(newest.state)):
        problem = f"another program gave it {', '.join(found)}, which lakequeue does not know"
        yield None, problem, "is taken back"


def _read(store: Store, path: str) -> FoundLog | None:
    try:
        return read_log(store.folder(path))
    except FileNotFoundError:
        return None
