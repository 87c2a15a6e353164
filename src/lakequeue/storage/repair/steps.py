"""Steps of a repair. Each step is described before it is applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import attrs
import pyarrow as pa

from lakequeue.errors import QueueClientError
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Change, transact
from lakequeue.storage.folder import Folder

ASIDE = "_damaged"
"""Directory for the files that a repair has replaced, below the table's directory. VACUUM ignores it."""


@attrs.frozen
class RepairStep:
    """A change that a repair makes, with its description. If the repair is killed, it can be repeated."""

    text: str
    apply: Callable[[], object]


def moved_aside(folder: Folder, name: str, why: str) -> RepairStep:

    def apply() -> None:
        if folder.exists(name):
            folder.move(name, _place(name))

    return RepairStep(f"moves {name} aside: it {why}", apply)


def replaced(folder: Folder, name: str, data: bytes, why: str) -> RepairStep:
    """Returns the step that replaces the content of a file, and keeps the old file in ``ASIDE``."""

    def apply() -> None:
        if folder.exists(name):
            folder.write(_place(name), folder.read(name))
        folder.replace(name, data)

    return RepairStep(f"replaces {name}, which {why}; the old one is kept in {ASIDE}", apply)


def files_step(
    engine: Engine, path: str, version: int, files: Sequence[LiveFile], rows: Sequence[pa.Table], text: str
) -> RepairStep:
    """Returns the step that replaces ``files`` by ``rows``, if the table is still at ``version``."""

    def apply() -> None:
        table = engine.open(path)

        def write(ids: Mapping[str, int], token: str) -> None:
            # Checked at each try, because no application id identifies the table's files.
            done(table.version == version, path)
            table.exchange(files, rows, ids, token)

        commit_once(table, Change({}, {}, write, None))

    return RepairStep(text, apply)


def commit_once(table: Table, change: Change[object]) -> None:
    """Commits a change. Raises QueueClientError, and changes nothing, if another process commits first."""

    def decide(lost: int) -> Change[object]:
        done(not lost, table.path)
        return change

    transact(table, decide, busy="")


def done(committed: bool, table: str) -> None:
    """Raises QueueClientError if ``committed`` is False, because another process has changed the table."""
    if not committed:
        raise QueueClientError(f"{table} was changed meanwhile; stop its processes, and repair again")


def _place(name: str) -> str:
    return f"{ASIDE}/{int(time.time())}/{name}"
