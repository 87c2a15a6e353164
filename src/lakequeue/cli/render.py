"""Renders results as text and tables, and shows progress on a terminal."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING

from lakequeue.cli.output import error_console, printable

if TYPE_CHECKING:
    from rich.table import Table

    from lakequeue import CompactionSummary, Message, SendResult

PREVIEW = 200
"""Maximum number of characters of a body in a table."""


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


def sent_text(sent: SendResult, group: str | None) -> str:
    """The message id; on FIFO queues also group and sequence number."""
    lines = [f"sent {sent.message_id}"]
    if sent.sequence_number is not None:
        lines += [f"  group     {group}", f"  sequence  {sent.sequence_number}"]
    return "\n".join(lines)


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
