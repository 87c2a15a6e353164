"""Copies queues to another root while the queues are in use: for a backup, a restore, or a move.

The final commit of a copy writes all rows of the target's catalog. A killed copy therefore has no effect (DUR-40).
The copy takes a snapshot of each shard's ledger before a snapshot of the log. The log therefore has every message
of the ledger. If messages were moved into a shard meanwhile, the shard is copied again. If the copied ledger of a
shard does not show a move to another queue, the copied queues repeat the move (DUR-41). If a bulk send reached
only some copied shards, the copy takes the send's manifest and remaining files, too. The same send or a
compaction, made on the target, then completes the send.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar
from urllib.parse import quote

import attrs

from lakequeue.errors import (
    DamagedTable,
    InvalidParameterValue,
    QueueClientError,
    QueueDoesNotExist,
    RootDoesNotExist,
)
from lakequeue.model import redrive_policies
from lakequeue.model.deliveries import DELIVERY_ID, new_delivery_id
from lakequeue.operations.depth import stored
from lakequeue.operations.queues import missing
from lakequeue.runtime.calls import logged
from lakequeue.runtime.root import Root
from lakequeue.shard.commands import StateCounts
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.deliver import without_marks
from lakequeue.storage import cleaning, layout
from lakequeue.storage.bulk import manifests
from lakequeue.storage.bulk.manifests import Manifest
from lakequeue.storage.catalog import QueueRow, holds_messages
from lakequeue.storage.copying import Copier, TableSnapshot
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.commit_failures import StaleSnapshot
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.read import LogReader, ShardLog
from lakequeue.storage.repair.steps import commit_once
from lakequeue.storage.store_failures import first_line

ROUNDS = 100
"""Maximum number of attempts to copy shards that change during the copy."""

Progress = Callable[[int, int, str], None]
Place = tuple[str, int]
"""A shard: the key of its queue, and its number."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_log = logging.getLogger("lakequeue")


@attrs.frozen(eq=False)
class ShardCopy:
    """Snapshots of a shard's ledger and log, from which the shard is copied."""

    ledger: TableSnapshot
    log: TableSnapshot
    epoch: int
    move_number: int
    """Number of the shard's last move to another queue, according to the ledger."""
    counts: StateCounts

    @property
    def messages(self) -> int:
        return stored(self.counts)

    def is_behind(self, sends: Mapping[str, int]) -> bool:
        """True if the log received moved messages, or one of the bulk sends in ``sends``, after the snapshot."""
        self.log.table.refresh()
        newest, then = self.log.table.state.transactions, self.log.transactions
        return _moves(newest) != _moves(then) or any(
            then.get(name, 0) < version <= newest.get(name, 0) for name, version in sends.items()
        )


