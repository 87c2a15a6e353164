"""The command ``relay``: what it sends, prints and refuses."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from acceptance.commands import Run, Start
from lakequeue import Queue

_TIME = r"\d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ"


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    append(path, 1, 2)
    return path


def append(table: str, *ids: int) -> None:
    write_deltalake(table, pa.table({"id": ids, "text": [f"row {id}" for id in ids]}), mode="append")


@pytest.mark.spec("RLY-1", "RLY-2")
def test_relay_sends_rows_added_since_the_last_call(run: Run, orders: Queue, table: str) -> None:
    relay = "relay", table, "orders", "--once", "--start"
    assert run(*relay, "0").stdout == "2 messages sent to orders\n"
    append(table, 3)
    assert json.loads(run("--json", *relay, "10m ago").stdout) == {"queue": "orders", "messages": 1, "refused": 0}
    append(table, 4)
    assert run("relay", table, "orders", "--once", "--body-column", "text").stdout == "1 message sent to orders\n"
    assert [message.body for message in orders.peek(limit=9)][1:] == [
        '{"id":2,"text":"row 2"}',
        '{"id":3,"text":"row 3"}',
        "row 4",
    ]


@pytest.mark.spec("RLY-2")
@pytest.mark.parametrize(("start", "sent"), [("0", "2 messages"), ("now", "0 messages")])
def test_a_new_relay_asks_if_the_rows_of_the_table_are_sent_too(
    run: Run, orders: Queue, table: str, start: str, sent: str
) -> None:
    relay = "relay", table, "orders", "--once"
    asked = run(*relay)
    assert asked.exit_code == 2
    assert "this relay is new: give --start 0 to send the rows of version 0, too, or --start now" in asked.stderr
    assert run(*relay, "--start", start).stdout == f"{sent} sent to orders\n"
    assert run(*relay).stdout == "0 messages sent to orders\n"


@pytest.mark.spec("RLY-3", "RLY-4")
def test_a_refusal_is_one_line_that_says_how_to_go_on(run: Run, orders: Queue, table: str) -> None:
    run("relay", table, "orders", "--once", "--start", "now")
    write_deltalake(table, pa.table({"id": [3, 4], "text": ["", "row 4"]}), mode="append")
    options = "relay", table, "orders", "--once", "--body-column", "text"
    done = run(*options)
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert "version 1 of" in done.stderr and "1 row has no body" in done.stderr
    assert run(*options, "--on-bad-row", "drop").stdout == "1 message sent to orders, 1 row refused\n"
    DeltaTable(table).delete("id = 1")
    done = run(*options)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "version 2 of" in done.stderr and "DELETE" in done.stderr
    assert done.stderr.endswith("leave such versions out with --skip-changes\n")
    assert run(*options, "--skip-changes").stdout == "0 messages sent to orders\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("orders",), "--once or --every"),
        (("orders", "--once", "--every", "30s"), "--once or --every"),
        (("orders", "--once", "--start", "yesterday"), "not an instant"),
        (("orders", "--every", "0.5"), "too short"),
        (("none", "--once"), "QueueDoesNotExist"),
        (("orders", "--once", "--on-bad-row", "divert"), "--on-bad-row divert and --bad-rows go together"),
    ],
)
def test_wrong_options_are_named(
    run: Run, orders: Queue, table: str, arguments: tuple[str, ...], reason: str
) -> None:
    done = run("relay", table, *arguments)
    assert done.exit_code in (1, 2) and reason in done.stderr + done.stdout


@pytest.mark.spec("RLY-1")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--json",), '{{"queue": "orders", "messages": {}, "refused": 0}}'),
        ((), rf"{_TIME} {{}} messages? sent to orders"),
    ],
    ids=["json", "text"],
)
def test_relay_runs_until_it_is_stopped(
    start: Start, orders: Queue, table: str, options: tuple[str, ...], line: str
) -> None:
    running = start(*options, "relay", table, "orders", "--start", "0", "--every", "1s")
    if not options:
        begins = f"sends new rows of {re.escape(table)} from version 0 on to orders every 1 s"
        assert re.fullmatch(f"{_TIME} {begins}, until Ctrl-C or SIGTERM", running.stdout.readline().strip())
    assert re.fullmatch(line.format(2), running.stdout.readline().strip())
    append(table, 3)
    assert re.fullmatch(line.format(1), running.stdout.readline().strip())
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 0
    assert orders.counts().visible == 3
