"""The command ``relay``: sends the rows of a table as messages."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Literal

import typer

from lakequeue.cli import render
from lakequeue.cli.options import duration_option, flag, option, parse_pairs, queue_argument
from lakequeue.cli.session import CommandContext, usage
from lakequeue.cli.values import INSTANT_HELP, Moment, at_least, moment
from lakequeue.errors import OverLimit, RequestThrottled


def _start(given: str | int | Moment) -> str | int | Moment:
    if not isinstance(given, str) or given == "now":
        return given
    return int(given) if given.isdecimal() else moment(given)


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
    start: str = option(
        "now",
        f"Where the first pass begins: now, a version, or an instant, {INSTANT_HELP}.",
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
    lake = ctx.obj.lake()
    target = lake.queue(queue)
    began = start.instant(lake.clock) if isinstance(start, Moment) else start
    options = parse_pairs(table_option, "--table-option", secret=True) or None

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
            text = text if once else f"{lake.clock.now():%F %T}Z {text}"  # a line of a log
            ctx.obj.changed(document, text) if once or not ctx.obj.json else ctx.obj.line(document)

    if every is None:
        send()
        return
    with suppress(KeyboardInterrupt), lake.clock.participant():
        while True:
            at = lake.clock.now()
            try:
                send()
            except (OverLimit, RequestThrottled) as error:  # the next pass may find room
                ctx.obj.note(str(error))
            lake.clock.wait(at + timedelta(seconds=every), threading.Event())
