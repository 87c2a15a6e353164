"""Repairing a root: what is damaged is mended as far as it can be, and what is lost or comes again is reported."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import attrs

from lakequeue.model.damage import Repair
from lakequeue.model.names import name_hash
from lakequeue.operations.check import chosen
from lakequeue.runtime.root import Root
from lakequeue.shard.spans import joined
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow, table_of
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.engines.point import PointEngine
from lakequeue.storage.found_names import shard_folders
from lakequeue.storage.inspection.catalog_rows import FoundCatalog, find_catalog
from lakequeue.storage.inspection.found_log import read_log
from lakequeue.storage.inspection.ledger_rows import newest_readable
from lakequeue.storage.inspection.message_files import Range
from lakequeue.storage.inspection.shards import FoundShard, find_shard
from lakequeue.storage.inspection.unnamed_files import ids_of
from lakequeue.storage.repair.catalog import found_rows
from lakequeue.storage.repair.ledger import MendedLedger, ledger_steps, mended, new_ledger
from lakequeue.storage.repair.logs import checkpoint_step, has_deleted_rows, log_steps, without_features
from lakequeue.storage.repair.messages import log_step
from lakequeue.storage.repair.steps import Step, files_step
from lakequeue.storage.roots import is_local_folder
from lakequeue.storage.stores import Store


def repair(root: Root, name: str | None = None, *, apply: bool = False) -> list[Repair]:
    """Mends what is damaged, see ``LakeQueue.repair``."""
    with root.storage_errors():
        engine = PointEngine(root.engine.store)
        done = list(_repair_catalog(root, engine, name, apply))
        if name is None:
            done += _repair_statistics(root, engine, apply)
        for row in chosen(root, find_catalog(engine.store, root.path), name):
            for shard in range(row.shards):
                done += _repair_shard(root, engine, row, shard, apply)
        if apply:
            root.release()  # what this process knew of the tables
        return done


@contextmanager
def _locked(tables: Sequence[str], apply: bool) -> Iterator[None]:
    """Keeps all other processes out of local tables that are there."""
    with ExitStack() as locks:
        for table in filter(is_local_folder, tables) if apply else ():
            locks.enter_context(committing(table, exclusive=True))
        yield


def _finished(report: Repair, steps: Sequence[Step], apply: bool) -> Iterator[Repair]:
    if steps or report.notes:
        for step in steps if apply else ():
            step.apply()
        yield attrs.evolve(report, steps=[step.text for step in steps], applied=apply and bool(steps))


# --- a shard

_VECTORS = (
    "another program may have deleted rows by deletion vectors, and without them the rows would come back; "
    "let it remove them from the files (REORG TABLE ... APPLY (PURGE)), and repair again"
)


def _repair_shard(root: Root, engine: PointEngine, row: QueueRow, shard: int, apply: bool) -> Iterator[Repair]:
    paths = layout.messages_path(root.path, row.key, shard), layout.receipts_path(root.path, row.key, shard)
    with _locked(paths, apply):
        found = find_shard(engine.store, root.path, row.key, shard)
        report = Repair(row.name, row.region, shard, [])
        if found.messages is None or without_features(found.messages).log.start is None:
            note = f"the log {found.messages_path} has no beginning that can be read; restore it from a copy"
            yield attrs.evolve(report, notes=[note])
            return
        for log in (found.messages, found.receipts):
            if log is not None and has_deleted_rows(without_features(log)):
                yield attrs.evolve(report, notes=[f"{log.folder.uri}: {_VECTORS}"])
                return
        report, steps = _plan(root, engine, row, shard, found, report)
        yield from _finished(report, steps, apply)


def _plan(
    root: Root, engine: PointEngine, row: QueueRow, shard: int, found: FoundShard, report: Repair
) -> tuple[Repair, list[Step]]:
    state = found.state
    assert found.messages is not None and state is not None
    messages, receipts = without_features(found.messages), None
    if found.receipts is not None:
        receipts = without_features(found.receipts)
        found = attrs.evolve(found, receipts=receipts.log)
    send = state.transaction(layout.SEND_ID) or 0
    base = found.ledger or newest_readable(found.receipts)
    why, newest = "what is lost counts as deleted", found.ledger is not None
    if base is None:
        low = found.low(None)
        base = new_ledger(row.attributes, row.attributes_version, low, send, root.now())
        why = "nothing of it can be read"
    elif not newest:
        why = f"it goes back to its version {base.version}, epoch {base.head.epoch}"
    missing, gone = found.missing(base), found.gone(base)
    rows = mended(found, base, gone, found.low(base))
    end = found.end(base)
    writing = log_step(engine, found, missing, end)
    barrier = {} if writing is None else {layout.SEND_ID: send - layout.end_of(send) + end}
    steps = list(log_steps(messages, barrier))
    epoch = _newest_epoch(found) + 1
    if receipts is not None and receipts.log.start is not None:
        steps += log_steps(receipts, {layout.RECEIPTS_ID: epoch})
    if rows.changed or not newest:
        head = attrs.evolve(rows.head, epoch=epoch + 1, committed_at=max(rows.head.committed_at, root.now()))
        if not newest:
            number = max(rows.head.move_number, _moves(root, engine.store, row.key, shard))
            head = attrs.evolve(head, move_number=number)
        steps += ledger_steps(engine, found, attrs.evolve(rows, head=head), why)
    if writing is not None:
        steps.append(writing)
    for path, undone in ((found.messages_path, messages), (found.receipts_path, receipts)):
        if undone is not None and (undone.checkpoints or undone.log.problems or undone.log.unreadable):
            steps.append(checkpoint_step(engine, path))
        elif undone is receipts and not newest and _lost_files(found):
            steps.append(checkpoint_step(engine, path))  # from there on the log says nothing of it
    again = [] if newest else _stored(rows, end)
    ids = ids_of(messages.log, rows.lost) if rows.lost else {}
    return attrs.evolve(report, lost=rows.lost, lost_ids=ids, again=again, notes=list(_unknown(found, end))), steps


def _unknown(found: FoundShard, end: int) -> Iterator[str]:
    """What a log's unreadable entries may have held that nothing else records."""
    assert found.messages is not None
    unreadable, again = len(found.messages.unreadable), sum(not each.named for each in found.files)
    if unreadable > again:
        yield (
            f"{unreadable} entries of the log cannot be read, and the messages of {again} of them were found: "
            f"if others were sends that nobody received, their messages are lost, at offset {end} or later"
        )


