"""Bounds the send times of lost messages, from the remaining log and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from lakequeue.model.clock import from_micros
from lakequeue.storage import layout
from lakequeue.storage.inspection.found_log import FoundLog
from lakequeue.storage.inspection.message_files import FoundFile, Range

Known = tuple[int, int]
"""An offset, and the send time of its message in microseconds."""


def known_times(log: FoundLog, files: Sequence[FoundFile]) -> list[Known]:
    """Returns known send times, from entries of the log that append, and from its sound files."""
    return [*_of_entries(log), *_of_files(files)]


def _of_entries(log: FoundLog) -> Iterator[Known]:
    for entry in log.entries.values():
        clock, send = (entry.transactions.get(name) for name in (layout.CLOCK_ID, layout.SEND_ID))
        if clock is not None and send is not None and entry.added and not entry.removed:
            end = layout.end_of(send)  # all messages of a commit are sent at one instant
            yield end - sum(file.rows for file in entry.added), clock
            yield end - 1, clock


def _of_files(files: Sequence[FoundFile]) -> Iterator[Known]:
    for each in files:
        if each.problem is None and each.sent is not None:
            yield from zip((each.first, each.last), each.sent, strict=True)


def sent_between(known: Sequence[Known], messages: Range) -> tuple[datetime | None, datetime | None]:
    """Returns the earliest and latest possible send time of a range of messages; each None if unknown.

    Send times never decrease with the offset, so known send times bound unknown ones.
    """
    first, last = messages
    earliest = max((from_micros(at) for offset, at in known if offset <= first), default=None)
    latest = min((from_micros(at) for offset, at in known if offset >= last), default=None)
    return earliest, latest
