"""Commands on all messages of a queue: counts, rewind, redrive, purge, compact."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from lakequeue.cli import documents, output, render
from lakequeue.cli.options import Name, parse_instant
from lakequeue.cli.queues import listed
from lakequeue.cli.session import Session, usage
from lakequeue.errors import LakeQueueError, QueueClientError, QueueDoesNotExist


def counts(
    ctx: typer.Context,
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="All queues if not given.")] = None,
) -> None:
    """Count the messages of one queue or of all, by state."""
    from lakequeue.operations.depth import depths

    session: Session = ctx.obj
    counted: list[dict[str, Any]] = []
    if queue is not None:
        counted.append(documents.counts(queue, session.lake().queue(queue).counts()))
    else:
        queues = list(listed(session.lake()))
        with render.progress("counting", len(queues)) as advance:
            for each, found in zip(queues, depths([each.runtime for each in queues]), strict=True):
                advance(1, each.name)
                if isinstance(found, QueueDoesNotExist):  # deleted since it was listed
                    continue
                if isinstance(found, LakeQueueError):
                    raise found
                counted.append(documents.counts(each.name, found.counts))
    columns = ["queue", "visible", "in_flight", "delayed", "rewindable"]
    if any(each["held"] for each in counted):  # rare
        columns.insert(4, "held")
    rows = [[*(each[name] for name in columns), render.age(each["oldest_age"])] for each in counted]
    titles = [name.replace("_", " ") for name in columns]
    session.answer(
        counted if queue is None else counted[0],
        render.table([*titles, "oldest message"], rows),
    )


def rewind(
    ctx: typer.Context,
    queue: Name,
    to: Annotated[
        str | None,
        typer.Argument(
            metavar="[INSTANT]", help="An instant, such as 2026-01-31T08:00Z; UTC if it has no time zone."
        ),
    ] = None,
    ago: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds before now, instead of an instant.")
    ] = None,
) -> None:
    """Make deleted messages visible again that were sent at or after an instant."""
    session: Session = ctx.obj
    if (to is None) == (ago is None):
        usage("give either an INSTANT or --ago SECONDS")
    lake = session.lake()
    instant = lake.clock.now() - timedelta(seconds=ago) if ago is not None else parse_instant(to or "")
    count = lake.queue(queue).rewind(instant)
    document = {"queue": queue, "rewound_to": instant, "messages": count}
    session.answer(document, f"{render.count(count, 'message')} of {queue} visible again")


def redrive(
    ctx: typer.Context,
    queue: Name,
    max_messages: Annotated[
        int | None, typer.Option("--max", metavar="N", help="Maximum number of messages; all if not given.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only messages for which this condition is true, as in peek.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Move all messages to this queue, not to their source queues."),
    ] = None,
) -> None:
    """Move messages of a dead-letter queue back to their source queues."""
    session: Session = ctx.obj
    lake = session.lake()
    source = lake.queue(queue)
    destination = None if to is None else lake.queue(to)
    with render.progress("redriving", max_messages) as advance:
        done = 0

        def report(moved: int) -> None:
            nonlocal done
            advance(moved - done, render.count(moved, "message"))
            done = moved

        moved = source.redrive(max_messages, where, report, destination)
    where_to = "moved back" if to is None else f"moved to {to}"
    session.answer({"queue": queue, "messages": moved}, f"{render.count(moved, 'message')} of {queue} {where_to}")


def purge(
    ctx: typer.Context,
    queue: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove all messages of a queue."""
    session: Session = ctx.obj
    purged = session.lake().queue(queue)
    if not yes:
        now = purged.counts()
        number = now.visible + now.in_flight + now.delayed + now.held
        question = f"Remove {render.count(number, 'message')} from {queue}?"
        typer.confirm(output.printable(question), abort=True, err=True)
    purged.purge()
    session.answer({"queue": queue, "purged": True}, f"queue {queue} is purged")


def compact(
    ctx: typer.Context,
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="All queues if not given.")] = None,
) -> None:
    """Free the space of messages that are gone, and keep tables and logs small."""
    session: Session = ctx.obj
    lake = session.lake()
    if queue is not None:
        with render.spinner(f"compacting {queue}"):
            done = [lake.queue(queue).compact()]
    else:
        with render.progress("compacting", len(lake.runtime.rows())) as advance:
            done = lake.compact(lambda number, total, name: advance(int(number > 0), name))
    results = [documents.summary(summary) for summary in done]
    session.answer(results if queue is None else results[0], render.summary_table(done))
    failed = [f"{summary.queue or 'root'}: {failure}" for summary in done for failure in summary.failures]
    if failed:
        raise QueueClientError(
            f"{render.count(len(failed), 'step')} failed, {failed[0]}; the next pass tries again"
        )
