"""The rows of a ledger, read and checked as a whole."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import attrs
import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.shard.runs import Head, Run
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.inspection.found_log import FoundLog, State
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.store_failures import first_line


@attrs.frozen
class LedgerRows:
    """Head, unsettled and settled runs of a version of a ledger."""

    version: int
    head: Head
    runs: list[Run]
    history: list[Run]


def read_ledger(state: State) -> LedgerRows:
    """Reads a version of a ledger.

    Raises:
        DamagedTable: a file is missing or torn, or the rows contradict each other.
    """
    if state.lost_files:
        raise DamagedTable(state.path, None, "another program removed files from it")
    ledger = Ledger(cast(Table, state))
    try:
        head, runs, history = ledger.load()
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        reason = f"its rows cannot be read: {first_line(error)}"
        raise DamagedTable(state.path, None, reason) from error
    problem = _contradiction(ledger.epoch, head, [*runs, *history])
    if problem is not None:
        raise DamagedTable(state.path, None, problem)
    return LedgerRows(state.version, head, runs, history)


def newest_readable(log: FoundLog | None) -> LedgerRows | None:
    """The newest version of a ledger that is sound and whose files still exist; None if there is none."""
    broken: set[str] = set()
    for state in log.sound() if log is not None else ():
        if broken.isdisjoint(file.name for file in state.files()):
            try:
                return read_ledger(state)
            except DamagedTable as error:
                broken |= {error.file} - {None}  # type: ignore[arg-type]
    return None


def _contradiction(epoch: int, head: Head, runs: list[Run]) -> str | None:
    if head.epoch != epoch:
        return f"its head is of epoch {head.epoch}, and its log of {epoch}; another program restored it"
    ordered = sorted(runs)
    for run in ordered:
        if not 0 <= run.first <= run.last < head.head_offset:
            return f"it has a run from {run.first} to {run.last}, and its head is at {head.head_offset}"
    for before, run in pairwise(ordered):
        if run.first <= before.last:
            return f"two runs hold offset {run.first}"
    return None
