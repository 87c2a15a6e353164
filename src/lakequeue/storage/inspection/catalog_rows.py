"""Reads the catalog of a root that may be damaged. Compares the catalog with the directories of queues."""

from __future__ import annotations

import os

import attrs

from lakequeue.errors import DamagedTable, QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.catalog import NO_DIRECTORY, QueueRow, holds_messages, rows_of
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.inspection.found_log import FoundLog, read_log
from lakequeue.storage.roots import local_path
from lakequeue.storage.stores import Store


@attrs.frozen
class FoundCatalog:
    """The catalog's log, and its newest readable rows."""

    path: str
    log: FoundLog
    rows: list[QueueRow]
    problem: str | None
    """Reason why ``rows`` may be out of date. None if the rows are current."""
    unlisted: list[str]
    """Keys of queues that hold messages but have no row."""


def find_catalog(store: Store, root: str) -> FoundCatalog:
    """Reads the catalog. Raises QueueClientError if the catalog is missing or has another layout."""
    path = layout.queues_path(root)
    try:
        log = read_log(store.folder(path))
    except FileNotFoundError as error:
        local = local_path(root)
        there = local is None or os.path.isdir(local)
        what = "holds no queues; creating a queue makes it a root" if there else NO_DIRECTORY
        raise QueueClientError(f"{root} {what}") from error
    problem = None
    if log.newest_sound != log.last:
        problem = "its log cannot be read to its end"
    for version in log.sound():
        try:
            rows = rows_of(version, root)
            break
        except DamagedTable as error:
            problem = problem or f"{error.file or ''} {error.reason}".strip()
    else:
        rows, problem = [], problem or "nothing in it can be read"
    return FoundCatalog(path, log, rows, problem, _unlisted(store, root, {row.key for row in rows}))


def _unlisted(store: Store, root: str, keys: set[str]) -> list[str]:
    engine, queues = Engine(store), store.folder(f"{root}/q")
    return [key for key in queues.folders() if key not in keys and holds_messages(engine, queues / key)]
