"""The command that draws how a queue stood over time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from lakequeue.cli import render
from lakequeue.cli.frame import Session, usage
from lakequeue.cli.queues import Name, parsed_instant
from lakequeue.model.clock import from_micros

_KINDS = (".png", ".svg", ".pdf")


def plot(
    ctx: typer.Context,
    queue: Name,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Where to draw: a .png, .svg or .pdf.")
    ] = None,
    hours: Annotated[float, typer.Option(metavar="N", min=0, help="How far back.")] = 24,
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="From then on instead, as in 2026-01-31T08:00Z.")
    ] = None,
) -> None:
    """Draw depth and age of a queue over time; with --json print the points, and draw if --out is given."""
    session: Session = ctx.obj
    if out is None and not session.json:
        usage("where to? give --out FILE.png")
    if out is not None and out.suffix not in _KINDS:
        usage(f"--out must end in one of {', '.join(_KINDS)}")
    from lakequeue.operations import plot

    lake = session.lake()
    begin = lake.clock.now() - timedelta(hours=hours) if since is None else parsed_instant(since)
    with render.spinner("reading"):
        points = plot.points(lake.queue(queue).runtime, begin)
    if out is not None:
        plot.draw(queue, points, out)
    documents = [
        {"at": from_micros(point.at), "sent": point.sent} | render.counts_document(queue, point.counts)
        for point in points
    ]
    session.answer(documents, f"drew {render.count(len(points), 'point')} into {out}")
