"""Earlier versions of a table, read-only, as far back as its log reaches, whichever engine commits."""

from __future__ import annotations

from typing import NamedTuple

from lakequeue.errors import QueueClientError
from lakequeue.model.clock import from_micros
from lakequeue.storage.delta_log import LogTrimmed
from lakequeue.storage.engines.log_trimming import readable_from
from lakequeue.storage.engines.point import PointTable
from lakequeue.storage.stores import Store


class Version(NamedTuple):
    """A version that can be opened."""

    number: int
    committed_at: int
    """Microseconds since the epoch by the machine's clock, to the millisecond."""


def versions(store: Store, path: str) -> list[Version]:
    """Versions of a table that can still be opened, oldest first."""
    from deltalake import DeltaTable  # 15 ms to load, and ordinary commands need no earlier version

    oldest = readable_from(store.folder(path))
    history = DeltaTable(path, storage_options=store.delta_options).history()
    found = [Version(entry["version"], entry["timestamp"] * 1000) for entry in history]
    return sorted(version for version in found if version.number >= oldest)


def version_at(store: Store, path: str, instant: int) -> int | None:
    """Number of the version that was current at an instant by the machine's clock; None before the first one.

    Raises:
        QueueClientError: the log no longer reaches back so far.
    """
    known = versions(store, path)
    before = [version.number for version in known if version.committed_at <= instant]
    if before:
        return before[-1]
    if known[0].number == 0:
        return None
    reach = from_micros(known[0].committed_at).isoformat()
    raise QueueClientError(f"{path} is known back to {reach}, and not as of {from_micros(instant).isoformat()}")


def opened(store: Store, path: str, version: int) -> PointTable:
    """A read-only handle on an earlier version; do not refresh it.

    Raises:
        FileNotFoundError: its log was trimmed since.
    """
    try:
        return PointTable(store, path, version)
    except LogTrimmed as error:
        raise FileNotFoundError(f"version {version} of {path}") from error
