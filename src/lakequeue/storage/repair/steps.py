"""Steps of a repair, each described before it is done."""

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
"""Directory below a table for what a repair replaced; VACUUM leaves names with this prefix alone."""


@attrs.frozen
class Step:
    """One change; killed before or after it, a repair can be repeated."""

    text: str
    apply: Callable[[], object]


def moved_aside(folder: Folder, name: str, why: str) -> Step:
    """Moves a file out of the way."""

    def apply() -> None:
        if folder.exists(name):
            folder.move(name, _place(name))

    return Step(f"moves {name} aside: it {why}", apply)


def replaced(folder: Folder, name: str, data: bytes, why: str) -> Step:
    """Replaces a file at once, and keeps a copy of what it was."""

    def apply() -> None:
        if folder.exists(name):
            folder.write(_place(name), folder.read(name))
        folder.replace(name, data)

    return Step(f"replaces {name}, which {why}; the old one is kept in {ASIDE}", apply)


def files_step(
    engine: Engine, path: str, version: int, files: Sequence[LiveFile], rows: Sequence[pa.Table], text: str
) -> Step:
    """The commit that replaces files of a version of a table by others, a table of ``rows`` each."""

    def apply() -> None:
        table = engine.open(path)

        def write(ids: Mapping[str, int], token: str) -> None:
            done(table.version == version, path)  # at each try: no application id says which files there are
            table.exchange(files, rows, ids, token)

        commit_once(table, Change({}, {}, write, None))

    return Step(text, apply)


def commit_once(table: Table, change: Change[object]) -> None:
    """Commits a change of a repair, which is not decided anew.

    Raises:
        QueueClientError: others committed meanwhile; nothing was changed.
    """

    def decide(lost: int) -> Change[object]:
        done(not lost, table.path)
        return change

    transact(table, decide, busy="")


def done(committed: bool, table: str) -> None:
    """Checks that a commit of a repair landed.

    Raises:
        QueueClientError: others committed meanwhile, which happens only where no lock keeps them out.
    """
    if not committed:
        raise QueueClientError(f"{table} was changed meanwhile; stop its processes, and repair again")


def _place(name: str) -> str:
    return f"{ASIDE}/{int(time.time())}/{name}"
