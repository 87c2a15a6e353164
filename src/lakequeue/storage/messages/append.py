"""Appends messages to the log of a shard. The commit gives the messages their offsets and send times."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import pyarrow as pa

from lakequeue.errors import QueueDoesNotExist
from lakequeue.model.clock import MICROS, from_micros, to_micros
from lakequeue.model.messages import AttributeValue, ValidEntry
from lakequeue.storage import layout, requests
from lakequeue.storage.cleaning import vacuum_if_busy
from lakequeue.storage.engines.data_files import DataFile, placed
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Change, Ids
from lakequeue.storage.messages import staged_sends
from lakequeue.storage.messages.body_cache import TABLE_BYTES
from lakequeue.storage.messages.dedup_window import DedupWindow, dedup_key
from lakequeue.storage.messages.read import BUDGET, log_files
from lakequeue.storage.messages.staged_sends import StagedSend

SEGMENT_COMMITS = 64
SEGMENT_AGE = 3600 * MICROS
STAGED_SENDS = 16
"""Number of sends that a process stages after it has noticed sends of another process."""
_COLUMNS = layout.ColumnArrays(layout.FILES["messages"])
_ROW = pa.struct(list(layout.FILES["messages"]))


@attrs.frozen
class NewMessage:
    """A validated message and its id, before the message is appended."""

    message_id: str
    entry: ValidEntry


@attrs.frozen
class Appended:
    """Result of an append. The messages have the offsets from ``first`` on, in the order of the call."""

    first: int
    rows: pa.Table
    closed_segment: bool
    """True if the append began a new segment, so that the previous segment may be merged now."""


@attrs.frozen
class OpenSegment:
    """The last segment of the log, to which small sends are appended."""

    base: int
    opened_at: int
    commits: int


@attrs.frozen
class _Loaded:
    """Facts about the end of the log in the loaded snapshot. Never changed, only replaced by a new object."""

    version: int
    send_version: int
    last_sent_at: int
    open: OpenSegment | None
    staged: int
    """Number of files of staged sends that were committed, but not merged yet."""


@attrs.frozen
class AppendPlace:
    """The segment, the offsets and the send time that appended messages get. The first offset is ``first``."""

    segment: OpenSegment
    first: int
    sent_at: int
    closes: bool
    """True if the append begins a new segment, so that the previous segment may be merged afterwards."""

    def rows(self, cells: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Builds rows of a ``messages`` file from ``cells``. Adds the columns ``position`` and ``sent_at``."""
        count, first = len(cells), self.first - self.segment.base
        placed: dict[str, Sequence[Any]] = {
            "position": range(first, first + count),
            "sent_at": [self.sent_at] * count,
        }
        columns = placed | {name: [cell[name] for cell in cells] for name in cells[0]}
        return layout.rows_of(_COLUMNS.arrays(columns, count), _ROW)

    @property
    def partition(self) -> Mapping[str, Any]:
        """Values of the partition columns, the same for all rows of the place."""
        return {"base_offset": self.segment.base, "opened_at": from_micros(self.segment.opened_at)}

    def ids(self, count: int) -> dict[str, int]:
        """Returns the application ids of the commit that appends ``count`` messages."""
        return {layout.SEND_ID: self.first + count, layout.CLOCK_ID: self.sent_at}