class ShardCopies:
    """Makes one copy: takes snapshots, copies files, writes the target's Delta logs, and checks the result."""

    def __init__(self, source: Root, target: Root, rows: Sequence[QueueRow], progress: Progress) -> None:
        self._source, self._progress = source, progress
        self._rows = {row.key: row for row in rows}
        self._now = source.now()
        self._from, self._to = Engine(source.engine.store), Engine(target.engine.store)
        self._copier = Copier(self._from.store, self._to.store, self._report)
        self._shards: dict[Place, ShardCopy] = {}
        self._manifests: dict[str, list[Manifest]] = {}
        self._unfinished: list[tuple[str, Manifest]] = []
        self._total, self._name = 0, ""
        self._delivery_ids: dict[str, str] = {}

    def run(self, whole: bool) -> list[tuple[QueueRow, list[ShardCopy]]]:
        """Copies the shards. If ``whole``, also copies the root's other tables. Returns the row and the shards of
        each queue.

        Raises:
            QueueClientError: files kept vanishing, or messages kept moving between queues.
            DamagedTable: a file is missing, or the copy differs from its source.
        """
        # before the queues, which so have all messages that these rows take for sent (JOB-7)
        schedules = self._copy_table(layout.schedules_path) if whole else None
        places = [(row.key, number) for row in self._rows.values() for number in range(row.shards)]
        for _ in range(ROUNDS):
            places = self._take(places) or self._changed() or self._copy_files() or self._added()
            if not places:
                break
        else:
            raise QueueClientError(f"{self._source.path} changes faster than it can be copied; try again")
        for table in (schedules, self._copy_table(layout.stats_path) if whole else None):
            if table is not None:
                self._copier.finish(table, table.transactions)
        known = {layout.move_id(*place): shard.move_number for place, shard in self._shards.items()}
        _each(self._to, partial(self._finish, known), list(self._shards.items()))
        for key, manifest in self._unfinished:
            if key in self._rows:
                manifests.write_manifest(_tables(self._to, key), manifest)
        for key in self._rows:  # after the logs, because a relay sends batches that a log lacks
            self._copy_relays(key)
        return [
            (
                attrs.evolve(row, attributes=self._own(row.key, row.attributes)),
                [self._shards[row.key, number] for number in range(row.shards)],
            )
            for row in self._rows.values()
        ]

    def _take(self, places: Sequence[Place]) -> list[Place]:
        """Takes snapshots of shards. Returns the shards that changed while their snapshot was taken."""

        stale, deleted = list[Place](), set[str]()

        def take(place: Place) -> None:
            try:
                self._shards[place] = self._snapshot(*place)
            except FileNotFoundError:
                stale.append(place)
            except QueueDoesNotExist:
                deleted.add(place[0])

        _each(self._from, take, places)
        self._keep({key: row for key, row in self._rows.items() if key not in deleted})
        return [place for place in stale if place[0] in self._rows]

    def _snapshot(self, key: str, number: int) -> ShardCopy:
        """Takes snapshots of a shard. Raises QueueDoesNotExist, or FileNotFoundError if the shard has changed."""
        if self._source.living(key) is None:
            raise QueueDoesNotExist()
        machine, ledger, reader = _opened(self._from, self._source.path, key, number)
        head, log = machine.head, reader.log
        if head.closed or log.closed:
            raise QueueDoesNotExist()
        if log.begin > head.floor_offset:
            raise StaleSnapshot(f"the log has moved on since the snapshot of {ledger.path}")
        tables = TableSnapshot.of(ledger), TableSnapshot.of(reader.table)
        return ShardCopy(*tables, head.epoch, head.move_number, machine.counts(self._now))

    def _changed(self) -> list[Place]:
        """Returns the shards whose logs received moved messages or bulk sends after the snapshot."""
        # before the logs: the manifest of a send that ends meanwhile is gone, and then its last log has it
        keys = [row.key for row in self._rows.values() if row.shards > 1]
        found = _each(self._from, lambda key: list(manifests.manifests(_tables(self._from, key))), keys)
        self._manifests = dict(zip(keys, found, strict=True))
        sends: dict[str, dict[str, int]] = {key: {} for key in self._rows}
        for (key, _), shard in self._shards.items():
            for name, version in shard.log.transactions.items():
                if name.startswith(layout.BULK):
                    sends[key][name] = max(version, sends[key].get(name, 0))
        places = list(self._shards)
        behind = _each(self._from, lambda place: self._shards[place].is_behind(sends[place[0]]), places)
        return [place for place, changed in zip(places, behind, strict=True) if changed]

    def _find_unfinished(self) -> None:
        """If a bulk send reached only some shards, adds its files to the snapshots of the shards that lack it."""
        self._unfinished = []
        waiting: dict[Place, list[LiveFile]] = {}
        for key, of_queue in self._manifests.items():
            for manifest in of_queue:
                reached = [number for number in manifest.shards if self._reached((key, number), manifest)]
                if not reached or len(reached) == len(manifest.shards):
                    continue
                files = [((key, each.shard), each.file) for each in manifest.files if each.shard not in reached]
                if not all(self._shards[place].log.table.folder.exists(file.path) for place, file in files):
                    _log.warning("bulk send %s lacks files; the copy has what it had sent", manifest.send_id)
                    continue
                self._unfinished.append((key, manifest))
                for place, file in files:
                    live = LiveFile(quote(file.path), file.path, file.size, file.rows, {}, {}, {}, {})
                    waiting.setdefault(place, []).append(live)
        for place, shard in self._shards.items():
            log = attrs.evolve(shard.log, waiting=waiting.get(place, ()))
            self._shards[place] = attrs.evolve(shard, log=log)

    def _reached(self, place: Place, manifest: Manifest) -> bool:
        shard, app_id = self._shards.get(place), manifest.app_id
        if shard is None or app_id is None:
            return False
        return shard.log.transactions.get(app_id, 0) >= manifest.version

    def _copy_files(self) -> list[Place]:
        """Copies files that the target lacks. Returns the shards whose files were removed meanwhile."""
        self._find_unfinished()
        tables = [(place, shard.ledger) for place, shard in self._shards.items()]  # their files go first
        tables += [(place, shard.log) for place, shard in self._shards.items()]
        self._total = self._copier.done + sum(map(self._copier.missing, (table for _, table in tables)))
        stale: list[Place] = []
        for place, table in tables:
            self._name = self._rows[place[0]].name
            try:
                self._copier.copy(table)
            except StaleSnapshot:
                stale.append(place)
        return list(dict.fromkeys(stale))

    def _added(self) -> list[Place]:
        living = {row.key: row for row in self._source.rows() if row.deleted_at is None}
        self._keep({key: living[key] for key in self._rows if key in living})
        places = [(row.key, number) for row in self._rows.values() for number in range(row.shards)]
        return [place for place in places if place not in self._shards]

    def _keep(self, rows: dict[str, QueueRow]) -> None:
        self._rows = rows
        self._shards = {place: shard for place, shard in self._shards.items() if place[0] in rows}

    def _copy_relays(self, key: str) -> None:
        source, target = _tables(self._from, key), _tables(self._to, key)
        for _ in range(ROUNDS):
            try:
                for file in source.files("relays"):
                    target.create(file.name, source.read(file.name))
                return
            except FileNotFoundError:  # parts were merged meanwhile
                continue
        raise QueueClientError(f"{source.uri}/relays changes faster than it can be copied; try again")

    def _copy_table(self, path: Callable[[str], str]) -> TableSnapshot | None:
        """Copies a table. If the source lacks the table, or the target has it, copies nothing and returns None."""
        paths = [path(engine.store.root) for engine in (self._from, self._to)]
        if not self._from.exists(paths[0]) or self._to.exists(paths[1]):
            return None
        for _ in range(ROUNDS):
            table = TableSnapshot.of(self._from.open(paths[0]))
            try:
                self._copier.copy(table)
            except StaleSnapshot:
                continue
            return table
        raise QueueClientError(f"{paths[0]} changes faster than it can be copied; try again")

    def _finish(self, known: Mapping[str, int], item: tuple[Place, ShardCopy]) -> None:
        """Writes the Delta logs of a copied shard. Reads the copied shard anew to check it."""
        (key, number), shard = item
        moves = _moves(shard.log.transactions)
        ids = {name: version for name, version in shard.log.transactions.items() if name not in moves}
        # a move that the other ledger does not know of is made again; of queues that are not copied, none is known
        ids |= {name: min(version, known[name]) for name, version in moves.items() if name in known}
        self._copier.finish(shard.log, ids)
        self._copier.finish(shard.ledger, shard.ledger.transactions)
        machine, ledger, _ = _opened(self._to, self._to.store.root, key, number)
        if (machine.head.epoch, machine.counts(self._now)) != (shard.epoch, shard.counts):
            raise DamagedTable(ledger.path, None, "is not what was copied")
        if DELIVERY_ID in machine.head.attributes:
            head, runs, _ = without_marks(machine.head, machine.runs)
            head = attrs.evolve(head, epoch=head.epoch + 1, attributes=self._own(key, head.attributes))
            commit_once(ledger, Ledger(ledger).rewrite(head.epoch - 1, head, runs, machine.history))

    def _own(self, key: str, attributes: Mapping[str, str]) -> dict[str, str]:
        """Returns the attributes of a copied queue, with a delivery id that differs from the source's (TAB-11)."""
        own = self._delivery_ids.setdefault(key, new_delivery_id())
        return {name: own if name == DELIVERY_ID else value for name, value in attributes.items()}

    def _report(self) -> None:
        self._progress(self._copier.done, self._total, self._name)


