"""Sends of several processes in one commit to a log.

Of processes that send to one shard, all but one lose the race for each commit, or wait for its end on a local
disk. So one that has lost a race or waited writes its messages as a file that fits any offset, as files of bulk
sends do, and whose name says all that a commit must know of it. Whoever commits next adds the files of the
others to its own entry, each with a base of its own. A process whose entry is refused, or that still waits,
finds its file in the winner's entry, or tries again with the same file.

On a disk 8 senders of 50 messages a second get 280 to 390 through instead of 220, 24 of 10 240 instead of 180.

No file is added twice. Its name begins with a version of the log that its sender knew before it wrote the file, so
no entry up to that version names it. Whoever adds it knows all later ones, and its own entry is the next one or is
refused. A file that nobody added may still be added for ``RECENT`` seconds, so who gives up does not know the
outcome (DUR-25).
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from itertools import takewhile

import attrs
import pyarrow as pa

from lakequeue.errors import REPEAT, QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.engines.interface import DataFile
from lakequeue.storage.engines.point import Table, write_file
from lakequeue.storage.store_failures import first_line

FOLDER = "sent"
"""Directory below the table."""
VERSIONS = 20
"""Versions of the log within which others add a file; later only its sender does."""
TOGETHER = 100
"""Versions whose files are in one directory: a disk has no listing that begins at a name."""
RECENT = 10.0
"""Seconds, by the storage's clock, within which others add a file."""
OLDEST = 3600.0
"""Seconds after which no sender commits its file: the compactor may remove it."""
MOST = 200
"""Maximum number of files of others in one commit."""
_NAME = re.compile(
    rf"{FOLDER}/\d{{18}}/(\d{{20}})-(\d+)-([1-9]\d{{0,5}})-([a-z]+)-[0-9a-f]{{32}}\.parquet", re.ASCII
)
_log = logging.getLogger("lakequeue")
_DELAYED, _GROUPED, _ALONE, _PLAIN = "d", "g", "a", "p"


@attrs.frozen
class StagedSend:
    """A file of messages that waits for its commit."""

    file: DataFile
    since: int
    """A version of the log before the file was written."""
    attributes_version: int
    """Version of the queue attributes under which its messages are valid."""
    alone: bool
    """Whether only its sender commits it."""
    rows: pa.Table
    written_at: float
    history: object
    """Of the table, see ``Table.history``."""

    @property
    def too_old(self) -> bool:
        """Whether it may have been removed."""
        return abs(time.time() - self.written_at) > OLDEST


def is_staged(name: str) -> bool:
    """Whether a file of the log was staged."""
    return name.startswith(f"{FOLDER}/")


def unknown(reason: object) -> QueueClientError:
    """The error of a sender that gives up on a file that others may add."""
    text = first_line(reason) if isinstance(reason, BaseException) else reason
    return QueueClientError(
        f"the outcome of a send is unknown: other processes may commit its messages ({text}); {REPEAT}",
        outcome_unknown=True,
    )


def stage(table: Table, rows: pa.Table, attributes_version: int, *, alone: bool) -> StagedSend:
    """Writes rows of ``messages``, numbered from 0 and without instants.

    Args:
        table: a handle on the log.
        rows: with any base and opening time.
        attributes_version: of the queue attributes under which they are valid.
        alone: nobody else may commit them, as a later decision may leave some out.

    Raises:
        QueueClientError: ``outcome_unknown``: it failed, and others may find the file, unless it is ``alone``.
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
        written = write_file(table.folder, rows, layout.MESSAGE_PARTITIONS, name=name)
    except Exception as error:
        raise error if alone else unknown(error) from error
    file, since, _ = _parsed(name, written.size) or (written, table.version, 0)
    return StagedSend(file, since, attributes_version, alone, rows, written_at, table.history)


def others(table: Table, own: StagedSend) -> list[DataFile]:
    """Files of other senders that a commit on the loaded snapshot may add beside a sender's own.

    None are known if they cannot be listed: a sender that may not list can commit its own.
    """
    known, added = table.state.newest_files()
    after = max(known, table.version - VERSIONS)
    if own.since < after or abs(time.time() - own.written_at) > RECENT:
        return []
    # files of a copy, and of a log that was put back, have versions of another log in their names
    live = {file.name for file in table.files()}
    later = _begin(table.version + 1)
    try:
        found = table.folder.files(FOLDER, _begin(after))
        listed = list(takewhile(lambda each: each.name < later, found))
    except Exception as error:
        _log.warning("staged sends of others to %s cannot be listed: %s", table.path, first_line(error))
        return []
    mine = next((each.modified for each in listed if each.name == own.file.path), None)
    fitting: list[DataFile] = []
    for each in listed:
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
    """The beginning of the names of files that wait for what follows a version, in the order of the versions."""
    return f"{FOLDER}/{version // TOGETHER:018}/{version:020}"


def _parsed(name: str, size: int) -> tuple[DataFile, int, int] | None:
    """A file that others may add, from its name, with the versions of log and attributes; None if it is none."""
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
