"""The command that plots the depth of a queue over time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from lakequeue.cli import documents, render
from lakequeue.cli.options import Name, instant_option
from lakequeue.cli.session import Context, usage
from lakequeue.cli.values import Moment
from lakequeue.model.clock import from_micros

SPANS = 3
"""Maximum number of spans without a point that are named."""
_SUFFIXES = (".png", ".svg", ".pdf")


def plot(
    ctx: Context,
    queue: Name,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Image to write: .png, .svg or .pdf.")
    ] = None,
    hours: Annotated[float, typer.Option(metavar="N", min=0, help="Number of hours back from now.")] = 24,
    since: Annotated[Moment | None, instant_option("Start of the plot, instead of --hours")] = None,
) -> None:
    """Plot depth and age of a queue over time; --json prints the points, and needs no --out."""
    if out is None and not ctx.obj.json:
        usage("no output: give --out FILE.png")
    if out is not None and out.suffix not in _SUFFIXES:
        usage(f"--out must end in one of {', '.join(_SUFFIXES)}")
    from lakequeue.cli import pictures
    from lakequeue.entry_verbs import depth_history

    lake = ctx.obj.lake()
    begin = lake.clock.now() - timedelta(hours=hours) if since is None else since.instant(lake.clock)
    with render.spinner("reading"):
        source = ctx.obj.queue(queue)
        points = depth_history(source, begin)
    spans = pictures.unknown(points, max(begin, source.created_at))
    if out is not None:
        pictures.draw(queue, points, out, spans)
    drawn = [
        {"at": from_micros(point.at), "sent": point.sent} | documents.counts(queue, point.counts)
        for point in points
    ]
    for first, last in spans[:SPANS]:
        ctx.obj.note(f"not known: {render.instant(first)} to {render.instant(last)}")
    if len(spans) > SPANS:
        ctx.obj.note(f"not known: {len(spans) - SPANS} more spans")
    ctx.obj.answer(drawn, f"drew {render.count(len(points), 'point')} into {out}")
