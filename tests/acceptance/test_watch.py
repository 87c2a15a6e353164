"""`lakequeue watch`: a look at the queues now and then, for people and for programs."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lakequeue
from insides import forget
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.cli import app
from lakequeue.storage import layout

PROGRAM = "from lakequeue.cli import main; main()"


@pytest.fixture
def lq(tmp_path: Path) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"))


@pytest.fixture
def orders(lq: LakeQueue) -> Queue:
    return lq.create_queue("orders", rewind_range=3600)


@pytest.fixture
def start(lq: LakeQueue) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def process(*args: str, **streams: Any) -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONPATH": str(Path(lakequeue.__file__).parents[1]), "COLUMNS": "150"}
        command = [sys.executable, "-c", PROGRAM, "--root", lq.root, *args]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        started.append(subprocess.Popen(command, env=env, text=True, **streams))
        return started[-1]

    yield process
    for each in started:
        each.kill()
        each.communicate()


def looks(lq: LakeQueue, *args: str) -> list[dict[str, Any]]:
    """What the command prints as JSON, a document for each look."""
    done = CliRunner().invoke(app, ["--root", lq.root, "--json", "watch", "--every", "0", *args])
    assert (done.exit_code, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_look_is_a_line_of_json(lq: LakeQueue, orders: Queue) -> None:
    lq.create_queue("letters")
    orders.send_batch([SendEntry("a"), SendEntry("b"), SendEntry("c", delay=60)])
    orders.receive()
    first, second, third = looks(lq, "--count", "3")
    assert first["at"] < second["at"] < third["at"]
    letters, mine = first["queues"]
    assert mine.pop("oldest_age") > 0
    assert mine == {
        "queue": "orders",
        "visible": 1,
        "in_flight": 1,
        "delayed": 1,
        "held": 0,
        "rewindable": 0,
        "sent_per_second": None,
        "consumed_per_second": None,
        "error": None,
    }
    assert (letters["queue"], letters["visible"], letters["oldest_age"]) == ("letters", 0, None)
    assert [row["sent_per_second"] for row in third["queues"]] == [0, 0]


def test_queues_are_chosen_by_name_or_prefix(lq: LakeQueue) -> None:
    for name in ("orders", "orders-eu", "letters"):
        lq.create_queue(name)

    def names(*args: str) -> list[str]:
        [look] = looks(lq, "--count", "1", *args)
        return [row["queue"] for row in look["queues"]]

    assert names() == ["letters", "orders", "orders-eu"]
    assert names("orders", "letters") == ["letters", "orders"]
    assert names("--prefix", "ord") == ["orders", "orders-eu"]
    assert names("--prefix", "x") == []


@pytest.mark.parametrize(
    ("args", "status"),
    [(["nope"], 1), (["orders", "--prefix", "o"], 2), (["--count", "0"], 2), (["--every", "-1"], 2)],
)
def test_a_wrong_name_or_option_is_refused(lq: LakeQueue, orders: Queue, args: list[str], status: int) -> None:
    assert CliRunner().invoke(app, ["--root", lq.root, "watch", "--count", "1", *args]).exit_code == status


def test_what_happens_meanwhile_is_seen_until_ctrl_c(lq: LakeQueue, orders: Queue, start) -> None:
    process = start("--json", "watch", "--every", "0.02")

    def until(seen: Callable[[dict[str, Any]], bool]) -> None:
        for line in process.stdout:
            if seen({row["queue"]: row for row in json.loads(line)["queues"]}):
                return
        raise AssertionError(process.stderr.read())

    until(lambda rows: rows["orders"]["visible"] == 0)
    orders.send_batch([SendEntry("a"), SendEntry("b")])
    until(lambda rows: rows["orders"]["visible"] == 2 and rows["orders"]["sent_per_second"] > 0)
    orders.delete(orders.receive()[0].receipt_handle)
    until(lambda rows: rows["orders"]["rewindable"] == 1 and rows["orders"]["consumed_per_second"] > 0)
    lq.create_queue("letters")
    until(lambda rows: set(rows) == {"letters", "orders"})
    lq.delete_queue("orders")
    until(lambda rows: set(rows) == {"letters"})
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


def test_a_queue_that_cannot_be_read_says_so_in_its_row(lq: LakeQueue, orders: Queue) -> None:
    broken = lq.create_queue("broken")
    shutil.rmtree(layout.receipts_path(lq.root, broken.key, 0))
    forget()
    wrong, right = looks(lq, "--count", "1")[0]["queues"]
    assert wrong["queue"] == "broken" and lq.root in wrong["error"] and "\n" not in wrong["error"]
    assert (right["queue"], right["error"], right["visible"]) == ("orders", None, 0)
    shown = CliRunner().invoke(app, ["--root", lq.root, "watch", "--count", "1"]).stdout
    assert "error" in shown and "orders" in shown


def test_a_terminal_gets_one_table_that_changes(orders: Queue, start) -> None:
    terminal, its_side = pty.openpty()
    process = start("watch", "--every", "0.02", stdout=its_side)
    os.close(its_side)
    shown = b""
    while b"in flight" not in shown:
        shown += os.read(terminal, 10_000)
    orders.send_batch([SendEntry(str(number)) for number in range(4_321)])
    while b"4321" not in shown:
        shown += os.read(terminal, 10_000)
    process.send_signal(signal.SIGINT)
    while True:  # so that it does not wait for a reader
        try:
            if not os.read(terminal, 10_000):
                break
        except OSError:
            break
    assert process.wait(30) == 0 and process.stderr.read() == ""
    os.close(terminal)
    assert b"\x1b[" in shown  # written over the last one
