"""Opens earlier versions of a table, read-only, as far back as the table's log reaches."""

from __future__ import annotations

from typing import NamedTuple

from lakequeue.errors import QueueClientError
from lakequeue.model.clock import from_micros
from lakequeue.storage.delta_log import listed, read_entry
from lakequeue.storage.engines.point import Table
from lakequeue.storage.snapshot import LogTrimmed
from lakequeue.storage.stores import Store


class Version(NamedTuple):
    """An earlier version of a table that can still be opened."""

    number: int
    committed_at: int
    """Instant of the commit by the machine's clock, in microseconds since 1970. Exact to the millisecond."""


def versions(store: Store, path: str) -> list[Version]:
    """Returns the versions of a table that can still be opened, oldest first."""
    folder = store.folder(path)
    found = listed(folder)

    def version(number: int) -> Version | None:
        try:
            committed_at = read_entry(folder, number).committed_at
        except FileNotFoundError:  # The entry was trimmed meanwhile.
            return None
        return None if committed_at is None else Version(number, committed_at * 1000)

    numbers = [number for number in found.entries if number >= found.readable_from]
    return [each for each in folder.for_each(version, numbers) if each is not None]


def version_at(store: Store, path: str, instant: int) -> int | None:
    """Returns the table's version at an instant. Returns None if the table did not exist then.

    Raises QueueClientError if the log begins after the instant.
    """
    known = versions(store, path)
    before = [version.number for version in known if version.committed_at <= instant]
    if before:
        return before[-1]
    if known[0].number == 0:
        return None
    reach = from_micros(known[0].committed_at).isoformat()
    raise QueueClientError(f"{path} is known back to {reach}, and not as of {from_micros(instant).isoformat()}")


def opened(store: Store, path: str, version: int) -> Table:
    """Opens an earlier version, read-only. Raises FileNotFoundError if the log no longer has the version."""
    try:
        return Table(store, path, version)
    except LogTrimmed as error:
        raise FileNotFoundError(f"version {version} of {path}") from error
