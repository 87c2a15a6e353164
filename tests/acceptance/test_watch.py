"""`lakequeue watch`: a look at the queues now and then; transcripts/queues.txt shows what it prints."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from typing import Any

from acceptance.commands import Run, Start
from insides import forget
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.storage import layout


def test_what_happens_meanwhile_is_seen_until_ctrl_c(lake: LakeQueue, orders: Queue, start: Start) -> None:
    process = start("--json", "watch", "--every", "0.02")

    def until(seen: Callable[[dict[str, Any]], bool]) -> None:
        for line in process.stdout or ():
            if seen({row["queue"]: row for row in json.loads(line)["queues"]}):
                return
        raise AssertionError(process.communicate())

    until(lambda rows: rows["orders"]["visible"] == 0)
    orders.send_batch([SendEntry("a"), SendEntry("b")])
    until(lambda rows: rows["orders"]["visible"] == 2 and rows["orders"]["sent_per_second"] > 0)
    orders.delete(orders.receive()[0].receipt_handle)
    until(lambda rows: rows["orders"]["rewindable"] == 1 and rows["orders"]["consumed_per_second"] > 0)
    lake.create_queue("letters")
    until(lambda rows: set(rows) == {"letters", "orders"})
    lake.delete_queue("orders")
    until(lambda rows: set(rows) == {"letters"})
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


def test_a_queue_that_cannot_be_read_says_so_in_its_row(lake: LakeQueue, orders: Queue, run: Run) -> None:
    broken = lake.create_queue("broken")
    shutil.rmtree(layout.receipts_path(lake.root, broken.key, 0))
    forget()
    wrong, right = json.loads(run("watch", "--json", "--count", "1").stdout)["queues"]
    assert wrong["queue"] == "broken" and lake.root in wrong["error"] and "\n" not in wrong["error"]
    assert (right["queue"], right["error"], right["visible"]) == ("orders", None, 0)
    shown = run("watch", "--count", "1").stdout
    assert "error" in shown and "orders" in shown
