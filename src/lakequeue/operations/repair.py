"""Repairs damage of a root, and reports lost and repeated messages."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import attrs

from lakequeue.errors import counted
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros
from lakequeue.model.damage import Repair
from lakequeue.model.names import name_hash
from lakequeue.operations.attributes import make_tables
from lakequeue.operations.check import shards_of
from lakequeue.operations.repair_deliveries import block_step, undelivered
from lakequeue.operations.schedules import OpenSchedules
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.root import Root
from lakequeue.shard.runs import Head
from lakequeue.shard.spans import SpanSet
from lakequeue.storage import compaction_notes, layout, stats
from lakequeue.storage.catalog import QueueRow, table_of
from lakequeue.storage.checked_names import shard_folders
from lakequeue.storage.compaction_notes import CompactionNotes
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.inspection.catalog_rows import FoundCatalog, find_catalog
from lakequeue.storage.inspection.found_log import FoundLog, read_log
from lakequeue.storage.inspection.ledger_rows import LedgerRows, newest_readable
from lakequeue.storage.inspection.message_files import Range
from lakequeue.storage.inspection.send_times import known_times, sent_between
from lakequeue.storage.inspection.shards import FoundShard, doubts, find_shard
from lakequeue.storage.inspection.unnamed_files import ids_of
from lakequeue.storage.repair.catalog import found_rows
from lakequeue.storage.repair.clock import clock_steps, row_set_back
from lakequeue.storage.repair.ledger import RepairedLedger, ledger_steps, new_ledger, repaired_ledger
from lakequeue.storage.repair.logs import checkpoint_step, has_deleted_rows, log_steps, without_features
from lakequeue.storage.repair.messages import fence_step, log_step, more_than_fit
from lakequeue.storage.repair.segments import segments_steps
from lakequeue.storage.repair.steps import RepairStep, files_step
from lakequeue.storage.roots import is_local_folder
from lakequeue.storage.schedules import unreadable
from lakequeue.storage.stores import Store


def repair(
    root: Root, name: str | None = None, *, apply: bool = False, force: bool = False, adopt: bool = False
) -> list[Repair]:
    """Repairs damage of a root, or of the queue ``name``; see ``LakeQueue.repair``."""
    with _mending(root, apply) as (engine, making):
        done = list(_repair_catalog(root, engine, name, making, adopt))
        if name is None:
            done += _repair_own(engine, layout.stats_path(root.path), "it is made anew", making)
            done += _repair_schedules(engine, root.path, making)
        for row, shard in shards_of(root, name):
            done += _repair_shard(root, engine, row, shard, making, force)
        return done


def repair_clock(root: Root, name: str | None = None, *, apply: bool = False) -> list[Repair]:
    """Sets back future instants that a wrong clock wrote; see ``LakeQueue.repair``."""
    done: list[Repair] = []
    with _mending(root, apply) as (engine, making):
        rows = [row for row in root.rows() if name is None or (row.region, row.name) == (root.region, name)]
        only_deleted = bool(name and rows) and all(row.deleted_at is not None for row in rows)
        living = [] if only_deleted else shards_of(root, name)
        for row, shard in living:
            paths = [path(root.path, row.key, shard) for path in (layout.messages_path, layout.receipts_path)]
            with _locked(paths, making):
                messages, receipts = map(engine.open, paths)
                steps = list(clock_steps(messages, receipts, root.now()))
                done += _finished(Repair(row.name, row.region, shard, []), steps, making)
        report = Repair(name, None if name is None else root.region, None, [])
        done += _finished(report, list(_own_clock_steps(root, engine, name, rows)), making)
    return done


def _own_clock_steps(
    root: Root, engine: Engine, name: str | None, rows: Sequence[QueueRow]
) -> Iterator[RepairStep]:
    """Yields steps that set back future instants in the root's own tables, for ``name`` or for all queues."""
    now, keys = root.now(), {row.key for row in rows}

    def earlier() -> list[QueueRow]:
        known = [(row, row_set_back(row, now)) for row in root.catalog.rows() if row.key in keys]
        return [new for row, new in known if new != row]

    with root.lock:
        changed = sorted({row.name for row in earlier()})
    if changed:
        yield RepairStep(
            f"sets instants of the catalog back: {', '.join(changed)}", lambda: root.put_rows(earlier)
        )
    path = layout.stats_path(root.path)
    for key in (sorted(keys) if name is not None else [None]) if engine.exists(path) else []:
        table = engine.open(path)
        if stats.later(table, key, now):
            text = "drops statistics of minutes yet to come"
            yield RepairStep(text, lambda table=table, key=key: stats.set_back(table, key, now))  # type: ignore[misc]
    ended = compaction_notes.load(engine.store, root.path).ended_at
    if name is None and ended is not None and ended > now:
        text = "forgets the notes of a compaction yet to come"
        yield RepairStep(text, lambda: compaction_notes.save(engine.store, root.path, CompactionNotes()))
    schedules = OpenSchedules(root)
    silent = schedules.set_back(name, from_micros(now))
    if silent:
        names = ", ".join(sorted(row.name for row in silent.values()))
        yield RepairStep(f"sets schedules back, which go on after now: {names}", lambda: schedules.replace(silent))


