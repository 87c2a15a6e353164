"""Formats results as text and tables. Shows progress on a terminal."""

from __future__ import annotations

import base64
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs

from lakequeue.cli.output import error_console, printable
from lakequeue.cli.values import shown_size
from lakequeue.errors import QueueClientError, counted
from lakequeue.model.attributes import kind_of
from lakequeue.model.clock import shown_duration
from lakequeue.model.messages import text_of
from lakequeue.model.redrive_policies import RedrivePolicy

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
    from rich.table import Table

    from lakequeue import CompactionSummary, Message, Queue, SendResult
    from lakequeue.entry_verbs import Depth

PREVIEW = 200
"""Maximum number of characters of a body in a table."""
FOLDED = 20
"""Minimum width of a text column that wraps. Ids and names never wrap."""
LONG = 40
"""Number of characters above which a column of words wraps. Instants are shorter, and never wrap."""
_FOLDED = {"body", "error", "paused", "reason"}


def require_done(summaries: Sequence[CompactionSummary]) -> None:
    """Raises QueueClientError if steps of a compaction pass failed."""
    failed = [f"{summary.queue or 'root'}: {failure}" for summary in summaries for failure in summary.failures]
    if failed:
        raise QueueClientError(f"{count(len(failed), 'step')} failed, {failed[0]}; the next pass tries again")


def compacted(summaries: Sequence[CompactionSummary]) -> str:
    """Describes a compaction pass, with a line for each queue that had work."""
    from rich.filesize import decimal

    lines = []
    for each in summaries:
        done = [
            *((each.expired, "message", "expired"), (each.segments_dropped, "segment", "dropped")),
            *((each.segments_merged, "segment", "merged"), (each.segments_cut, "segment", "cut")),
            (each.ledgers_rewritten, "ledger", "rewritten"),
            (each.files_freed, "file", f"removed ({decimal(each.bytes_freed)})"),
            (len(each.failures), "step", "failed"),
        ]
        steps = ", ".join(f"{count(number, noun)} {verb}" for number, noun, verb in done if number)
        name = f"{each.queue} (deleted)" if each.deleted else each.queue or "the root's own tables"
        lines += [f"{name}: {steps}"] if steps else []
    return "\n".join(lines or ["nothing to do"])


def setting(name: str, value: Any) -> object:
    """Returns an attribute's value with its unit: ``345600 s (4d)``, ``1048576 bytes (1 MiB)``."""
    if kind_of(name) == "seconds" and value is not None:
        return f"{value} s" if value < 60 else f"{value} s ({shown_duration(value)})"
    if name == "maximum_message_size":
        long = shown_size(value)
        return f"{value} bytes" if long.endswith("bytes") else f"{value} bytes ({long})"
    if kind_of(name) == "cap" and value is None:
        return "unlimited"
    if isinstance(value, RedrivePolicy):
        return f"{value.dead_letter_queue.rpartition(':')[2]}, after {count(value.max_receive_count, 'receive')}"
    return attrs.asdict(value) if attrs.has(type(value)) else value


def sent_text(sent: SendResult, group: str | None) -> str:
    """Describes a sent message: its id, and on FIFO queues group and sequence number."""
    lines = [f"sent {sent.message_id}"]
    if sent.sequence_number is not None:
        lines += [f"  group     {group}", f"  sequence  {sent.sequence_number}"]
    return "\n".join(lines)


def message_text(message: Message) -> str:
    """Formats a received message as lines. Never wraps the handle, so that it can be copied."""
    times = "once" if message.receive_count == 1 else f"{message.receive_count} times"
    lines = [
        f"message   {message.message_id}",
        f"  sent      {instant(message.sent_at)}, received {times}",
        f"  handle    {message.receipt_handle}",
    ]
    if message.group_id is not None:
        lines.append(f"  group     {message.group_id}")
    if message.priority:
        lines.append(f"  priority  {message.priority}")
    if message.sequence_number is not None:
        lines.append(f"  sequence  {message.sequence_number}")
    if message.dead_letter_reason is not None:
        lines.append(f"  reason    {_indented(str(message.dead_letter_reason))}")
    for name, (type_, value) in message.message_attributes.items():
        lines.append(f"  attribute {name}:{type_}={_indented(text_of(value))}")
    return "\n".join([*lines, f"  body      {_indented(message.body)}"])


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 12)


def instant(value: datetime | None) -> str:
    """Formats an instant in UTC, with milliseconds."""
    return "" if value is None else value.astimezone(timezone.utc).strftime("%F %T.%f")[:-3] + "Z"


def paused(queue: Queue) -> str:
    """Describes the pauses of a queue and its groups. Returns an empty text if there are no pauses."""
    from lakequeue.entry_verbs import settings

    return "; ".join(map(str, settings(queue).pauses))


