"""Earlier versions of a table, as far back as its log reaches: for looks into the past, which commit nothing.

Versions are opened through delta-rs whatever engine commits: both write the same tables.
"""

from __future__ import annotations

from typing import NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lakequeue.errors import QueueClientError
from lakequeue.model.clock import from_micros
from lakequeue.storage.delta_log import LogTrimmed
from lakequeue.storage.engines.log_trimming import readable_from
from lakequeue.storage.engines.point import PointTable


class Version(NamedTuple):
    """A version that can be opened."""

    number: int
    committed_at: int
    """Microseconds since the epoch by the machine's clock, to the millisecond."""


def versions(path: str, first: int = 0) -> list[Version]:
    """The versions of a table from a number on that can still be opened, oldest first."""
    oldest = max(first, readable_from(path))
    found = [Version(entry["version"], entry["timestamp"] * 1000) for entry in DeltaTable(path).history()]
    return sorted(version for version in found if version.number >= oldest)


def version_at(path: str, instant: int) -> int | None:
    """Number of the version that was in force at an instant by the machine's clock; None before the first one.

    Raises:
        QueueClientError: the log no longer reaches back so far.
    """
    known = versions(path)
    before = [version.number for version in known if version.committed_at <= instant]
    if before:
        return before[-1]
    if known[0].number == 0:
        return None
    reach = from_micros(known[0].committed_at).isoformat()
    raise QueueClientError(f"{path} is known back to {reach}, and not as of {from_micros(instant).isoformat()}")


def opened(path: str, version: int) -> PointTable:
    """A handle on an earlier version; for reading, and not to be refreshed.

    Raises:
        FileNotFoundError: its log was trimmed since.
    """
    try:
        return PointTable(path, version)
    except (DeltaError, LogTrimmed) as error:
        raise FileNotFoundError(f"version {version} of {path}") from error
