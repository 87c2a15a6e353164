"""The interface of an engine: handles on Delta tables that commit under a fence.

Everything above it (messages, ledger, catalog, cleaning) is written once and runs on both engines. A commit raises
``LostRace`` if another commit was in the way; ``landed`` returns whether one landed in spite of an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import attrs
import pyarrow as pa

from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.folder import Folder
from lakequeue.storage.stores import Store


class LostRace(Exception):
    """Another commit came first; reload, decide again, repeat."""


class StaleSnapshot(LostRace, FileNotFoundError):
    """Files of the loaded snapshot or its log are gone, as it has been outdated for hours; refresh."""


@attrs.frozen
class DataFile:
    """A Parquet file below the table's directory, with what Delta records of it."""

    path: str
    """Relative to the table, ``/`` as separator, not URL-encoded."""
    size: int
    rows: int
    partition: Mapping[str, str]
    """Partition values as Delta writes them (instants: ``2026-01-01 00:00:00.000000``)."""
    minimum: Mapping[str, Any] = attrs.field(factory=dict)
    """Of texts only if all are equal."""
    maximum: Mapping[str, Any] = attrs.field(factory=dict)
    nulls: Mapping[str, int] = attrs.field(factory=dict)

    def statistics(self) -> str:
        """Statistics for Delta's log, as JSON."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": dict(self.minimum),
                "maxValues": dict(self.maximum),
                "nullCount": dict(self.nulls),
            }
        )


def partition_text(value: object) -> str:
    """A partition value as Delta writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    # with its zone: Spark reads an instant without one in the zone of the session
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else str(value)


class Table(Protocol):
    """One handle on one Delta table; not thread-safe, its owner locks.

    ``version``, ``transaction``, ``files`` and ``read`` refer to the snapshot loaded by the last ``refresh`` or
    commit of this handle.
    """

    path: str
    folder: Folder
    """Its directory."""
    commits_alone: bool
    """Whether commits on local disks need the table's lock exclusively, see ``locks``."""
    loaded_at: float
    """When the snapshot was known to be the newest: machine wall clock, seconds."""
    lost_races: int
    """Races that this handle lost since its last commit, which records it; see ``commit``."""

    @property
    def version(self) -> int:
        """Version of the loaded snapshot."""

    def refresh(self) -> None:
        """Loads the newest snapshot."""

    def learn(self, other: Table) -> None:
        """Takes note of the last commit of another handle of this process; only for speed, and thread-safe."""

    def advance(self) -> None:
        """Moves to the newest snapshot that is known from ``learn``, if that follows the loaded one."""

    def transaction(self, app_id: str) -> int | None:
        """Last committed version of an application id; None if there is none."""

    def files(self) -> list[LiveFile]:
        """The live files."""

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        """Rows of live files, one table a file, in the order given and in each file's row order.

        ``columns`` are data (not partition) columns; None: all of them."""

    def read_rows(self, file: LiveFile, first: int, last: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows ``first`` to ``last`` (row numbers, inclusive) of a live file; reads little else."""

    def append(self, rows: pa.Table, transactions: Mapping[str, int], token: str) -> None:
        """Appends rows (schema of the table, partition columns included) in one commit."""

    def add(self, files: Sequence[DataFile], transactions: Mapping[str, int], token: str) -> None:
        """Adds files that lie below the table in one commit; no files: an empty commit."""

    def replace(
        self,
        partition: Mapping[str, Sequence[int | bool | str]],
        rows: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        """Replaces every row whose partition values are among ``partition``; no ``rows``: drops them.

        Each table of ``rows`` becomes a file: not empty, with partition columns, which are constant within it. The
        iterable may produce them lazily, so that they are not all in memory at once."""

    def merge(
        self,
        source: pa.Table,
        key: str,
        transactions: Mapping[str, int],
        token: str,
        known: dict[str, pa.Table] | None = None,
    ) -> None:
        """MERGE of ``source`` (columns of the table and ``op``: ``put`` or ``del``).

        Rows are the same if ``key`` and the partition columns are equal. ``known`` has the rows of files by path,
        which need not be read; those that are read or written here are added, for the next MERGE.
        """

    def landed(self, token: str, since: int) -> bool | None:
        """Whether a commit after version ``since`` carries ``token``; refresh first.

        None: the entries that can be read do not show it, as some are missing or there is none.
        """

    def checkpoint(self) -> None:
        """Writes a checkpoint of the newest snapshot."""


class Engine(Protocol):
    """Opens and creates tables."""

    name: str
    store: Store
    commits_alone: bool
    """See ``Table.commits_alone``."""

    def exists(self, path: str) -> bool:
        """Whether there is a Delta table."""

    def open(self, path: str) -> Table:
        """A new handle with the newest snapshot."""

    def create(
        self,
        path: str,
        schema: pa.Schema,
        partitions: Sequence[str],
        properties: Mapping[str, str],
        rows: pa.Table | None = None,
    ) -> None:
        """Creates a table, with its first rows (of one partition), unless there is one."""
