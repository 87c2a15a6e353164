"""Erases the content of a message from the log of a shard. The message's row stays, but is empty.

Files with the old content are removed at once from a local disk. On an object store, they stay for
``Retention.remote_file_hours``.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from lakequeue.storage import layout
from lakequeue.storage.cleaning import PATIENCE
from lakequeue.storage.delta_log import data_files
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.engines.log_trimming import trim_log
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Answer, Committed, Decision, transact
from lakequeue.storage.folder import Freed
from lakequeue.storage.messages.emptied_rows import ErasedMessage
from lakequeue.storage.messages.find_message import holds
from lakequeue.storage.messages.merge_segments import rewrite


def erase(table: Table, message_id: str, offsets: Sequence[int], keep_from: int) -> bool:
    """Clears a message in the newest snapshot. Returns True if there was content to clear.

    Args:
        offsets: offsets of the message, from ``find_message.offsets_of``.
        keep_from: instant in microseconds. Later messages keep their deduplication ids and groups (DDP-1, DDP-14).

    Raises:
        RequestThrottled: too many lost races. Rows that were already cleared stay cleared.
    """
    erased, cleared = ErasedMessage(message_id, keep_from), False
    table.refresh()
    for offset in offsets:

        def decide(_: int, offset: int = offset) -> Decision[object]:
            return rewrite(table, offset, erased.empty) if erased.is_due(table, offset) else Answer(None)

        cleared |= isinstance(transact(table, decide, busy="the log of the queue is too busy"), Committed)
    return cleared


def remove_former(table: Table, message_id: str) -> Freed:
    """Removes old local files with the message that are not live. Returns number and size. Raises LockHeld."""
    if table.folder.local is None:
        return Freed()
    with table.folder.pinned() as folder:
        live = _live(table)
        former = [
            each.name for each in data_files(folder) if each.name not in live and holds(folder, each, message_id)
        ]
        with committing(table.path, exclusive=True, patience=PATIENCE):
            live = _live(table)
            freed = folder.remove(name for name in former if name not in live)
            if freed.files:
                table.checkpoint()
                trim_log(table.folder, attrs.evolve(layout.MESSAGES_RETENTION, log_minutes=0), PATIENCE)
        return freed


def _live(table: Table) -> set[str]:
    table.refresh()
    return {file.name for file in table.files()}
