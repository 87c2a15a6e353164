"""A manifest lists the files of a bulk send. The manifest is written before the send's first commit."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from lakequeue.errors import DamagedTable, QueueClientError
from lakequeue.model.arguments import check_text
from lakequeue.storage import layout
from lakequeue.storage.bulk.staged_files import safe_name
from lakequeue.storage.checked_names import MOST_SHARDS, Misplaced, file_below, shown
from lakequeue.storage.clock_guard import storage_now
from lakequeue.storage.delta_log import whole
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder

_FOLDER = "manifests"
LONGEST_WAIT = 12 * 3600.0
"""Seconds for which files of a bulk send may wait for their commit. VACUUM keeps them twice as long."""


@attrs.frozen
class SendKey:
    """Identifies a bulk send. A repetition of the send has the same key."""

    app_id: str
    version: int
    files: str
    """Name of the send's manifest, and of the directory of its files. Message ids are derived from this name."""
    of_stream: bool = False
    anonymous: bool = False
    """True if the caller gave no send id, so that nobody can repeat the send."""

    @classmethod
    def of_send(cls, send_id: str) -> SendKey:
        """Returns the key for a caller's send id. Raises InvalidParameterValue if the send id cannot be stored."""
        check_text("send_id", send_id)
        return cls(layout.bulk_id(send_id), 1, send_id)

    @classmethod
    def of_batch(cls, stream: str, batch: int) -> SendKey:
        """Returns the key of a stream's micro-batch. Batch numbers begin at 0 and increase."""
        return cls(layout.stream_id(stream), batch + 1, f"stream-{stream}-{batch}", of_stream=True)

    @classmethod
    def new(cls) -> SendKey:
        id = uuid.uuid4().hex
        return cls(layout.bulk_id(id), 1, id, anonymous=True)

    def reached(self, table: Table) -> bool:
        """True if a shard's loaded log has this send, or a later batch of the same stream."""
        return _reached(table, self.app_id, self.version)


@attrs.frozen
class WaitingFile:
    """An uncommitted file of a bulk send, below a shard's ``messages`` table."""

    shard: int
    file: DataFile
    """The data file. The field ``partition`` is empty, because the commit sets it."""


@attrs.frozen
class Manifest:
    """Lists the uncommitted files of a bulk send. Each shard commits its files in one commit."""

    send_id: str
    app_id: str | None
    """Application id that each shard's commit sets. None for an anonymous send to a single shard."""
    version: int
    files: Sequence[WaitingFile]
    """Files in the order in which the partitions of the DataFrame follow each other."""
    written_at: float = attrs.field(factory=time.time, eq=False)
    """Time at which the manifest was written, in seconds since 1970."""

    @property
    def rows(self) -> int:
        return sum(waiting.file.rows for waiting in self.files)

    @property
    def shards(self) -> list[int]:
        return list(dict.fromkeys(waiting.shard for waiting in self.files))

    @property
    def too_old(self) -> bool:
        """True if the files must not be committed any more, because VACUUM may soon remove them."""
        return time.time() - self.written_at > LONGEST_WAIT

    def reached(self, table: Table) -> bool:
        return self.app_id is not None and _reached(table, self.app_id, self.version)

    def of(self, shard: int) -> list[DataFile]:
        return [waiting.file for waiting in self.files if waiting.shard == shard]


def load_manifest(tables: Folder, send_id: str) -> Manifest | None:
    """Returns the manifest of a bulk send. Returns None if there is no manifest."""
    return _load(tables, _manifest_name(send_id))


def has_manifests(tables: Folder) -> bool:
    """True if a queue has manifests of bulk sends."""
    return next(tables.files(_FOLDER), None) is not None


def manifests(tables: Folder) -> Iterator[Manifest]:
    for entry in tables.files(_FOLDER):
        found = _load(tables, entry.name) if entry.name.endswith(".json") else None
        if found is not None:
            yield found


def _load(tables: Folder, name: str) -> Manifest | None:
    try:
        data, written_at = tables.read(name), tables.entry(name).modified
    except FileNotFoundError:  # also if it is removed between the two
        return None
    try:
        return _parse(json.loads(data), written_at)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedTable(tables.uri, name, f"cannot be read: {error}" if data else "is empty") from error


def _parse(plain: Mapping[str, Any], written_at: float) -> Manifest:
    """Parses a manifest. Raises ValueError for wrong numbers, or files that are not of this send (DUR-70)."""
    send_id, files = plain["send_id"], []
    for each in plain["files"]:
        file, shard = DataFile(**each["file"]), each["shard"]
        whole(file.size), whole(file.rows)
        if not file_below(file.path).startswith(f"bulk/{safe_name(send_id)}/"):
            raise Misplaced(f"names {shown(file.path)}, which is no file of this send")
        if not isinstance(shard, int) or not 0 <= shard < MOST_SHARDS:
            raise Misplaced(f"names shard {shown(shard)}")
        files.append(WaitingFile(shard, file))
    app_id = None if plain["app_id"] is None else str(plain["app_id"])
    return Manifest(send_id, app_id, whole(plain["version"]), files, written_at)


def write_manifest(tables: Folder, manifest: Manifest) -> Manifest:
    """Writes the manifest, unless the send already has a manifest. Returns the stored manifest."""
    stored = attrs.filters.exclude(attrs.fields(Manifest).written_at)
    text = json.dumps(attrs.asdict(manifest, filter=stored, value_serializer=_plain)).encode()
    # two attempts agree on one
    while not tables.create(_manifest_name(manifest.send_id), text):
        there = load_manifest(tables, manifest.send_id)
        if there is not None:
            return there
    return manifest


def forget(tables: Folder, send_id: str) -> None:
    """Removes the manifest of a send, if it exists."""
    tables.remove([_manifest_name(send_id)])


def discard(tables: Folder, send_id: str) -> None:
    """Removes the manifest and the files of a send that was not committed."""
    manifest = load_manifest(tables, send_id)
    if manifest is None:
        return
    forget(tables, send_id)
    for shard in manifest.shards:
        for folder in {os.path.dirname(file.path) for file in manifest.of(shard)}:
            with contextlib.suppress(Exception):  # VACUUM removes the rest
                (tables / f"{shard}/messages/{folder}").remove_all()


def too_old_error(table: Folder, send_id: str) -> QueueClientError:
    """Returns the error for a bulk send whose files are too old. Raises QueueClientError if the clock is wrong."""
    storage_now(table)
    return QueueClientError(
        f"the files of bulk send {send_id} were written more than 12 h ago; send them under a new id"
    )


def _manifest_name(send_id: str) -> str:
    return f"{_FOLDER}/{safe_name(send_id)}.json"


def _plain(_: object, __: object, value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _reached(table: Table, app_id: str, version: int) -> bool:
    return table.transaction(app_id) >= version
