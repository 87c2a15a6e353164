"""Finds the rows and the files of a message by the message's id."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import DamagedTable
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder, ListedFile
from lakequeue.storage.messages.read import Integers, LogFile, LogReader, log_files


def offsets_of(table: Table, message_id: str, sent: tuple[int, int] | None = None) -> list[int]:
    """Returns the offsets of a message. There are several if the message was moved away and back.

    If ``sent`` gives two instants in microseconds, searches only files with messages sent between them.
    """

    def files() -> list[LogFile]:
        if sent is None:
            return log_files(table)
        log = LogReader(table).log
        first, end = map(log.first_sent_at_or_after, sent)
        return log.overlapping(first, end - 1)

    def find() -> list[int]:
        found: list[int] = []
        for file in files():
            found += (file.first + _rows_of(file.rows_of(table, ["message_id"]), message_id)).tolist()
        return found

    return table.repeated(find)


def holds(folder: Folder, entry: ListedFile, message_id: str) -> bool:
    """True if a file contains the message. False if the file is unreadable or was removed."""
    try:
        return len(_rows_of(folder.rows(entry.name, entry.size, ["message_id"]), message_id)) > 0
    except (OSError, DamagedTable):
        return False


def _rows_of(rows: pa.Table, message_id: str) -> Integers:
    return np.flatnonzero(pc.equal(rows["message_id"], message_id).to_numpy())
