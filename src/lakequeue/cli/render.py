"""Renders results as text and JSON documents, and shows progress on a terminal."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lakequeue.cli.output import error_console, printable
from lakequeue.model.clock import format_instant

if TYPE_CHECKING:
    from rich.table import Table

    from lakequeue import (
        AttributeValue,
        BatchFailure,
        BatchSuccess,
        CompactionSummary,
        Message,
        PeekedMessage,
        Queue,
        QueueCounts,
        SendResult,
    )

PREVIEW = 200
"""Maximum number of characters of a body in a table."""


def jsonable(value: object) -> object:
    """Converts types that JSON lacks: instants to ISO 8601 in UTC, bytes to base64, durations to seconds."""
    match value:
        case datetime():
            return format_instant(value)
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def queue_document(queue: Queue) -> dict[str, Any]:
    return {"name": queue.name, "region": queue.region, "fifo": queue.fifo, "created_at": queue.created_at}


def counts_document(name: str, counts: QueueCounts) -> dict[str, Any]:
    return {
        "queue": name,
        "visible": counts.visible,
        "in_flight": counts.in_flight,
        "delayed": counts.delayed,
        "rewindable": counts.rewindable,
        "oldest_age": counts.oldest_age,
        "held": counts.held,
    }


def summary_document(summary: CompactionSummary) -> dict[str, Any]:
    import attrs

    return attrs.asdict(summary)


def summary_table(summaries: Sequence[CompactionSummary]) -> Table:
    """What a compaction pass freed; one row per queue."""
    columns = ["queue", "expired", "dropped", "merged", "cut", "ledgers", "files freed", "bytes freed", "failed"]
    rows = [
        [
            f"{each.queue} (deleted)" if each.deleted else each.queue or "(the root's own tables)",
            each.expired,
            each.segments_dropped,
            each.segments_merged,
            each.segments_cut,
            each.ledgers_rewritten,
            each.files_freed,
            each.bytes_freed,
            len(each.failures),
        ]
        for each in summaries
    ]
    return table(columns, rows)


def sent_document(sent: SendResult | BatchSuccess) -> dict[str, Any]:
    return {
        "message_id": sent.message_id,
        "md5_of_body": sent.md5_of_body,
        "md5_of_message_attributes": sent.md5_of_message_attributes,
        "sequence_number": sent.sequence_number,
    }


def sent_text(sent: SendResult, group: str | None) -> str:
    """The message id; on FIFO queues also group and sequence number."""
    lines = [f"sent {sent.message_id}"]
    if sent.sequence_number is not None:
        lines += [f"  group     {group}", f"  sequence  {sent.sequence_number}"]
    return "\n".join(lines)


def failure_document(failure: BatchFailure) -> dict[str, Any]:
    return {
        "id": failure.id,
        "code": failure.code,
        "message": failure.message,
        "sender_fault": failure.sender_fault,
    }


def message_document(message: Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "receipt_handle": message.receipt_handle,
        "body": message.body,
        "md5_of_body": message.md5_of_body,
        "message_attributes": _attributes_document(message.message_attributes),
        "receive_count": message.receive_count,
        "sent_at": message.sent_at,
        "first_received_at": message.first_received_at,
        "group_id": message.group_id,
        "dedup_id": message.dedup_id,
        "sequence_number": message.sequence_number,
        "attributes": message.attributes,
    }


def peeked_document(message: PeekedMessage) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "state": message.state,
        "body": message.body,
        "message_attributes": _attributes_document(message.message_attributes),
        "receive_count": message.receive_count,
        "sent_at": message.sent_at,
        "visible_at": message.visible_at,
        "group_id": message.group_id,
    }


def _attributes_document(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    return {name: {"type": type_, "value": value} for name, (type_, value) in attributes.items()}


def message_text(message: Message) -> str:
    """A received message as lines; the handle stays on one line, so that it can be copied."""
    times = "once" if message.receive_count == 1 else f"{message.receive_count} times"
    lines = [
        f"message   {message.message_id}",
        f"  sent      {instant(message.sent_at)}, received {times}",
        f"  handle    {message.receipt_handle}",
    ]
    if message.group_id is not None:
        lines.append(f"  group     {message.group_id}")
    if message.sequence_number is not None:
        lines.append(f"  sequence  {message.sequence_number}")
    for name, (type_, value) in message.message_attributes.items():
        shown = value if isinstance(value, str) else base64.b64encode(value).decode()
        lines.append(f"  attribute {name}:{type_}={_indented(shown)}")
    return "\n".join([*lines, f"  body      {_indented(message.body)}"])


def _indented(text: str) -> str:
    """Indents further lines, so that none looks like a field of the output."""
    return text.replace("\n", "\n" + " " * 12)


def instant(value: datetime | None) -> str:
    """An instant in UTC, with milliseconds."""
    return "" if value is None else value.astimezone(timezone.utc).strftime("%F %T.%f")[:-3] + "Z"


def age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def count(number: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def preview(text: str) -> str:
    """The start of a text, on one line."""
    text = " ".join(printable(text[: PREVIEW + 1]).split())
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A table; columns of numbers are right-aligned."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    made = Table(
        title=None if title is None else escape(title), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False
    )
    for index, name in enumerate(columns):
        cells = [row[index] for row in rows if row[index] is not None]
        numeric = bool(cells) and all(map(_is_number, cells))
        made.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(_cell(value)) for value in row))
    return made


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Shows a spinner on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with error_console().status(f"{what} …"):
        yield


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """Shows a progress bar on a terminal; yields a function of the progress made and a text to show."""
    if not sys.stderr.isatty():
        yield lambda advance, text: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.fields[text]}", markup=False)
    columns = (TextColumn(what, markup=False), BarColumn(), text, TimeElapsedColumn())
    with Progress(*columns, console=error_console(), transient=True) as bar:
        task = bar.add_task(what, total=total, text="")
        yield lambda advance, text: bar.update(task, advance=advance, text=text)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case datetime():
            return instant(value)
        case Mapping():
            return ", ".join(f"{key}={_cell(item)}" for key, item in value.items())
        case list() | tuple():
            return ", ".join(_cell(item) for item in value)
        case bytes():
            return base64.b64encode(value).decode()
    return preview(str(value))
