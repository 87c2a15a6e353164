"""Checks whether send times fit together, and finds out between which times a lost message was sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from lakequeue.model.clock import from_micros
from lakequeue.storage import layout
from lakequeue.storage.inspection.found_log import FoundLog
from lakequeue.storage.inspection.message_files import FoundFile, Range
from lakequeue.storage.messages.read import LogFile

Known = tuple[int, int]
"""An offset, and the time in microseconds at which its message was sent."""


def misdated(files: Sequence[FoundFile]) -> Iterator[tuple[FoundFile, str]]:
    """Yields each sound file whose send times are impossible, with a text that names the fault.

    Faults: a message was sent before the previous message; the files of a segment are not adjacent; the files of a
    segment have different opening times. The opening time is the send time of the segment's first message.
    """
    newest, base, opened = 0, -1, dict[int, int]()
    for each in sorted(files, key=lambda file: file.first):
        own, (begun, ended) = LogFile.of(each.file), each.sent or (newest, newest)
        alike = own.opened_at == opened.setdefault(own.base, max(newest, own.opened_at))
        if each.disorder is not None:
            yield each, each.disorder
        elif own.base < base:
            yield each, f"belongs to a segment at offset {own.base}, and that at {base} begins before it"
        elif not alike:
            instant = shown_at(own.opened_at)
            yield each, f"says that its segment was opened at {instant}, and other files say otherwise"
        elif begun < newest:
            yield each, f"has a message of {shown_at(begun)} behind one of {shown_at(newest)}"
        newest, base = max(newest, ended), max(base, own.base)


def shown_at(micros: int) -> datetime | str:
    """Converts microseconds to a datetime. Returns a text if the instant is too far away for a datetime."""
    try:
        return from_micros(micros)
    except OverflowError:
        return f"{micros} microseconds after 1970"


def known_times(log: FoundLog, files: Sequence[FoundFile]) -> list[Known]:
    """Returns the send times that log entries and sound files show."""
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
    """Returns the earliest and the latest possible send time of these messages. A time is None if unknown."""
    first, last = messages
    earliest = max((from_micros(at) for offset, at in known if offset <= first), default=None)
    latest = min((from_micros(at) for offset, at in known if offset >= last), default=None)
    return earliest, latest
