"""What an engine must offer: one Delta table, one writer, commits under a fence.

Everything above this interface (log, ledger, catalog, housekeeping) is written once and runs on
both engines. Commits raise ``LostRace`` when another commit was in the way; whether a commit
landed in spite of an error is answered by ``landed``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import attrs
import pyarrow as pa

from lakequeue.storage.delta_log import LiveFile


class LostRace(Exception):
    """Another commit got in between; reload, decide again, repeat."""


class StaleSnapshot(LostRace):
    """Files of the loaded snapshot, or of its log, are gone: it was not the newest for hours; refresh."""


@attrs.frozen
class DataFile:
    """A Parquet file below the table's directory, with what Delta must know of it."""

    path: str
    """Relative to the table, ``/`` as separator, not URL-encoded."""
    size: int
    rows: int
    partition: Mapping[str, str]
    """Partition values as Delta writes them (instants: ``2026-01-01 00:00:00.000000``)."""
    minimum: Mapping[str, int | float] = attrs.field(factory=dict)
    maximum: Mapping[str, int | float] = attrs.field(factory=dict)
    nulls: Mapping[str, int] = attrs.field(factory=dict)

    def statistics(self) -> str:
        """What Delta's log keeps to skip the file by, as JSON."""
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
    return value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else str(value)


class Table(Protocol):
    """One handle on one Delta table; not thread-safe, its owner locks.

    ``version``, ``transaction``, ``files`` and ``read`` speak of the snapshot loaded by the last
    ``refresh`` or commit of this handle.
    """

    path: str
    commits_alone: bool
    """Whether its commits need the table's lock on local disks to themselves, see `locks`."""
    loaded_at: float
    """By the machine's wall clock, seconds: when the snapshot was known to be the newest."""

    @property
    def version(self) -> int:
        """Version of the loaded snapshot."""

    def refresh(self) -> None:
        """Loads the newest snapshot."""

    def transaction(self, app_id: str) -> int | None:
        """Last committed version of an application id, None if it never committed."""

    def files(self) -> list[LiveFile]:
        """The live files."""

    @property
    def file_count(self) -> int:
        """How many there are; cheaper."""

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        """Rows of live files, a table each, in the order asked for and in the file's own row order;
        ``columns`` are data (not partition) columns, None: all of them."""

    def read_rows(self, file: LiveFile, first: int, last: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows ``first..last`` (row numbers, inclusive) of one live file; reads little else."""

    def append(self, rows: pa.Table, transactions: Mapping[str, int], token: str) -> None:
        """Appends rows (schema of the table, partition columns included) in one commit."""

    def add(self, files: Sequence[DataFile], transactions: Mapping[str, int], token: str) -> None:
        """Adds files that wait below the table in one commit; no files: an empty commit."""

    def replace(
        self,
        partition: Mapping[str, Sequence[int | bool | str]],
        rows: Iterable[pa.Table],
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        """Replaces every row whose partition values are among ``partition`` by ``rows``: a file for
        each table (non-empty, partition columns included and constant within one). No rows: drops them.

        ``rows`` may be read while it is gone through, so not all of it is in memory at once."""

    def merge(
        self,
        source: pa.Table,
        on: Sequence[str],
        target_filter: str,
        transactions: Mapping[str, int],
        token: str,
    ) -> None:
        """MERGE of ``source`` (columns of the table and ``op``: ``put`` or ``del``) by equality on ``on``.

        ``target_filter`` is SQL over the target (alias ``t``) that prunes and keeps conflicts apart.
        """

    def landed(self, token: str, since: int) -> bool:
        """Whether a commit after version ``since`` carries ``token``; refresh first."""

    def unused(self, hours: float) -> list[str]:
        """Data files that no snapshot of the last ``hours`` needs, and uncommitted ones of that age.

        Their paths are below the table and not URL-encoded.
        """

    def checkpoint(self) -> None:
        """Writes a checkpoint of the newest snapshot."""


class Engine(Protocol):
    """Opens and creates tables."""

    name: str
    commits_alone: bool
    """As of its tables."""

    def exists(self, path: str) -> bool:
        """Whether a Delta table is there."""

    def open(self, path: str) -> Table:
        """A new handle of its own, loaded."""

    def create(
        self,
        path: str,
        schema: pa.Schema,
        partitions: Sequence[str],
        properties: Mapping[str, str],
    ) -> None:
        """Creates an empty table; does nothing if there is one."""