class Appender:
    """Writes to the log of a shard, through its own handle on the table. Not thread-safe."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._window: DedupWindow | None = None
        self._lineage = table.lineage
        self._end = self._load()
        self._to_stage = 0
        """Number of sends that this process will still stage before it appends directly again."""
        self._synced: set[str] = set()
        """Directories of staged sends that this process has synced to the disk."""

    def refresh(self) -> None:
        self.table.refresh()

    def look(self) -> None:
        """Loads the newest snapshot, which a power cut may still undo. See ``Table.look``."""
        self.table.look()

    @property
    def _loaded(self) -> _Loaded:
        if self.table.version != self._end.version or self.table.lineage is not self._lineage:
            self._end = self._load()
        return self._end

    @property
    def end(self) -> int:
        return layout.end_of(self._loaded.send_version)

    @property
    def last_sent_at(self) -> int:
        """Send time of the last message in the loaded snapshot, in microseconds."""
        return self._loaded.last_sent_at

    @property
    def attributes_version(self) -> int:
        """Version of the queue's attributes with which senders must validate messages."""
        return self.table.transaction(layout.ATTRIBUTES_ID)

    def window(self, by_group: bool, micros: int, now: int) -> DedupWindow:
        """Returns the deduplication ids that a send at ``now`` must not repeat."""
        if self._window is None or self._window.micros != micros:
            self._window = DedupWindow(by_group, micros)
        now = max(now, self.last_sent_at)  # The messages get this send time.
        if self._window.end < self.end:
            self._window.follow(self.table, self.end, now)
        self._window.advance(now)
        return self._window

    def forget_ids_below(self, offset: int) -> None:
        """Allows sends to repeat deduplication ids of messages below ``offset``, which were deleted."""
        if self._window is not None:
            self._window.forget_below(offset)

    def append(
        self,
        messages: Sequence[NewMessage],
        now: int,
        attributes_version: int,
        more_ids: Ids = MappingProxyType({}),
    ) -> Change[Callable[[], Appended]]:
        """Returns a change that appends messages. Its value is a function that returns the result after the
        commit. Raises QueueDoesNotExist if the log is closed.
        """
        place = self.place(now)
        rows = place.rows([_cells(message) for message in messages])
        ids = {**place.ids(len(messages)), **more_ids}
        fence, counts = self.fence(attributes_version), {"send": len(rows)}

        def write(ids: Ids, token: str) -> None:
            self.table.append(rows, ids, token, place.partition)

        return Change(fence, ids, write, partial(self._appended, place, messages, rows), counts=counts)

    def _appended(self, place: AppendPlace, messages: Sequence[NewMessage], rows: pa.Table) -> Appended:
        if self._window is not None:
            by_group = self._window.by_group
            keys = [dedup_key(message.entry.group_id, message.entry.dedup_id, by_group) for message in messages]
            self._window.add(place.first, keys, place.sent_at)
        if self.table.version == self._end.version + 1:  # The new end is known without reading the log.
            opened = attrs.evolve(place.segment, commits=place.segment.commits + 1)
            end = place.first + len(messages)
            self._end = _Loaded(self.table.version, end, place.sent_at, opened, self._end.staged)
            self._keep(rows)
        vacuum_if_busy(self.table, layout.MESSAGES_RETENTION)
        return Appended(place.first, rows, place.closes)

    def _keep(self, rows: pa.Table) -> None:
        """Keeps appended rows in memory until their segment is merged."""
        size = layout.buffer_bytes(rows)
        # On a store, only reading these files again shows a merge that a backup was put back a moment ago.
        if size <= TABLE_BYTES and not self.table.commits_alone and self.table.folder.local is not None:
            with BUDGET.lock:
                BUDGET.put(self.table.written, next(reversed(self.table.state.live)), rows, TABLE_BYTES + size)

    def forget_rows(self) -> None:
        """Removes the appended rows from memory. Called after their segment was merged."""
        BUDGET.drop(self.table.written)

    @property
    def stages(self) -> bool:
        """True if the next send is staged. False on disks without fsync, where a power cut may tear files."""
        folder = self.table.folder
        return self._to_stage > 0 and (folder.local is None or folder.syncs) and not self.table.commits_alone

    def stage_next(self) -> None:
        """Called after sends of other processes were noticed, so that this process stages its next sends."""
        self._to_stage = STAGED_SENDS

    def stage(self, messages: Sequence[NewMessage], attributes_version: int, *, alone: bool) -> StagedSend:
        """Writes messages to a file for ``append_staged``. See ``staged_sends.stage``."""
        rows = AppendPlace(OpenSegment(0, 0, 0), 0, 0, False).rows([_cells(message) for message in messages])
        return staged_sends.stage(self.table, _sent_at(rows, None), attributes_version, alone=alone)

    def can_commit(self, staged: StagedSend) -> bool:
        """True if a staged file can be committed: it exists, is young, and the log was not replaced since."""
        folder = self.table.folder
        if folder.local is not None and not folder.exists(staged.file.path):
            return False
        return not staged.too_old and staged.lineage is self.table.lineage

    def find(self, staged: StagedSend) -> Appended | None:
        """Returns the messages of a staged send. Returns None if it is not committed yet.

        Raises:
            QueueClientError: the log no longer shows the outcome; ``outcome_unknown`` is set.
        """
        try:
            file = self.table.state.added_since(staged.since).get(staged.file.path)
        except FileNotFoundError as error:
            raise staged_sends.unknown("too much happened since") from error
        if file is not None:
            self.table.sync_entries()
            opened_at = to_micros(file.partition["opened_at"])
            return Appended(file.partition["base_offset"], _sent_at(staged.rows, opened_at), False)
        if not staged.alone and not self.can_commit(staged):
            raise staged_sends.unknown("too much happened since")
        return None

    def await_turn(self, staged: StagedSend) -> Appended | Sequence[DataFile]:
        """Waits until another process has committed the file of ``staged``, or this process should commit it.

        Only for object stores. Returns the messages of ``staged`` if they are committed. Otherwise returns the
        files of other senders that this process should commit, too.
        """
        wait, listed = requests.TurnWait(), partial(staged_sends.listed, self.table, staged, staged_sends.VERSIONS)
        while True:
            version, began = self.table.version, time.monotonic()
            if wait.lists:  # later, the next entry may have the file, or must be followed by the commit
                files = requests.look_and_list(self.table, 1 if wait.looks else math.inf, listed)
            else:
                self.table.look(1)
            if (found := self.find(staged)) is not None:
                return found
            others, new = staged_sends.others(self.table, staged, files), self.table.version > version
            if wait.is_over(new, not others or staged.file.path < others[0].path, began):
                return others

    def append_staged(
        self,
        staged: StagedSend,
        now: int,
        more_ids: Ids,
        patient: bool,
        others: Sequence[DataFile] | None = None,
    ) -> Change[Callable[[], Appended]]:
        """Returns the change that commits staged files: ``staged``, and the files ``others`` of other senders.

        If ``others`` is None, takes all staged files that fit. See ``Change`` for ``patient``.
        """
        self.check_open()
        if others is None:
            others = [] if staged.alone else staged_sends.others(self.table, staged)
        first, sent_at = self.end, max(now, self.last_sent_at)
        added = placed((staged.file, *others), first, sent_at)
        end = first + sum(file.rows for file in added)
        ids = {layout.SEND_ID: end, layout.CLOCK_ID: sent_at, **more_ids}

        def write(ids: Ids, token: str) -> None:
            if not self.can_commit(staged):  # The process was stopped for too long.
                raise FileNotFoundError(f"{staged.file.path} may have been removed")
            self._sync_folders(added)
            self.table.add(added, ids, token)

        def arrived() -> bool:
            return staged.file.path in self.table.state.newest_files()[1]

        done = partial(self._appended_staged, staged, first, not others, self._loaded.staged)
        fence, counts = self.fence(staged.attributes_version), {"send": end - first}
        return Change(fence, ids, write, done, arrived, counts, late=True, patient=patient)

    def _appended_staged(self, staged: StagedSend, first: int, alone: bool, before: int) -> Appended:
        """Returns the messages of a committed send. ``before`` is the number of staged files that the log had
        before the commit. This number shows whether the commit closed a segment.
        """
        vacuum_if_busy(self.table, layout.MESSAGES_RETENTION)
        if (found := self.find(staged)) is None:
            raise staged_sends.unknown("its commit is not in the log")
        own = found.first == first
        self._to_stage = self._to_stage - 1 if own and alone else STAGED_SENDS
        closes = own and self._loaded.staged // SEGMENT_COMMITS > before // SEGMENT_COMMITS
        return attrs.evolve(found, closed_segment=closes)

    def _sync_folders(self, files: Sequence[DataFile]) -> None:
        # The process that made a directory may have been killed before its sync. Each directory is synced once,
        # because a sync takes milliseconds.
        folders = {staged_sends.FOLDER, *(os.path.dirname(file.path) for file in files)}
        self.table.folder.sync(folders - self._synced)
        self._synced = folders

    def place(self, now: int) -> AppendPlace:
        """Returns the place for messages appended to the loaded snapshot. Raises QueueDoesNotExist if closed."""
        self.check_open()
        first, sent_at = self.end, max(now, self.last_sent_at)
        segment = before = self._loaded.open
        if segment is None or self._opens(now):
            segment = OpenSegment(first, sent_at, 0)
        closes = segment is not before and before is not None
        return AppendPlace(segment, first, sent_at, closes)

    def close(self) -> Change[None]:
        """Returns the change that closes the log for good. Appends on older snapshots then fail."""
        return self._empty({}, {layout.SEND_ID: layout.CLOSED + self.end})

    def announce_attributes(self, version: int) -> Change[None]:
        """Returns a change. After its commit, senders must validate messages by this version of the attributes."""
        # Announcements do not move the end. Without this fence, the older of two might land last.
        fence = {layout.ATTRIBUTES_ID: self.attributes_version}
        return self._empty(fence, {layout.ATTRIBUTES_ID: version})

    def _empty(self, fence: Ids, ids: Ids) -> Change[None]:
        end = {layout.SEND_ID: self._loaded.send_version}
        return Change({**end, **fence}, {**end, **ids}, partial(self.table.add, []), None)

    @property
    def closed(self) -> bool:
        return self._loaded.send_version >= layout.CLOSED

    def check_open(self) -> None:
        """Raises QueueDoesNotExist if the log is closed, because the queue was deleted."""
        if self.closed:
            raise QueueDoesNotExist()

    def fence(self, attributes_version: int) -> Mapping[str, int]:
        """Returns the fence of a commit on the loaded snapshot: ids whose versions must not have changed."""
        return {
            layout.SEND_ID: self._loaded.send_version,
            layout.ATTRIBUTES_ID: attributes_version,
        }

    def _opens(self, now: int) -> bool:
        open_segment = self._loaded.open
        return (
            open_segment is None
            or open_segment.commits >= SEGMENT_COMMITS
            or now - open_segment.opened_at > SEGMENT_AGE
        )

    def _load(self) -> _Loaded:
        if self.table.lineage is not self._lineage:
            self._window, self._lineage = None, self.table.lineage
        files = log_files(self.table)
        last = max(files, key=lambda file: file.base, default=None)
        segment = None
        if last is not None and not last.bulk:
            segment = OpenSegment(last.base, last.opened_at, sum(file.base == last.base for file in files))
        return _Loaded(
            self.table.version,
            self.table.transaction(layout.SEND_ID),
            self.table.transaction(layout.CLOCK_ID),
            segment,
            sum(staged_sends.is_staged(file.file.name) for file in files),
        )


def _sent_at(rows: pa.Table, instant: int | None) -> pa.Table:
    return layout.with_column(rows, "sent_at", pa.array([instant] * len(rows), layout.INSTANT))


def _cells(message: NewMessage) -> dict[str, Any]:
    entry = message.entry
    return {
        "message_id": message.message_id,
        "body": entry.body,
        "message_attributes": attribute_cells(entry.attributes),
        "group_id": entry.group_id,
        "dedup_id": entry.dedup_id,
        "sender_id": entry.sender_id,
        "trace_header": entry.system_attributes.get("AWSTraceHeader"),
        "delay_seconds": None if entry.delay_micros is None else entry.delay_micros / MICROS,
    }


def attribute_cells(attributes: Mapping[str, AttributeValue]) -> list[tuple[str, dict[str, Any]]]:
    """Returns message attributes as a cell of the column ``message_attributes``."""
    return [
        (
            name,
            {
                "type": value.type,
                "string_value": value.value if isinstance(value.value, str) else None,
                "binary_value": value.value if isinstance(value.value, bytes) else None,
            },
        )
        for name, value in attributes.items()
    ]
