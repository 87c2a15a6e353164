"""The command ``plot``: draws the depth of a queue over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lakequeue.cli import documents, render
from lakequeue.cli.options import Name, instant_option, option
from lakequeue.cli.session import CommandContext, usage
from lakequeue.cli.values import LONGEST, Moment
from lakequeue.errors import MissingPackage
from lakequeue.model.clock import from_micros

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lakequeue.entry_verbs import Depth

SPANS = 3
"""Maximum number of listed time spans without data."""
_SUFFIXES = (".png", ".svg", ".pdf")
_AROUND = timedelta(minutes=5)
_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def plot(
    ctx: CommandContext,
    queue: Name,
    out: Path | None = option(None, "Image to write: .png, .svg or .pdf.", "FILE", dir_okay=False),
    hours: float = option(24, "Number of hours back from now.", "N", min=0, max=LONGEST // 3_600),
    since: Moment | None = instant_option(None, "Start of the plot, instead of --hours"),
) -> None:
    """Plot depth and age of a queue over time; --json prints the points, and needs no --out."""
    if out is None and not ctx.obj.json:
        usage("no output: give --out FILE.png")
    if out is not None and out.suffix not in _SUFFIXES:
        usage(f"--out must end in one of {', '.join(_SUFFIXES)}")
    from lakequeue.entry_verbs import depth_history, unknown_spans

    lake = ctx.obj.lake()
    begin = lake.clock.now() - timedelta(hours=hours) if since is None else since.instant(lake.clock)
    with render.spinner("reading"):
        source = ctx.obj.queue(queue)
        points = depth_history(source, begin)
    spans = unknown_spans(points, max(begin, source.created_at))
    if out is not None:
        draw(queue, points, out, spans)
    drawn = [
        {"at": from_micros(point.at), "sent": point.sent} | documents.counts(queue, point.counts)
        for point in points
    ]
    for first, last in spans[:SPANS]:
        ctx.obj.note(f"not known: {render.instant(first)} to {render.instant(last)}")
    if len(spans) > SPANS:
        ctx.obj.note(f"not known: {len(spans) - SPANS} more spans")
    ctx.obj.changed(drawn, f"drew {render.count(len(points), 'point')} into {out}")


def draw(name: str, shown: Sequence[Depth], path: Path, unknown: Sequence[tuple[datetime, datetime]] = ()) -> None:
    """Draws points as an image. Time spans without data are grey. Raises MissingPackage without matplotlib."""
    try:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, MaxNLocator
    except ImportError as error:
        raise MissingPackage.of("plot", "plot", error) from error
    figure = Figure(figsize=(10, 6), dpi=120, layout="constrained")  # its canvas is Agg, which needs no display
    messages, age = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    at = [from_micros(point.at) for point in shown]
    marker = {"linewidth": 1.5, "marker": "o" if len(shown) == 1 else ""}  # a single point makes no line
    messages.fill_between(at, [point.counts.visible for point in shown], color="tab:blue", alpha=0.15, linewidth=0)
    for label, colour in (("visible", "tab:blue"), ("in flight", "tab:orange"), ("delayed", "tab:green")):
        values = [getattr(point.counts, label.replace(" ", "_")) for point in shown]
        messages.plot(at, values, label=label, color=colour, **marker)
    messages.set_ylabel("messages")
    messages.yaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    messages.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    messages.set_title(f"Queue {name}, until {at[-1]:%Y-%m-%d %H:%M:%S} UTC", loc="left")
    ages = [point.counts.oldest_age or 0 for point in shown]
    unit, seconds = next((unit for unit in _UNITS if max(ages) >= 2 * unit[1]), _UNITS[-1])
    age.plot(at, [value / seconds for value in ages], label="oldest message", color="tab:red", **marker)
    age.set_ylabel(f"age ({unit})")
    locator = AutoDateLocator()
    age.xaxis.set_major_locator(locator)
    days, times = ["%Y", "%b", "%d"], ["%H:%M:%S"] * 3
    age.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, formats=days + times, zero_formats=["", *days, *times[1:]])
    )
    age.set_xlabel("time (UTC)")
    if at[0] == at[-1]:
        age.set_xlim(at[0] - _AROUND, at[0] + _AROUND)
    for axes in (messages, age):
        for first, last in unknown:
            axes.axvspan(first, last, color="0.92", linewidth=0)
        _furnish(axes)
    figure.savefig(path)


def _furnish(axes: Axes) -> None:
    axes.set_ylim(0, max(1, axes.dataLim.y1 * 1.08))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), frameon=False, ncols=3)  # above the plot
    axes.spines[["top", "right"]].set_visible(False)
