"""The command that watches the depth of queues."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakequeue.cli import documents, output, render
from lakequeue.cli.options import Names, option
from lakequeue.cli.queues import listed
from lakequeue.cli.session import Context, Session, usage
from lakequeue.cli.values import at_least
from lakequeue.errors import LakeQueueError, QueueDoesNotExist
from lakequeue.model.states import STORED

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakequeue import LakeQueue, Queue
    from lakequeue.entry_verbs import Depth


def watch(
    ctx: Context,
    queues: Names = None,
    prefix: Annotated[str, typer.Option(help="Only names with this prefix.")] = "",
    every: Annotated[float, option("Interval between two updates.", "DURATION", parser=at_least(0))] = 2,
    count: Annotated[int | None, option("Number of updates; until Ctrl-C if not given.", "N", min=1)] = None,
) -> None:
    """Watch depth, age and rates of queues until Ctrl-C; --json prints one line per update."""
    if queues and prefix:
        usage("give either names of queues or --prefix")
    lake = ctx.obj.lake()
    for name in queues or ():
        ctx.obj.queue(name)  # refuses a wrong name; a queue that is deleted later only leaves the table
    watcher = _Watcher(lake, set(queues or ()), prefix)
    try:
        with lake.clock.participant(), _shown(ctx.obj) as show:
            show(watcher.read())
            done = 1
            while count is None or done < count:
                lake.clock.wait(watcher.read_at + timedelta(seconds=every), threading.Event())
                show(watcher.read())
                done += 1
    except KeyboardInterrupt:  # the user ends it
        return
    except output.OutputClosed:  # or the reader of its lines
        output.discard_output()


class _Watcher:
    """Reads the depth of queues repeatedly, and computes rates since the last read."""

    def __init__(self, lake: LakeQueue, names: set[str], prefix: str) -> None:
        self._lake = lake
        self._names = names
        self._prefix = prefix
        self._before: dict[str, Depth] = {}

    def read(self) -> dict[str, Any]:
        """Depth and rates of the current queues."""
        from lakequeue.entry_verbs import depths

        self.read_at: datetime = self._lake.clock.now()
        now: dict[str, Depth] = {}
        rows = []
        wanted = [
            queue for queue in listed(self._lake, self._prefix) if not self._names or queue.name in self._names
        ]
        for queue, found in zip(wanted, depths(wanted), strict=True):
            if isinstance(found, QueueDoesNotExist):  # deleted since it was listed
                continue
            if isinstance(found, LakeQueueError):
                rows.append({"queue": queue.name, "error": " ".join(str(found).split())})
                continue
            now[queue.key] = found
            rows.append(self._row(queue, found))
        self._before = now
        return {"at": self.read_at, "queues": rows}

    def _row(self, queue: Queue, current: Depth) -> dict[str, Any]:
        before = self._before.get(queue.key)
        sent, consumed = current.rates_since(before) if before is not None else (None, None)
        rates = {"sent_per_second": _rounded(sent), "consumed_per_second": _rounded(consumed)}
        return documents.counts(queue.name, current.counts) | rates | {"error": None}


@contextmanager
def _shown(session: Session) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields a function that shows an update: a line of JSON, a live table, or a table below the last one."""
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
    """The table of an update, or of some of its rows; all have the same columns."""
    states = render.states(update["queues"])
    keys = ["queue", *states, "sent_per_second", "consumed_per_second", "oldest_age", "error"]
    titles = ["queue", *render.titles(states), "sent/s", "done/s", "oldest", "error"]
    width = len(keys) if any(row["error"] for row in update["queues"]) else len(keys) - 1
    shown = [row | {"oldest_age": render.age(row.get("oldest_age"))} for row in rows or update["queues"]]
    return render.table(titles[:width], [[row.get(key) for key in keys[:width]] for row in shown])


def _screen(update: dict[str, Any], height: int) -> RenderableType:
    """The table of an update with as many queues as a screen has lines for, those with most messages."""
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