@contextmanager
def _mending(root: Root, apply: bool) -> Iterator[tuple[Engine, Steps | None]]:
    """Runs a repair in the block. Yields the engine, and a counter of commits (None if not ``apply``)."""
    steps = Steps("the repair")
    with root.storage_errors(), steps.rest():
        if apply:
            root.check_clock("a repair")
        yield Engine(root.engine.store), steps if apply else None
        if apply:
            root.release()  # what this process knew of the tables


@contextmanager
def _locked(tables: Sequence[str], making: Steps | None) -> Iterator[None]:
    with ExitStack() as locks:
        for table in filter(is_local_folder, tables) if making else ():
            locks.enter_context(committing(table, exclusive=True))
        yield


def _finished(report: Repair, steps: Sequence[RepairStep], making: Steps | None) -> Iterator[Repair]:
    if steps or report.notes or report.unknown:
        if making is not None:
            for step in steps:
                with making.step():
                    step.apply()
        yield attrs.evolve(report, steps=[step.text for step in steps], applied=bool(making and steps))


# --- a shard

_VECTORS = (
    "another program may have deleted rows by deletion vectors, and without them the rows would come back; "
    "let it remove them from the files (REORG TABLE ... APPLY (PURGE)), and repair again"
)


def _repair_shard(
    root: Root, engine: Engine, row: QueueRow, shard: int, making: Steps | None, force: bool
) -> Iterator[Repair]:
    paths = layout.messages_path(root.path, row.key, shard), layout.receipts_path(root.path, row.key, shard)
    with _locked(paths, making):
        found = find_shard(engine.store, root.path, row.key, shard)
        report = Repair(row.name, row.region, shard, [])
        if found.messages is None and found.was_unused:
            report = attrs.evolve(report, unknown=["what was in the shard, if anything, is lost"])
            steps = [RepairStep("makes its tables anew", lambda: make_tables(root, row, shard))]
            yield from _finished(report, steps, making if force else None)
            return
        if found.messages is None or without_features(found.messages).log.start is None:
            note = f"the log {found.messages_path} has no beginning that can be read; restore it from a copy"
            yield attrs.evolve(report, notes=[note])
            return
        for log in (found.messages, found.receipts):
            if log is not None and has_deleted_rows(without_features(log)):
                yield attrs.evolve(report, notes=[f"{log.folder.uri}: {_VECTORS}"])
                return
        missing = found.missing(found.ledger or newest_readable(found.receipts))
        if too_many := more_than_fit(found.messages_path, missing):
            yield attrs.evolve(report, notes=[too_many])
            return
        before, report, steps = _plan(root, engine, row, shard, found, report)
        for each in _finished(report, steps, making if force or not report.unknown else None):
            after = find_shard(engine.store, root.path, row.key, shard) if each.applied else found
            if each.applied and after.ledger is not None and after.messages is not None:
                left = _deliverable(after.ledger, after.end(after.ledger))
                yield before.compared(each, left, after.messages)
            else:
                yield each