def age(seconds: float | None) -> str:
    return "" if seconds is None else shown_duration(seconds)


def states(counted: Iterable[Mapping[str, object] | None]) -> list[str]:
    """Returns the states to show in a list of queues. Omits rare states that do not occur."""
    known = [each for each in counted if each]
    return [
        "visible",
        "in_flight",
        *(rare for rare in ("delayed", "held", "undecided") if any(each.get(rare) for each in known)),
    ]


def titles(names: Iterable[str]) -> list[str]:
    return [name.removesuffix("_age").replace("_", " ") for name in names]


count = counted


def lost(found: Depth) -> str:
    """Describes what a purge or deletion removes: stored and rewindable messages."""
    stored, rewindable = count(found.stored, "message"), found.counts.rewindable
    return f"{stored} and {rewindable:,} that a rewind could restore" if rewindable else stored


def preview(text: str) -> str:
    text = " ".join(printable(text[: PREVIEW + 1]).split())
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


def table(
    columns: Sequence[str], rows: Collection[Sequence[object]], title: str | None = None, empty: str = ""
) -> Fitting | str:
    """Builds a table with right-aligned numbers. If there are no rows, returns the text ``empty``."""
    rows = [list(row) for row in rows]
    if not rows:
        return empty or f"no {columns[0]}s"
    texts = [[_cell(value) for value in row] for row in rows]
    made: list[_Column] = []
    for index, name in enumerate(columns):
        cells = [row[index] for row in rows if row[index] is not None]
        width = max((len(text[index]) for text in texts), default=0)
        folds = name in _FOLDED or any(len(text[index]) > LONG and " " in text[index] for text in texts)
        word = (
            FOLDED if name in _FOLDED else max(len(each) for text in texts for each in ["", *text[index].split()])
        )
        least = max(len(name), min(width, word) if folds else width)
        made.append(_Column(name, bool(cells) and all(map(_is_number, cells)), folds, least))
    return Fitting(made, texts, title)


class _Column(NamedTuple):
    name: str
    numeric: bool
    folds: bool
    least: int


@attrs.frozen(eq=False)
class Fitting:
    """A table that fits its width: long names get lines of their own, or rows become blocks of lines."""

    columns: list[_Column]
    rows: list[list[str]]
    title: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        pairs = len(self.columns) == 2
        room = options.max_width - 2 - sum(column.least + 3 for column in self.columns[1:]) - 3
        if room >= self.columns[0].least:
            yield self._table(self.rows)
            return
        if not pairs and not self.columns[0].folds and room >= len(self.columns[0].name):
            long = [row[0] for row in self.rows if len(row[0]) > room]
            cut = [[_ABOVE if len(row[0]) > room else row[0], *row[1:]] for row in self.rows]
            for line in console.render_lines(self._table(cut), options, pad=False):
                text = "".join(part.text for part in line)
                if _ABOVE in text:
                    yield Text(" " * (not text.startswith(_ABOVE)) + long.pop(0), no_wrap=True, overflow="ignore")
                yield Text(text.replace(_ABOVE, " "), no_wrap=True, overflow="ignore")
            return
        names = [column.name for column in self.columns]
        width = max(map(len, [row[0] for row in self.rows] if pairs else names), default=0)
        lines = [] if self.title is None else [self.title, ""]
        for row in self.rows:
            cells = [(name, cell) for name, cell in zip(names, row, strict=True) if cell]
            if pairs:
                lines.append(f"{row[0]:<{width}}  {row[1]}")
            else:
                lines += [f"{name:<{width}}  {cell}" for name, cell in cells] + [""]
        yield Text("\n".join(lines), no_wrap=True, overflow="ignore")

    def _table(self, rows: Sequence[Sequence[str]]) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        title = None if self.title is None else Text(self.title)
        made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for column in self.columns:
            justify: JustifyMethod = "right" if column.numeric else "left"
            made.add_column(Text(column.name), justify=justify, overflow="fold", no_wrap=not column.folds)
        for row in rows:
            made.add_row(*map(Text, row))
        return made


_ABOVE = "\ue000"
"""Placeholder for a name that is printed on the line above its table cell. No name contains this character."""


@contextmanager
def spinner(what: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.text import Text

    with error_console().status(Text(f"{what} …")):
        yield


class Advance(Protocol):
    def __call__(self, done: int, text: str, total: int | None = None, /) -> None:
        """Shows how much is done, and a text. If ``total`` is not None, it is the new total."""


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """Shows a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, text, total=None: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.fields[text]}", markup=False)
    columns = (TextColumn(what, markup=False), BarColumn(), text, TimeElapsedColumn())
    # rich would send standard output to the bar's console, which is standard error
    with Progress(
        *columns, console=error_console(), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(what, total=total, text="")
        yield lambda done, text, total=None: bar.update(task, completed=done, text=text, total=total)


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
