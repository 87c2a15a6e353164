"""Draws how long messages of quiet tenants wait beside a noisy one: `docs/guides/fair-queues.svg`.

    python docs/guides/fair_queues_plot.py [PICTURE]

Twenty quiet tenants send a message every five seconds each. After a minute another tenant sends 2,000 at once. A
consumer handles ten messages a second. The queue is a real one, its clock is moved by hand, and the same happens
with `fair_groups` and without. Needs the extra `plot`.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import matplotlib
import pyarrow as pa
from matplotlib.figure import Figure

from lakequeue import LakeQueue, SendEntry
from lakequeue.testing import ManualClock

TENANTS, INTERVAL = 20, 5
BACKLOG, AT = 2_000, 60
ROUND, SECONDS = 10, 600
PICTURE = Path(__file__).with_name("fair-queues.svg")

Waits = dict[int, list[float]]
"""Seconds that messages waited, by the second in which they were sent."""


def waits(
    fair: bool, seconds: int = SECONDS, backlog: int = BACKLOG, at: int = AT
) -> tuple[Waits, Waits]:
    """Of messages of the quiet tenants, and of the noisy one."""
    quiet: Waits = defaultdict(list)
    noisy: Waits = defaultdict(list)
    with tempfile.TemporaryDirectory() as root:
        clock = ManualClock()
        begin = clock.now()
        queue = LakeQueue(root, clock=clock, durability="process").create_queue(
            "work", fair_groups=fair
        )
        for second in range(seconds):
            sent = [
                SendEntry("x", group_id=f"quiet-{n}")
                for n in range(TENANTS)
                if n % INTERVAL == second % INTERVAL
            ]
            if second == at:
                queue.send_arrow(
                    pa.table({"body": ["x"] * backlog, "group_id": ["noisy"] * backlog})
                )
            queue.send_batch(sent)
            received = queue.receive(max_messages=ROUND)
            for message in received:
                sent_at = round((message.sent_at - begin).total_seconds())
                (noisy if message.group_id == "noisy" else quiet)[sent_at].append(
                    second - sent_at
                )
            clock.advance(1)
            if received:
                queue.delete_batch([message.receipt_handle for message in received])
    return quiet, noisy


def draw(path: Path) -> None:
    matplotlib.rcParams.update(
        {"svg.hashsalt": "lakequeue", "svg.fonttype": "none"}
    )  # the same file each time
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for fair, colour, label in (
        (False, "tab:red", "oldest first"),
        (True, "tab:blue", "fair"),
    ):
        quiet, _ = waits(fair)
        longest = {
            start: max(quiet.get(at, [0])[0] for at in range(start, start + 5))
            for start in range(0, 500, 5)
        }
        axes.plot(
            [*longest], [*longest.values()], color=colour, linewidth=2, label=label
        )
    axes.axvline(AT, color="grey", linewidth=1, linestyle="dotted")
    told = f"another tenant sends {BACKLOG:,} messages"
    axes.annotate(
        told, (AT, 190), (130, 186), arrowprops={"arrowstyle": "->", "color": "grey"}
    )
    axes.set(
        xlabel="sent at (seconds)",
        ylabel="seconds until received",
        xlim=(0, 500),
        ylim=(-5, None),
    )
    axes.set_title("Messages of quiet tenants: longest wait", loc="left")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
