"""The command that watches the depth of queues."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from lakequeue.cli import documents, output, render
from lakequeue.cli.options import Names, duration_option, option
from lakequeue.cli.queues import named
from lakequeue.cli.session import CommandContext, Session, usage
from lakequeue.cli.values import at_least
from lakequeue.errors import LakeQueueError, QueueDoesNotExist
from lakequeue.model.states import STORED

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakequeue import LakeQueue
    from lakequeue.entry_verbs import Depth


def watch(
    ctx: CommandContext,
    queues: Names = None,
    prefix: str = typer.Option("", help="Only names with this prefix."),
    every: float = duration_option(2, "Interval between two updates.", parser=at_least(0)),
    count: int | None = option(None, "Number of updates; until Ctrl-C if not given.", "N", min=1),
) -> None:
    """Watch depth, age and rates of queues until Ctrl-C; --json prints one line per update."""
    if queues and prefix:
        usage("give either names of queues or --prefix")
    lake = ctx.obj.lake()
    for name in queues or ():
        ctx.obj.queue(name)  # refuses a wrong name; a queue that is deleted later only leaves the table
    try:
        with lake.clock.participant(), _shown(ctx.obj) as show:
            for update in islice(_updates(lake, set(queues or ()), prefix, every), count):
                show(update)
    except (KeyboardInterrupt, output.OutputClosed):  # the user ends it, or the reader of its lines
        return


def _updates(lake: LakeQueue, names: set[str], prefix: str, every: float) -> Iterator[dict[str, Any]]:
    """Yields depths of the queues at each interval, with rates since the last update."""
    from lakequeue.entry_verbs import depths

    before: dict[str, Depth] = {}
    while True:
        now: dict[str, Depth] = {}
        at, rows = lake.clock.now(), []
        wanted = named(lake, names) if names else lake.list_queues(prefix)
        for queue, found in zip(wanted, depths(wanted), strict=True):
            if isinstance(found, QueueDoesNotExist):  # deleted since it was listed
                continue
            if isinstance(found, LakeQueueError):
                rows.append({"queue": queue.name, "error": " ".join(str(found).split())})
                continue
            now[queue.key] = found
            sent, consumed = found.rates_since(before[queue.key]) if queue.key in before else (None, None)
            rates = {"sent_per_second": _rounded(sent), "consumed_per_second": _rounded(consumed)}
            paused = {"paused": render.paused(queue) or None}
            rows.append(documents.counts(queue.name, found.counts) | rates | paused | {"error": None})
        yield {"at": at, "queues": rows}
        before = now
        lake.clock.wait(at + timedelta(seconds=every), threading.Event())


@contextmanager
def _shown(session: Session) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields a function that shows an update as a JSON line or a table."""
    if session.json:
        yield session.line
        return
    if not sys.stdout.isatty():
        yield lambda update: session.answer(
            update, f"{render.instant(update['at'])}\n{output.rendered(_table(update))}\n"
        )
        return
    from rich.live import Live

    console = output.console()
    with Live(console=console, auto_refresh=False) as live:
        yield lambda update: live.update(_screen(update, console.height), refresh=True)


def _table(update: dict[str, Any], rows: Sequence[dict[str, Any]] | None = None) -> render.Fitting | str:
    states = render.states(update["queues"])
    rare = [name for name in ("paused", "error") if any(row.get(name) for row in update["queues"])]
    keys = ["queue", *states, "sent_per_second", "consumed_per_second", "oldest_age", *rare]
    titles = ["queue", *render.titles(states), "sent/s", "done/s", "oldest", *rare]
    shown = [row | {"oldest_age": render.age(row.get("oldest_age"))} for row in rows or update["queues"]]
    return render.table(titles, [[row.get(key) for key in keys] for row in shown])


def _screen(update: dict[str, Any], height: int) -> RenderableType:
    """Returns the table for one refresh of the screen, with the fullest queues that fit the screen's height."""
    from rich.console import Group

    every = update["queues"]
    rows = sorted(every, key=lambda row: (bool(row["error"]), sum(row.get(state, 0) for state in STORED)))
    while (over := output.rendered(_table(update, rows)).count("\n") + 5 - height) > 0 and len(rows) > 1:
        rows = rows[min(-(-over // 2), len(rows) - 1) :]  # a long name takes a line of its own
    left = len(every) - len(rows)
    more = [f"and {render.count(left, 'queue')} with fewer messages; --prefix chooses"] if left else []
    return Group(_table(update, [row for row in every if row in rows]), *more)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2 if abs(rate) < 100 else None)
