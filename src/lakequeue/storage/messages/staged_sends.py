"""Commits the sends of several processes together.

A process that has lost a race, or that waits for its turn on a disk, writes its messages to a file without
offsets: it stages them. The next process that commits also commits the staged files, each as a segment. On object
stores, the sender of the oldest file commits, and the other senders only read the log.

No file is committed twice, because log entries name their files. A file's name begins with the log version that
the sender knew, so that only later entries are searched for the file. For ``RECENT`` seconds, other processes may
commit the file. A sender that stops waiting earlier does not know the outcome (DUR-25). See
docs/internals/fence.md.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Sequence
from itertools import takewhile

import attrs
import pyarrow as pa

from lakequeue.errors import QueueClientError
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.point import Table, write_rows
from lakequeue.storage.folder import ListedFile
from lakequeue.storage.store_failures import first_line, left_to_others

FOLDER = "sent"
"""Directory of staged files, below the table."""
VERSIONS = 20
"""If the log has grown by this number of versions since a file was staged, only its sender may commit the file."""
TOGETHER = 100
"""Number of log versions whose staged files share a directory. A larger directory would take longer to list."""
RECENT = 10.0
"""Seconds by the storage's clock after which other processes must not commit a staged file."""
OLDEST = 3600.0
"""Seconds after which the sender itself must not commit its file, because the compactor may remove it."""
MOST = 200
"""Maximum number of files of other senders in one commit."""
_NAME = re.compile(
    rf"{FOLDER}/\d{{18}}/(\d{{20}})-(\d+)-([1-9]\d{{0,5}})-([a-z]+)-[0-9a-f]{{32}}\.parquet", re.ASCII
)
_log = logging.getLogger("lakequeue")
_DELAYED, _GROUPED, _ALONE, _PLAIN = "d", "g", "a", "p"


@attrs.frozen
class StagedSend:
    """A send whose messages are in a file that is not committed yet."""

    file: DataFile
    since: int
    """Version of the log that the sender had loaded when it wrote the file."""
    attributes_version: int
    """Version of the queue's attributes with which the messages were validated."""
    alone: bool
    """True if other processes must not commit the file."""
    rows: pa.Table
    written_at: float
    lineage: object
    """Lineage of the log for which the file was staged. See ``Table.lineage``."""

    @property
    def too_old(self) -> bool:
        """True if the file is older than ``OLDEST`` seconds, so that the compactor may have removed it."""
        return abs(time.time() - self.written_at) > OLDEST


def is_staged(name: str) -> bool:
    return name.startswith(f"{FOLDER}/")


def unknown(reason: object) -> QueueClientError:
    """Returns the error for a sender that stops waiting for its file, which other processes may still commit."""
    return left_to_others("send", "messages", reason)


def stage(table: Table, rows: pa.Table, attributes_version: int, *, alone: bool) -> StagedSend:
    """Writes rows to a file that can be committed later.

    Args:
        rows: rows of a ``messages`` file with positions from 0 on and without send times.
        attributes_version: version of the queue's attributes with which the messages were validated.
        alone: True if no other process may commit the file.

    Raises:
        QueueClientError: the write failed, but other processes may find the file; ``outcome_unknown`` is set.
    """
    delay = rows["delay_seconds"]
    flags = {
        _DELAYED: delay.null_count or any(delay.to_pylist()),
        _GROUPED: rows["group_id"].null_count < len(rows),
        _ALONE: alone,
    }
    kind = "".join(flag for flag, is_set in flags.items() if is_set) or _PLAIN
    name = f"{_begin(table.version)}-{attributes_version}-{len(rows)}-{kind}-{uuid.uuid4().hex}.parquet"
    written_at = time.time()
    try:
        written = write_rows(table.folder, rows, {}, name=name)
    except Exception as error:
        raise error if alone else unknown(error) from error
    file, since, _ = _parsed(name, written.size) or (written, table.version, 0)
    return StagedSend(file, since, attributes_version, alone, rows, written_at, table.lineage)


def listed(table: Table, own: StagedSend, ahead: int = 0) -> list[ListedFile]:
    """Lists the staged files that a commit may include. The list has the file of ``own``, and files that were
    staged up to ``ahead`` versions after the loaded version. Returns no files if the listing fails.
    """
    # After a restore, or in a copy, file names have versions of another log.
    later = _begin(table.version + 1 + ahead)
    try:
        found = table.folder.files(FOLDER, _begin(max(0, min(own.since, table.version - VERSIONS))))
        return list(takewhile(lambda each: each.name < later, found))
    except Exception as error:
        _log.warning("staged sends of other processes to %s cannot be listed: %s", table.path, first_line(error))
        return []


def others(table: Table, own: StagedSend, files: Sequence[ListedFile] | None = None) -> list[DataFile]:
    """Returns the staged files of other senders that may be committed together with ``own``, oldest first.

    ``files`` is the result of ``listed``. If it is None, the files are listed now.
    """
    known, added = table.state.newest_files()
    after = max(known, table.version - VERSIONS)
    if own.since < after or abs(time.time() - own.written_at) > RECENT:
        return []
    live = {file.name for file in table.files()}
    files = listed(table, own) if files is None else files
    mine = next((each.modified for each in files if each.name == own.file.path), None)
    fitting: list[DataFile] = []
    for each in files:
        parsed = _parsed(each.name, each.size)
        if parsed is None or mine is None or each.name in added or each.name in live or each.name == own.file.path:
            continue
        file, since, attributes_version = parsed
        if not after <= since <= table.version or attributes_version != own.attributes_version:
            continue
        if mine - each.modified <= RECENT:
            fitting.append(file)
    return fitting[:MOST]


def _begin(version: int) -> str:
    """Returns the first part of the file names of sends that were staged at this log version."""
    return f"{FOLDER}/{version // TOGETHER:018}/{version:020}"


def _parsed(name: str, size: int) -> tuple[DataFile, int, int] | None:
    """Parses the name of a staged file into its data file, log version and attributes version. Returns None if
    only the sender of the staged file may commit that file.
    """
    match = _NAME.fullmatch(name)
    if match is None or (_ALONE in match[4]):
        return None
    rows, kind = int(match[3]), match[4]
    minimum, maximum = {"position": 0}, {"position": rows - 1}
    nulls = {"position": 0, "sent_at": rows, "source_receive_count": rows}
    if _DELAYED not in kind:
        minimum["delay_seconds"] = maximum["delay_seconds"] = nulls["delay_seconds"] = 0
    if _GROUPED not in kind:
        nulls["group_id"] = rows
    return DataFile(name, size, rows, {}, minimum, maximum, nulls), int(match[1]), int(match[2])
