"""The commands on schedules."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, Any

import attrs
import typer

from lakequeue.cli import documents, render
from lakequeue.cli.help import Command, CommandGroup
from lakequeue.cli.options import Group, argument, flag, instant_option, option, queue_option
from lakequeue.cli.session import CommandContext, usage
from lakequeue.cli.values import Moment

ScheduleName = Annotated[str, argument(..., "Name of the schedule.", "NAME")]

schedule = typer.Typer(
    name="schedule",
    cls=CommandGroup,
    help="Send messages at times, as cron does, or once.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(
    ctx: CommandContext,
    name: ScheduleName,
    queue: str | None = queue_option(None, "Queue that gets the message."),
    body: str | None = option(None, "Body of the message.", "BODY"),
    cron: str | None = option(None, "Minute, hour, day, month and day of the week, such as '0 2 * * *'.", "CRON"),
    tz: str | None = option(None, "Time zone of --cron, such as Europe/Berlin; UTC by default.", "ZONE"),
    at: Moment | None = instant_option(None, "Instead of --cron: send it once, at this instant"),
    missed: str | None = option(
        None, "Missed times to send for, when no process ran: last (the default), all or none.", "WHICH"
    ),
    group: Group = None,
    priority: int | None = option(None, "For queues created with priorities.", "N"),
    update: bool = flag(False, "Change the schedule of this name: options that are not given stay.", "--update"),
) -> None:
    """Add a schedule; does nothing if the same one exists."""
    lake = ctx.obj.lake()
    instant = None if at is None else at.instant(lake.clock)
    given: dict[str, Any] = {"queue": queue, "body": body, "cron": cron, "tz": tz, "at": instant}
    given |= {"missed": missed, "group_id": group, "priority": priority}
    given = {field: value for field, value in given.items() if value is not None}
    there = next((each for each in lake.schedules.list() if each.name == name), None) if update else None
    if there is not None:
        kept = {field: getattr(there, field) for field in ("queue", "body", "missed", "group_id", "priority")}
        if cron is None and at is None:
            kept |= {"at": there.next_due} if there.cron is None else {"cron": there.cron}
        if at is None:
            kept |= {"tz": there.tz}
        given = kept | given
    if missing := [f"--{field}" for field in ("queue", "body") if field not in given]:
        usage(f"give {' and '.join(missing)}")
    added = lake.schedules.add(name, update=update, **given)
    ctx.obj.changed(attrs.asdict(added), f"schedule {name}: next message at {render.instant(added.next_due)}")


def _list(ctx: CommandContext) -> None:
    """List the schedules: when they are due, and why the last message was not sent."""
    found = ctx.obj.lake().schedules.list()
    rows = [
        [
            each.name,
            each.queue,
            "once" if each.cron is None else f"{each.cron} {each.tz}",
            "paused" if each.paused else render.instant(each.next_due),
            render.instant(each.last_due),
            each.last_error or "",
        ]
        for each in found
    ]
    columns = ["schedule", "queue", "times", "next", "last", "error"]
    ctx.obj.answer([attrs.asdict(each) for each in found], render.table(columns, rows))


def _pause(ctx: CommandContext, name: ScheduleName) -> None:
    """Send nothing for a schedule until it is resumed."""
    ctx.obj.lake().schedules.pause(name)
    ctx.obj.changed({"schedule": name, "paused": True}, f"schedule {name} is paused")


def _resume(ctx: CommandContext, name: ScheduleName) -> None:
    """Resume a schedule. Messages that were due during the pause are not sent."""
    ctx.obj.lake().schedules.resume(name)
    ctx.obj.changed({"schedule": name, "paused": False}, f"schedule {name} runs")


def _run_now(ctx: CommandContext, name: ScheduleName) -> None:
    """Send the message of a schedule at once. The schedule's later sends do not change."""
    sent = ctx.obj.lake().schedules.run_now(name)
    ctx.obj.changed(documents.sent(sent), render.sent_text(sent, None))


def _remove(ctx: CommandContext, name: ScheduleName) -> None:
    """Remove a schedule; messages that it sent stay."""
    ctx.obj.lake().schedules.remove(name)
    ctx.obj.changed({"schedule": name, "removed": True}, f"schedule {name} is removed")


def _run(
    ctx: CommandContext,
    once: bool = flag(False, "Send the messages that are due now, and end.", "--once"),
) -> None:
    """Send due messages at the start of each minute, until SIGTERM or SIGINT."""
    schedules = ctx.obj.lake().schedules
    if once:
        sent = schedules.run_due()
        ctx.obj.changed({"messages": sent}, f"{render.count(sent, 'message')} sent")
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with schedules.running():
        stop.wait()


for _each in (_add, _list, _pause, _resume, _run_now, _remove, _run):
    schedule.command(_each.__name__[1:].replace("_", "-"), cls=Command)(_each)