def _deliverable(rows: LedgerRows | RepairedLedger, end: int, low: int = 0) -> SpanSet:
    found, fresh = SpanSet((run.first, run.last) for run in sorted(rows.runs)), rows.head.head_offset
    if fresh < end:
        found.add(fresh, end - 1)
    found.discard(0, max(rows.head.purged_offset, low) - 1)
    return found


@attrs.frozen
class _Before:
    """Messages of a shard that could be received before the repair."""

    messages: SpanSet
    newest: bool
    """False if the messages are from an older ledger, so that newer receives and deletions are unknown."""
    found: FoundShard

    def correct(self, blank: Sequence[Range], end: int, twice: int) -> None:
        """Removes the messages in ``blank``, which have no body. Adds ``twice`` messages at new offsets from
        ``end`` on: messages whose offset another message also had.
        """
        for span in blank:
            self.messages.discard(*span)
        if twice:
            self.messages.add(end, end + twice - 1)

    def compared(self, report: Repair, left: SpanSet, log: FoundLog) -> Repair:
        """Adds lost and repeated messages to a report (DUR-36). ``left``: offsets receivable after the repair."""
        lost = [part for span in self.messages for part in left.missing(*span)]
        again = [part for span in left for part in (self.messages.missing(*span) if self.newest else [span])]
        found, back = ids_of(log, lost), ids_of(log, again)
        known = known_times(self.found.messages or log, self.found.files)
        sent = [sent_between(known, each) for each in lost]
        return attrs.evolve(report, lost=lost, lost_ids=found, lost_sent=sent, again=again, again_ids=back)


def _plan(
    root: Root, engine: Engine, row: QueueRow, shard: int, found: FoundShard, report: Repair
) -> tuple[_Before, Repair, list[RepairStep]]:
    state = found.state
    assert found.messages is not None and state is not None
    messages, receipts = without_features(found.messages), None
    if found.receipts is not None:
        receipts = without_features(found.receipts)
        found = attrs.evolve(found, receipts=receipts.log)
    send = state.transaction(layout.SEND_ID)
    base = found.ledger or newest_readable(found.receipts)
    why, newest = "what is lost counts as deleted", found.is_newest
    if base is None:
        low = found.low(None)
        base = new_ledger(row.attributes, row.attributes_version, low, send, root.now())
        why = "nothing of it can be read"
    elif not newest:
        why = f"it goes back to its version {base.version}, epoch {base.head.epoch}"
    missing, blank = found.missing(base), found.blank(base)
    gone = found.gone(base, blank)
    low, end = found.low(base), found.end(base)
    rows = repaired_ledger(found, base, gone, low)
    writing = log_step(engine, found, missing, end, messages.log.last + (not newest))
    barrier = {} if writing is None else {layout.SEND_ID: send - layout.end_of(send) + end}
    steps = list(log_steps(messages, barrier))
    rows, dropped, least = (rows, [], 0) if newest else undelivered(rows, root.now())
    epoch = max(_newest_epoch(found), found.forgotten, least) + 1
    if receipts is not None and receipts.log.start is not None:
        steps += log_steps(receipts, {layout.RECEIPTS_ID: epoch})
    if rows.changed or not newest:
        head = attrs.evolve(rows.head, epoch=epoch + 1, emptying=str(found.emptying or "") or None)
        head = attrs.evolve(head, committed_at=max(head.committed_at, root.now()))
        if not newest:
            head = _gone_back(head, _moves(root, engine.store, row.key, shard))
            blocking, unblocked = block_step(root, row, shard, epoch, _deliverable(rows, end))
            dropped += unblocked
            steps += [*blocking, fence_step(engine, found)]
        steps += ledger_steps(engine, found, attrs.evolve(rows, head=head), why)
    steps += [] if writing is None else [writing]
    steps += segments_steps(engine, found, messages.log.last + (not newest) + (writing is not None))
    for path, undone in ((found.messages_path, messages), (found.receipts_path, receipts)):
        if undone is not None and (undone.checkpoints or undone.log.problems or undone.log.unreadable):
            steps.append(checkpoint_step(engine, path))
        elif undone is receipts and not newest and _lost_files(found):
            steps.append(checkpoint_step(engine, path))  # which no longer names the lost files
    notes = [f"{found.messages_path}: {file or 'the log'} {problem}" for file, problem in doubts(found)] + dropped
    before, twice = _Before(_deliverable(base, end, low), newest, found), len(found.displaced)
    before.correct([] if newest else blank, end, twice)
    report = before.compared(attrs.evolve(report, notes=notes), _deliverable(rows, end + twice), messages.log)
    return before, attrs.evolve(report, unknown=[*_unknown(before, report, end)]), steps


