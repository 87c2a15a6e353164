"""Cleans up a table's log after a commit: trims it, and removes entries that a restore left over."""

from __future__ import annotations

import logging

from lakequeue.storage import layout
from lakequeue.storage.engines.locks import LockHeld, committing
from lakequeue.storage.engines.log_trimming import trim_log
from lakequeue.storage.engines.point import Table
from lakequeue.storage.roots import local_path
from lakequeue.storage.store_failures import first_line

TRIM_PATIENCE = 0.2
"""Seconds to wait for the table's lock. If another process keeps the lock, nothing is trimmed."""

_log = logging.getLogger("lakequeue")


def set_aside(table: Table) -> None:
    """Removes log entries that a restore left over, unless another process has the lock (DUR-86). Never fails."""
    try:
        with table.pinned(), committing(table.path, exclusive=True, patience=TRIM_PATIENCE):
            table.set_aside()
    except LockHeld:
        table.state.strays = []  # the next process that meets them tries again
    except Exception as error:
        _log.warning("entries of %s that a restore left over stay: %s", table.path, first_line(error))


def trim(table: Table) -> None:
    """Trims the log of a local table, unless another process has the table's lock. Never fails."""
    # on a store a long log is cheap, and the compactor trims it; a user's table of refused rows is left alone
    if local_path(table.path) is None or not dict(table.state.metadata["configuration"]).items() >= layout.OURS:
        return
    try:
        trim_log(table.folder, layout.MESSAGES_RETENTION, TRIM_PATIENCE)
    except LockHeld:
        pass
    except Exception as error:
        _log.warning("trimming the log of %s failed: %s", table.path, first_line(error))
