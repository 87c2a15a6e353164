"""The commands rewind and redrive. Both show the number of messages, and ask for confirmation."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from lakequeue.cli import render
from lakequeue.cli.options import (
    DryRun,
    Name,
    OfError,
    Parameter,
    Where,
    Yes,
    argument,
    chosen,
    duration_option,
    option,
    queue_option,
)
from lakequeue.cli.session import CommandContext, usage
from lakequeue.cli.values import INSTANT_HELP, Moment, from_now, moment
from lakequeue.errors import QueueDoesNotExist

if TYPE_CHECKING:
    from lakequeue import Queue


def rewind(
    ctx: CommandContext,
    queue: Name,
    to: Moment | None = argument(None, f"An instant, {INSTANT_HELP}.", "[INSTANT]", parser=moment),
    ago: float | None = duration_option(None, "Time before now, instead of an instant.", parser=from_now),
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Make deleted messages visible again, if sent at an instant or later. First show their number, and ask."""
    if (to is None) == (ago is None):
        usage("give either an INSTANT or --ago DURATION")
    rewound, wanted = ctx.obj.queue(queue), to if to is not None else Moment(ago=ago)
    instant, clamped = _within_range(rewound, wanted)
    count = rewound.rewindable(instant)
    since = f"sent at {render.instant(instant)} or later"
    document = {"queue": queue, "rewound_to": instant, "messages": count}
    if dry_run:
        text = f"would make {render.count(count, 'message')} of {queue} visible again, {since}"
        ctx.obj.answer(document | {"dry_run": True}, text)
        return
    if count and not yes:
        ctx.obj.ask(f"Make {render.count(count, 'deleted message')} of {queue} visible again, {since}?")
    done, late = _within_range(rewound, attrs.evolve(wanted, at=instant))
    count = rewound.rewind(done)
    if clamped or late:
        ctx.obj.note(f"rewound to {render.instant(done)}, the earliest instant in the rewind range of {queue}")
    text = f"{render.count(count, 'message')} of {queue} visible again"
    ctx.obj.changed(document | {"rewound_to": done, "messages": count}, text)


def _within_range(queue: Queue, wanted: Moment) -> tuple[datetime, bool]:
    """Returns the instant of a rewind, and True if limited to the earliest instant that a rewind accepts."""
    instant, attributes = wanted.instant(queue.clock), queue.attributes()
    earliest = queue.min_rewind_time
    reach = min(attributes["rewind_range"], attributes["message_retention_period"])
    if wanted.ago is None or not 0 <= wanted.ago <= reach or earliest is None or earliest <= instant:
        return instant, False
    return earliest, True


def redrive(
    ctx: CommandContext,
    queue: Name,
    max_messages: int | None = option(None, "Maximum number of messages; all if not given.", "N", "--max"),
    where: Where = None,
    parameter: Parameter = None,
    error: OfError = None,
    to: str | None = queue_option(None, "Move all messages to this queue, not to their source queues."),
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Move messages of a dead-letter queue back to their source queues. First show their number, and ask."""
    source = ctx.obj.queue(queue)
    destination = None if to is None else ctx.obj.queue(to)
    condition, parameters = chosen(where, parameter, error)
    with render.spinner("reading messages"):
        targets = source.redrivable(condition, destination=destination, parameters=parameters)
    lake = ctx.obj.lake()
    for name in dict.fromkeys([queue, *targets]):
        with suppress(QueueDoesNotExist):  # deleted meanwhile
            ctx.obj.note_pauses(lake.queue(name))
    if max_messages is not None and max_messages < sum(targets.values()):
        shown, total = f"at most {max_messages:,} of " + _by_target(targets), max_messages
    else:
        shown, total = _by_target(targets), sum(targets.values())
    unmatched = "" if error is None or targets else _unmatched(source, error)
    if dry_run:
        document = {"queue": queue, "messages": total, "targets": targets, "dry_run": True}
        ctx.obj.answer(document, f"{queue}: would move {shown or 'no message'}{unmatched}")
        return
    if targets and not yes:
        ctx.obj.ask(f"From {queue}, move {shown}?")
    with render.progress("redriving", max_messages) as advance:

        def report(moved: int) -> None:
            advance(moved, render.count(moved, "message"))
            ctx.obj.done = f"{render.count(moved, 'message')} moved"

        moved = source.redrive(max_messages, condition, report, destination, parameters=parameters)
    where_to = "moved back" if to is None else f"moved to {to}"
    text = f"{render.count(moved, 'message')} of {queue} {where_to}{unmatched * (not moved)}"
    ctx.obj.changed({"queue": queue, "messages": moved}, text)


def _unmatched(queue: Queue, error: str) -> str:
    """Returns an empty text if one of the newest dead letters has ``error``. Otherwise lists their errors."""
    from lakequeue.entry_verbs import letters_of

    found = letters_of(queue).errors
    if error in found or not found:
        return ""
    others = ", ".join(f"{name or 'no error'} ({each.messages:,})" for name, each in found.items())
    return f": none has the error {error}; there are {others}"


def _by_target(targets: dict[str, int]) -> str:
    return ", ".join(f"{render.count(number, 'message')} to {name}" for name, number in targets.items())