def _gone_back(head: Head, moves: int) -> Head:
    """Returns an older ledger's head, with an empty rate limit's bucket, and a move number from ``moves`` on."""
    head = attrs.evolve(head, move_number=max(head.move_number, moves))
    pace = QueueAttributes.from_wire(head.attributes).pace
    if pace is None:
        return head
    # how much was received since is unknown, so no tokens are left
    return attrs.evolve(head, paced_to=pace.taking(pace.burst, 0, head.committed_at))


_UNKNOWN_DELETIONS = "the ledger goes back, and no longer says which of the messages that come again were deleted"


def _unknown(before: _Before, report: Repair, end: int) -> Iterator[str]:
    """Yields a text if unreadable entries of the log may have added messages that were not found elsewhere, and a
    text if it is unknown which of the messages that come again were deleted.
    """
    log = before.found.messages
    assert log is not None
    unreadable, again = len(log.unreadable), sum(not each.named for each in before.found.files)
    if unreadable > again:
        total, gone = (sum(last - first + 1 for first, last in spans) for spans in (before.messages, report.lost))
        entries = "1 entry" if unreadable == 1 else f"{unreadable:,} entries"
        found_again = f", and only the messages of {again:,} were found" * bool(again)
        kept = f"{total - gone:,} of {counted(total, 'known message')} {'is' if total - gone == 1 else 'are'} kept"
        yield (
            f"{entries} of the log cannot be read{found_again}: {kept}; "
            f"a send after them, at offset {end} or later, may be missing"
        )
    if report.again and not before.newest:
        yield _UNKNOWN_DELETIONS


def _lost_files(found: FoundShard) -> bool:
    state = None if found.receipts is None else found.receipts.newest()
    return state is not None and state.state.lost_files


def _newest_epoch(found: FoundShard) -> int:
    """Returns the highest ledger epoch that a process may have read. Counts each unreadable entry as an epoch."""
    state = None if found.receipts is None else found.receipts.newest()
    if found.receipts is None or state is None:
        return 0
    return state.transaction(layout.RECEIPTS_ID) + len(found.receipts.unreadable)


def _moves(root: Root, store: Store, key: str, shard: int) -> int:
    """Returns the number of this shard's last move that reached its target. Later moves need higher numbers."""
    last = 0
    for row in find_catalog(store, root.path).rows:
        for number in range(row.shards):
            try:
                state = read_log(store.folder(layout.messages_path(root.path, row.key, number))).newest()
            except FileNotFoundError:
                continue
            if state is not None:
                last = max(last, state.transaction(layout.move_id(key, shard)))
    return last


# --- the catalog


def _repair_catalog(
    root: Root, engine: Engine, name: str | None, making: Steps | None, adopt: bool
) -> Iterator[Repair]:
    path = layout.queues_path(root.path)
    with _locked([path], making):
        catalog = find_catalog(engine.store, root.path)
        undone, report = without_features(catalog.log), Repair(None, None, None, [])
        if undone.log.start is None:
            yield attrs.evolve(report, notes=[f"the catalog {path} has no beginning that can be read"])
            return
        steps = list(log_steps(undone, {}))
        if undone.checkpoints or undone.log.problems:
            steps.append(checkpoint_step(engine, path))
        rows = found_rows(engine.store, catalog, root.path)
        again = sorted({row.name for row in rows if row.key in catalog.unlisted})
        hidden = [key for key in catalog.unlisted if all(row.key != key for row in rows)]
        notes = [f"listed again, as in an older file: {', '.join(again)}"] if again else []
        listed = None
        if name is not None:
            hidden = [key for key in hidden if key.startswith(name_hash(root.region, name))]
            taken = next((row for row in rows if row.deleted_at is None and _is_named(root, row, name)), None)
            listed = _listed_again(root, engine, name, taken, hidden, adopt)
            if listed is not None:
                rows = [*(row for row in rows if row is not taken), listed]
                notes.append(
                    "its tags are lost, and receipt handles from before are void: what is in flight comes again"
                )
                report = attrs.evolve(report, queue=name, region=root.region)
                hidden = [key for key in hidden if key != listed.key]
                if taken is not None:
                    notes.append(f"the queue that had the name is no longer listed: {root.path}/q/{taken.key}")
        if catalog.problem is not None or listed is not None or len(rows) != len(catalog.rows):
            steps.append(_catalog_step(engine, catalog, rows))
        notes += [_still_hidden(root, key, name) for key in hidden]
        yield from _finished(attrs.evolve(report, notes=notes), steps, making)