def _opened(engine: Engine, root: str, key: str, shard: int) -> tuple[ShardMachine, Table, LogReader]:
    ledger, readers = engine.open(layout.receipts_path(root, key, shard)), list[LogReader]()

    def log() -> ShardLog:
        readers.append(LogReader(engine.open(layout.messages_path(root, key, shard))))
        return readers[-1].log

    return Ledger(ledger).machine(log), ledger, readers[-1]


def _tables(engine: Engine, key: str) -> Folder:
    return engine.store.folder(layout.tables_path(engine.store.root, key))


def _moves(transactions: Mapping[str, int]) -> dict[str, int]:
    return {name: version for name, version in transactions.items() if name.startswith(layout.MOVE)}


def _each(engine: Engine, call: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    return engine.store.folder(engine.store.root).for_each(call, items)


@attrs.frozen
class CopiedQueue:
    """Summary of a copied queue.

    Attributes:
        queue: name of the queue.
        region: region of the queue.
        messages: number of messages in any state, without the history.
        files: number of files of the queue's tables, without Delta logs.
        bytes: size of the counted files, in bytes.
        in_flight: number of messages in flight. The copy has them hidden until their visibility timeout.
    """

    queue: str
    region: str
    messages: int
    files: int
    bytes: int
    in_flight: int = 0

    @classmethod
    def of(cls, row: QueueRow, shards: Sequence[ShardCopy]) -> CopiedQueue:
        """Sums up the copies of a queue's shards."""
        tables = [table for shard in shards for table in (shard.ledger, shard.log)]
        return cls(
            row.name,
            row.region,
            sum(shard.messages for shard in shards),
            sum(len(table.files) for table in tables),
            sum(table.size for table in tables),
            sum(shard.counts.in_flight for shard in shards),
        )


def copy(source: Root, target: Root, name: str | None, progress: Progress | None) -> list[CopiedQueue]:
    """Copies all queues of a root, or only the queue ``name`` in the root's region; see ``LakeQueue.copy``."""
    paths = sorted([f"{source.path}/", f"{target.path}/"])
    if paths[1].startswith(paths[0]):
        raise InvalidParameterValue.of(target.path, "to", f"Must be another root than {source.path}.")
    with logged("copy", name or ""):
        try:
            rows = _chosen(source, name)
        except RootDoesNotExist as error:  # which advises to make a queue there
            raise RootDoesNotExist(f"{error.message.partition(';')[0]}; there is nothing to copy") from error
        target.prepare()
        with target.storage_errors(), target.catalog.copying() as in_time:
            _check_free(target, rows)
            for row in rows:  # what a killed copy left begins anew
                cleaning.remove_tables(_folder(target, row))
                _folder(target, row).create(layout.COPYING, b"")
            copies = ShardCopies(source, target, rows, progress or (lambda done, total, name: None))
            copied = copies.run(whole=name is None)
            if not in_time():
                raise QueueClientError(f"the copy to {target.path} took more than 24 h; copy queue by queue")
            _name(target, [row for row, _ in copied])
            try:
                for row, _ in copied:
                    _folder(target, row).remove([layout.COPYING])
            except Exception as error:
                _log.warning("the copy is complete; a marker is left to compaction: %s", first_line(error))
        return [CopiedQueue.of(row, shards) for row, shards in copied]


def _chosen(source: Root, name: str | None) -> list[QueueRow]:
    with source.storage_errors():
        if name is None:
            rows = [row for row in source.rows() if row.deleted_at is None]
        else:
            row = source.living_at(redrive_policies.QueueLocation(source.region, name))
            if row is None:
                raise missing(source, name)
            rows = [row]
    if not rows:
        raise QueueClientError(f"{source.path} holds no queues; there is nothing to copy")
    return sorted(rows, key=lambda row: (row.region, row.name))


def _check_names(target: Root, rows: Sequence[QueueRow]) -> None:
    known = target.rows()
    taken = {row.key for row in known} | {(row.region, row.name) for row in known if row.deleted_at is None}
    for row in rows:
        if row.key in taken or (row.region, row.name) in taken:
            raise QueueClientError(f"{target.path} has the queue {row.name} already; nothing was changed")


def _check_free(target: Root, rows: Sequence[QueueRow]) -> None:
    """Raises QueueClientError if the target has files of the queues, except files that a killed copy left."""
    _check_names(target, rows)
    for row in rows:
        folder = _folder(target, row)
        marked = folder.exists(layout.COPYING)
        if holds_messages(target.engine, folder) if marked else next(folder.files(), None) is not None:
            raise QueueClientError(f"{folder.uri} holds something else; nothing was changed")


def _folder(root: Root, row: QueueRow) -> Folder:
    return root.engine.store.folder(layout.tables_path(root.path, row.key))


def _name(target: Root, rows: Sequence[QueueRow]) -> None:

    def named() -> list[QueueRow]:
        _check_names(target, rows)
        return list(rows)

    target.put_rows(named)
