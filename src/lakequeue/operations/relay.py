"""Sends each row that is added to a Delta table exactly once (RLY).

Any number of processes may relay a table. The versions of the table are batches of a stream. Each batch is cut
into pieces. The queue's log records a piece in the commit that adds the piece's messages (``SendKey.of_batch``).
All processes cut the same pieces for the same shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Literal

import attrs
import pyarrow as pa

from lakequeue.errors import InvalidMessageContents, InvalidOptions, InvalidParameterValue, OverLimit
from lakequeue.operations.json_rows import Bodies
from lakequeue.operations.planned_sends import Columns
from lakequeue.operations.results import SentRows
from lakequeue.operations.send_dataframe import (
    BulkSend,
    bad_rows_of,
    bulk_target,
    complete_batch,
    last_version,
    send_staged,
)
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.bulk import arrow_files, positions
from lakequeue.storage.bulk.arrow_rows import columns_of
from lakequeue.storage.bulk.bad_rows import OnBadRow
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.message_rules import TEXT_ATTRIBUTES
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.folder import Folder
from lakequeue.storage.layout import stream_id
from lakequeue.storage.roots import is_inside, root_of
from lakequeue.storage.source_rows import CHANGE_TYPE, MOST_PIECES, VersionRows
from lakequeue.storage.source_table import Changes, SourceChange, SourceTable
from lakequeue.storage.stores import Store

_VERB = "relay"


def _given(columns: Mapping[str, str | None]) -> dict[str, str]:
    return {name: column for name, column in columns.items() if column is not None}


@attrs.frozen
class RelayOptions:
    """A table to relay; see ``LakeQueue.relay``. ``columns`` maps names of message columns to table columns."""

    table: str = attrs.field(converter=root_of)
    body: str = "*"
    start: int | datetime | Literal["now"] = "now"
    changes: Changes = "appends"
    skip_changes: bool = False
    columns: Mapping[str, str] = attrs.field(factory=dict, converter=_given)
    on_bad_row: OnBadRow = "fail"
    bad_rows: str | None = None
    table_options: Mapping[str, str] | None = None


def relay(queue: OpenQueue, wanted: RelayOptions) -> SentRows:
    """Sends the rows of all versions that were not sent yet. Returns how many messages this call sent."""
    queue.reload()  # raises if the queue was deleted
    with queue.root.storage_errors():
        return _TableRelay(queue, wanted).run()


def begins(queue: OpenQueue, wanted: RelayOptions) -> tuple[int, bool]:
    """Returns the version that the next call of ``relay`` sends first, and True if no call was made before."""
    with queue.root.storage_errors():
        return _TableRelay(queue, wanted).begins()


class _TableRelay:
    """One call of a relay. Sends the versions of the table that the queue does not have yet."""

    def __init__(self, queue: OpenQueue, wanted: RelayOptions) -> None:
        if is_inside(wanted.table, queue.root.path):
            raise InvalidOptions([f"table {wanted.table} is in the root, where only lakequeue's tables are"])
        self._queue, self._wanted = queue, wanted
        options = queue.root.engine.store.options if wanted.table_options is None else wanted.table_options
        store = Store(wanted.table, options)
        store.check()
        self._source = SourceTable(store)
        self._newest = newest = self._source.state()
        self._stream = f"relay-{newest.id}"
        self._app_id = stream_id(self._stream)
        self._path = stream_id(f"relay-of-{_digest(self._source.path)[:32]}")
        self._of_path = int(_digest(newest.id)[:13], 16) + 1
        self._sent = self._refused = 0

    def begins(self) -> tuple[int, bool]:
        done = last_version(self._queue, self._app_id)
        start = self._start(done)
        return _following(max(done, 0 if start is None else _position(start - 1, MOST_PIECES)))[0], not done

    def run(self) -> SentRows:
        self._bad_rows = bad_rows_of(self._queue, self._wanted.on_bad_row, self._wanted.bad_rows, _VERB)
        done = self._position()
        # a process may have been killed between the commits to two shards
        complete_batch(self._queue, self._key(done))
        version, pieces = _following(done)
        versions = self._source.versions(version)
        if versions:
            state = self._source.state(version)
            for version in versions:
                wanted = self._wanted
                change = self._source.change(version, state, wanted.changes, wanted.skip_changes)
                state = change.state
                if change.files:
                    self._send_version(change, pieces)
                pieces = 0
            self._move(_position(version, MOST_PIECES))  # past versions that added no rows
        return SentRows(self._sent, self._refused)

    def _position(self) -> int:
        """Returns the relay's position in the queue's log, after moving it to ``start`` if ``start`` is later."""
        done = last_version(self._queue, self._app_id)
        start = self._start(done)
        if start is None:
            return done
        self._move(_position(start - 1, MOST_PIECES), {self._path: self._of_path}, first=not done)
        return last_version(self._queue, self._app_id)

    def _start(self, done: int) -> int | None:
        """Returns the version that ``start`` names; None if ``start`` is "now" and the relay has begun."""
        start, newest = self._wanted.start, self._newest
        if isinstance(start, datetime):
            start = self._source.version_at(start, newest)
        if start == "now":
            if done:
                return None
            if last_version(self._queue, self._path) not in (0, self._of_path):
                before = f"the table that was relayed to {self._queue.name} before"
                raise InvalidOptions(
                    [
                        f"{self._source.path} is another table than {before}; give start=0 to send all its rows, "
                        "or another version to start at"
                    ]
                )
            return newest.version + 1
        if start > newest.version + 1:
            reason = f"The newest version of {self._source.path} is {newest.version}."
            raise InvalidParameterValue.of(start, "start", reason)
        return start

    def _move(self, version: int, more: Mapping[str, int] | None = None, first: bool = False) -> None:
        if last_version(self._queue, self._app_id) < version:
            with self._queue.service(_VERB):
                positions.move(bulk_target(self._queue), self._app_id, version, more or {}, first)

    def _send_version(self, change: SourceChange, first: int) -> None:
        """Sends the pieces of a table version, beginning with the piece number ``first``."""
        feed = self._wanted.changes == "feed"
        rows = VersionRows(self._source, change, feed)
        has_priorities = self._queue.attributes.priorities is not None
        with _explained(f"version {change.version} of {self._source.path}"):
            bodies = Bodies(rows.schema, self._wanted.body, None, has_priorities, self._wanted.columns)
            columns, says_changes = columns_of(bodies.schema), False
            if feed and "message_attributes" not in bodies.schema.names:
                columns, says_changes = [*columns, ("message_attributes", TEXT_ATTRIBUTES)], True
            for piece in range(first, rows.pieces):

                def batches(piece: int = piece) -> Iterator[pa.RecordBatch]:
                    found = rows.piece(piece)
                    return _with_changes(bodies, found) if says_changes else bodies.of(found)

                pieces = MOST_PIECES if piece == rows.pieces - 1 else piece + 1
                self._send(_position(change.version, pieces), batches, columns, change.version + piece)

    def _send(
        self, position: int, batches: Callable[[], Iterator[pa.RecordBatch]], columns: Columns, turn: int
    ) -> None:
        refused = 0

        def stage(tables: Folder, staging: Staging) -> Manifest:
            nonlocal refused
            manifest, refused = arrow_files.stage(
                tables, attrs.evolve(staging, bad_rows=self._bad_rows), batches()
            )
            return manifest

        send = BulkSend(self._key(position), turn=turn)
        self._sent += send_staged(self._queue, columns, send, stage, _VERB)
        self._refused += refused

    def _key(self, position: int) -> SendKey:
        return SendKey.of_batch(self._stream, position - 1)


def _position(version: int, pieces: int) -> int:
    """Encodes a version and its number of sent pieces (``MOST_PIECES`` if all pieces are sent) as one number."""
    return (version + 1) * (MOST_PIECES + 1) + pieces


def _following(position: int) -> tuple[int, int]:
    """Decodes a position. Returns the version to send next, and how many of its pieces were sent."""
    version, pieces = divmod(position, MOST_PIECES + 1)
    return (version, 0) if pieces == MOST_PIECES else (version - 1, pieces)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _with_changes(bodies: Bodies, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields messages with the attribute ``change_type``, which is the row's kind of change in the change feed."""
    taken: list[pa.RecordBatch] = []

    def seen() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            taken.append(batch)
            yield batch

    for made in bodies.of(seen()):
        kinds = taken.pop()[CHANGE_TYPE]
        names = pa.repeat(pa.scalar("change_type"), len(kinds))
        offsets = pa.array(range(len(kinds) + 1), pa.int32())
        yield made.append_column("message_attributes", pa.MapArray.from_arrays(offsets, names, kinds))


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except (InvalidParameterValue, InvalidMessageContents, OverLimit) as error:
        raise type(error)(f"{where}: {error.message}") from error
