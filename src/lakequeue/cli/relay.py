"""The command ``relay``: sends the rows of a table as messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from lakequeue.cli import render
from lakequeue.cli.options import duration_option, flag, option, parse_pairs, queue_argument
from lakequeue.cli.output import write
from lakequeue.cli.session import CommandContext, usage
from lakequeue.cli.values import INSTANT_HELP, Moment, at_least, moment
from lakequeue.errors import OverLimit, RequestThrottled

if TYPE_CHECKING:
    from lakequeue import Queue
    from lakequeue.model.clock import Clock


def _start(given: str | int | Moment) -> str | int | Moment:
    if not isinstance(given, str) or given == "now":
        return given
    return int(given) if given.isdecimal() else moment(given)


def _begins(queue: Queue, table: str, start: Any, options: dict[str, str] | None, chosen: bool) -> int:
    """Returns the version that a relay sends next. Raises typer.BadParameter for a new relay without a start."""
    from lakequeue.entry_verbs import relay_begins

    version, new = relay_begins(queue, table, start, options)
    if new and not chosen:
        rows = "version 0" if version == 1 else f"versions 0 to {version - 1}"
        usage(f"this relay is new: give --start 0 to send the rows of {rows}, too, or --start now")
    return version


def relay(
    ctx: CommandContext,
    names: Annotated[
        list[str], queue_argument(..., "Path or URI of a Delta table, and name of the queue.", "[TABLE] QUEUE")
    ],
    files: str | None = option(
        None, "Instead of a table: a message for each new file, such as 'landing/*.json'.", "PATTERN"
    ),
    once: bool = flag(False, "Make one pass, and end.", "--once"),
    every: float | None = duration_option(None, "Interval between two passes.", parser=at_least(1)),
    body: str = option("*", "Column with the bodies; '*' sends each row as JSON.", "NAME", "--body-column"),
    start: str | None = option(
        None,
        f"Where a new relay begins: now, a version, or an instant, {INSTANT_HELP}.",
        "START",
        parser=_start,
    ),
    changes: Literal["appends", "feed"] = typer.Option(
        "appends", help="Which rows: appended ones, or a change feed."
    ),
    skip_changes: bool = flag(False, "Leave out versions that removed or rewrote rows.", "--skip-changes"),
    group: str | None = option(None, "Column with the message groups.", "NAME", "--group-column"),
    dedup: str | None = option(None, "Column with deduplication ids.", "NAME", "--dedup-column"),
    delay: str | None = option(None, "Column with delays in seconds.", "NAME", "--delay-column"),
    priority: str | None = option(None, "Column with priorities.", "NAME", "--priority-column"),
    on_bad_row: Literal["fail", "drop", "divert"] = typer.Option(
        "fail", help="How to treat a row that breaks a rule; divert adds it to --bad-rows."
    ),
    bad_rows: str | None = option(None, "Delta table for refused rows and the reasons.", "DIR"),
    table_option: list[str] | None = option(
        None, "Storage option of the table, instead of the root's options; repeatable.", "KEY=VALUE"
    ),
) -> None:
    """Send a message for each new row of a table, or for each new file. Send nothing twice."""
    if len(names) != (2 if files is None else 1):
        usage("give a table and a queue, or --files and a queue")
    *tables, queue = names
    if once == (every is not None):
        usage("give either --once or --every")
    if (on_bad_row == "divert") != (bad_rows is not None):
        usage("--on-bad-row divert and --bad-rows go together")
    lake = ctx.obj.lake()
    target = lake.queue(queue)
    began = "now" if start is None else start.instant(lake.clock) if isinstance(start, Moment) else start
    options = parse_pairs(table_option, "--table-option", secret=True) or None

    source = f"files of {files}"
    if tables and (start is None or every is not None):
        version = _begins(target, tables[0], began, options, start is not None)
        source = f"rows of {tables[0]} from version {version} on"

    def log(text: str) -> str:
        return f"{lake.clock.now():%F %T}Z {text}"

    def send() -> None:
        sent = lake.relay(
            None if files else tables[0],
            target,
            files=files,
            body=body,
            start=began,  # type: ignore[arg-type]  # parsed
            changes=changes,
            skip_changes=skip_changes,
            group_column=group,
            dedup_column=dedup,
            delay_column=delay,
            priority_column=priority,
            on_bad_row=on_bad_row,
            bad_rows=bad_rows,
            table_options=options,
        )
        if once or sent or sent.refused:
            document = {"queue": queue, "messages": int(sent), "refused": sent.refused}
            refused = f", {render.count(sent.refused, 'row')} refused" if sent.refused else ""
            text = f"{render.count(sent, 'message')} sent to {queue}{refused}"
            text = text if once else log(text)
            ctx.obj.changed(document, text) if once or not ctx.obj.json else ctx.obj.line(document)

    if every is None:
        send()
        return
    if not ctx.obj.json:
        write(log(f"sends new {source} to {queue} every {every:g} s, until Ctrl-C or SIGTERM"))
    with suppress(KeyboardInterrupt):
        _repeat(send, every, lake.clock, ctx.obj.note)


def _repeat(send: Callable[[], None], every: float, clock: Clock, note: Callable[[str], None]) -> NoReturn:
    with clock.participant():
        while True:
            at = clock.now()
            try:
                send()
            except (OverLimit, RequestThrottled) as error:  # the next pass may find room
                note(str(error))
            clock.wait(at + timedelta(seconds=every), threading.Event())
