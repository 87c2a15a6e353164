"""Reads all rows of a ledger, and checks that the rows fit together."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import attrs

from lakequeue.errors import DamagedTable
from lakequeue.shard.runs import Head, Run
from lakequeue.storage.engines.point import Table
from lakequeue.storage.inspection.found_log import FoundLog
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.table_version import TableVersion


@attrs.frozen
class LedgerRows:
    """All rows of one version of a ledger. Runs of deleted messages are in ``history``."""

    version: int
    head: Head
    runs: list[Run]
    history: list[Run]


def read_ledger(table: TableVersion) -> LedgerRows:
    """Reads all rows of a version. Raises DamagedTable if files are missing or damaged, or rows are wrong."""
    if table.state.lost_files:
        raise DamagedTable(table.path, None, "another program removed files from it")
    head, runs, history = Ledger(cast(Table, table)).load()
    problem = _contradiction(head, [*runs, *history])
    if problem is not None:
        raise DamagedTable(table.path, None, problem)
    return LedgerRows(table.version, head, runs, history)


def newest_readable(log: FoundLog | None) -> LedgerRows | None:
    """Returns the newest version of a ledger that can be read. Returns None if no version can be read."""
    broken: set[str] = set()
    for version in log.sound() if log is not None else ():
        if broken.isdisjoint(file.name for file in version.files()):
            try:
                return read_ledger(version)
            except DamagedTable as error:
                broken |= {error.file} - {None}  # type: ignore[arg-type]
    return None


def _contradiction(head: Head, runs: list[Run]) -> str | None:
    ordered = sorted(runs)
    for run in ordered:
        if not 0 <= run.first <= run.last < head.head_offset:
            return f"it has a run from {run.first} to {run.last}, and its head is at {head.head_offset}"
    for before, run in pairwise(ordered):
        if run.first <= before.last:
            return f"two runs hold offset {run.first}"
    return None