def _lost_files(found: FoundShard) -> bool:
    state = None if found.receipts is None else found.receipts.newest()
    return state is not None and state.lost_files


def _newest_epoch(found: FoundShard) -> int:
    """The highest epoch that any process may have seen; each lost entry may have been one more."""
    state = None if found.receipts is None else found.receipts.newest()
    if found.receipts is None or state is None:
        return 0
    return (state.transaction(layout.RECEIPTS_ID) or 0) + len(found.receipts.unreadable)


def _moves(root: Root, store: Store, key: str, shard: int) -> int:
    """The number of the last move from a shard that arrived anywhere: the next one must be another."""
    last = 0
    for row in find_catalog(store, root.path).rows:
        for number in range(row.shards):
            try:
                state = read_log(store.folder(layout.messages_path(root.path, row.key, number))).newest()
            except FileNotFoundError:
                continue
            if state is not None:
                last = max(last, state.transaction(layout.move_id(key, shard)) or 0)
    return last


def _stored(rows: MendedLedger, end: int) -> list[Range]:
    found = [(run.first, run.last) for run in rows.runs]
    return joined([*found, *([(rows.head.head_offset, end - 1)] if rows.head.head_offset < end else [])])


# --- the catalog


def _repair_catalog(root: Root, engine: PointEngine, name: str | None, apply: bool) -> Iterator[Repair]:
    path = layout.queues_path(root.path)
    with _locked([path], apply):
        catalog = find_catalog(engine.store, root.path)
        undone, report = without_features(catalog.log), Repair(None, None, None, [])
        if undone.log.start is None:
            yield attrs.evolve(report, notes=[f"the catalog {path} has no beginning that can be read"])
            return
        steps = list(log_steps(undone, {}))
        if undone.checkpoints or undone.log.problems:
            steps.append(checkpoint_step(engine, path))
        rows = found_rows(engine.store, catalog, root.path)
        listed = _listed_again(root, engine, catalog, rows, name)
        if catalog.problem is not None or listed is not None or len(rows) != len(catalog.rows):
            steps.append(_catalog_step(engine, catalog, [*rows, *([listed] if listed else [])]))
        again = sorted({row.name for row in rows if row.key in catalog.unlisted})
        if again:
            report = attrs.evolve(report, notes=[f"listed again, as in an older file: {', '.join(again)}"])
        if listed is not None:
            note = "its tags are lost, and receipt handles from before are void: what is in flight comes again"
            report = attrs.evolve(report, queue=listed.name, region=listed.region, notes=[note])
        yield from _finished(report, steps, apply)