def _is_named(root: Root, row: QueueRow, name: str) -> bool:
    return (row.region, row.name) == (root.region, name)


def _still_hidden(root: Root, key: str, name: str | None) -> str:
    how = "lakequeue repair NAME, with its name, lists it again" if name is None else "--adopt gives it the name"
    return f"{root.path}/q/{key} has messages, and no row in the catalog; {how}"


def _catalog_step(engine: Engine, catalog: FoundCatalog, rows: Sequence[QueueRow]) -> RepairStep:
    newest = catalog.log.newest()
    files = [] if newest is None else newest.files()
    tables, text = [table_of(rows)] if rows else [], f"writes the catalog anew; it has {len(rows)} rows"
    return files_step(engine, catalog.path, catalog.log.last, files, tables, text)


def _listed_again(
    root: Root, engine: Engine, name: str, taken: QueueRow | None, hidden: Sequence[str], adopt: bool
) -> QueueRow | None:
    """Returns a new catalog row for a lost queue. Returns None if no lost queue matches the name. Without
    ``adopt``, also returns None if the name is in use, or if several lost queues match.

    Args:
        taken: the row that has the name now, or None.
        hidden: keys of lost queues that may have had the name.
        adopt: True if the name may move to another queue. Each call then returns the next lost queue.
    """
    if not hidden or (not adopt and (taken is not None or len(hidden) > 1)):
        return None
    later = [key for key in sorted(hidden) if taken is None or key > taken.key]
    key = later[0] if later else min(hidden)
    folder = engine.store.folder(layout.tables_path(root.path, key))
    shards = len(shard_folders(folder.folders()))
    found = find_shard(engine.store, root.path, key, 0)
    ledger = found.ledger or newest_readable(found.receipts)
    attributes = {} if ledger is None else ledger.head.attributes
    return QueueRow(
        name=name,
        region=root.region,
        key=key,
        created_at=root.now(),
        modified_at=root.now(),
        attributes=attributes,
        attributes_version=0 if ledger is None else ledger.head.attributes_version,
        shards=shards,
        handle_key=secrets.token_bytes(layout.HANDLE_KEY_BYTES),
    )


# --- the tables of statistics and schedules


def _repair_schedules(engine: Engine, root: str, making: Steps | None) -> list[Repair]:
    path, then = layout.schedules_path(root), "add its schedules anew"
    done = list(_repair_own(engine, path, then, making))
    why = None if done else unreadable(engine, root)
    return done if why is None else [Repair(None, None, None, [], notes=[f"{path}: {why}; remove it, {then}"])]


def _repair_own(engine: Engine, path: str, then: str, making: Steps | None) -> Iterator[Repair]:
    with _locked([path], making):
        try:
            undone = without_features(read_log(engine.store.folder(path)))
        except FileNotFoundError:  # there is none before the first compaction or schedule
            return
        newest, report = undone.log.newest(), Repair(None, None, None, [])
        if newest is None:
            yield attrs.evolve(report, notes=[f"{path} cannot be read; remove it, {then}"])
            return
        steps = list(log_steps(undone, {}))
        if broken := {error.file for error in newest.broken()}:
            files = [file for file in newest.files() if file.name in broken]
            text = f"drops files of {path} that cannot be read, {then}: {', '.join(map(str, broken))}"
            steps.append(files_step(engine, path, undone.log.last, files, [], text))
        if undone.log.problems:
            steps.append(checkpoint_step(engine, path))
        yield from _finished(report, steps, making)