def _catalog_step(engine: PointEngine, catalog: FoundCatalog, rows: Sequence[QueueRow]) -> Step:
    newest = catalog.log.newest()
    files = [] if newest is None else newest.files()
    tables, text = [table_of(rows)] if rows else [], f"writes the catalog anew; it has {len(rows)} rows"
    return files_step(engine, catalog.path, catalog.log.last, files, tables, text)


def _listed_again(
    root: Root, engine: PointEngine, catalog: FoundCatalog, rows: Sequence[QueueRow], name: str | None
) -> QueueRow | None:
    """A new row for the queue of this name, if the catalog lost it and its directory is there."""
    if name is None or any(
        (row.region, row.name) == (root.region, name) for row in rows if row.deleted_at is None
    ):
        return None
    keys = [key for key in catalog.unlisted if key.startswith(name_hash(root.region, name))]
    if len(keys) != 1 or any(row.key == keys[0] for row in rows):
        return None
    folder = engine.store.folder(layout.tables_path(root.path, keys[0]))
    shards = len(shard_folders(folder.folders()))
    found = find_shard(engine.store, root.path, keys[0], 0)
    ledger = found.ledger or newest_readable(found.receipts)
    attributes = {} if ledger is None else ledger.head.attributes
    return QueueRow(
        name=name,
        region=root.region,
        key=keys[0],
        created_at=root.now(),
        modified_at=root.now(),
        attributes=attributes,
        attributes_version=0 if ledger is None else ledger.head.attributes_version,
        shards=shards,
        handle_key=secrets.token_bytes(layout.HANDLE_KEY_BYTES),
    )


# --- the table of statistics


def _repair_statistics(root: Root, engine: PointEngine, apply: bool) -> Iterator[Repair]:
    path = layout.stats_path(root.path)
    with _locked([path], apply):
        try:
            undone = without_features(read_log(engine.store.folder(path)))
        except FileNotFoundError:  # there is none before the first compaction
            return
        newest, report = undone.log.newest(), Repair(None, None, None, [])
        if newest is None:
            yield attrs.evolve(report, notes=[f"{path} cannot be read; remove it, it is made anew"])
            return
        steps = list(log_steps(undone, {}))
        if broken := {error.file for error in newest.broken()}:
            files = [file for file in newest.files() if file.name in broken]
            text = f"drops files of the statistics that cannot be read: {', '.join(map(str, broken))}"
            steps.append(files_step(engine, path, undone.log.last, files, [], text))
        if undone.log.problems:
            steps.append(checkpoint_step(engine, path))
        yield from _finished(report, steps, apply)
