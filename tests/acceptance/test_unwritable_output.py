"""Standard output that cannot be written: a change is no failure, and its result is on standard error."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakequeue
from acceptance.commands import PROGRAM, Run
from command_table import COMMANDS
from lakequeue import LakeQueue, Queue

CHANGES = {
    "compact": None,
    "copy {root} {root}-2": None,
    "deploy-files {root}-files": None,
    "drain orders dead --yes": "counts",
    "erase orders {id} --yes": None,
    "export orders --out {root}.jsonl": None,
    "cancel orders {id}": "counts",
    "reschedule orders {id} --in 5": "counts",
    "pause orders": "attributes",
    "plot orders --out {root}.png": None,
    "purge orders --yes": "counts",
    "receive orders": "counts",
    "redrive dead --yes": None,
    "relay {table} orders --once --start 0": "counts",
    "repair --all": None,
    "resume orders": None,
    "rewind orders --ago 30m --yes": None,
    "schedule add nightly --queue orders --body b --cron 0&2&*&*&*": None,
    "schedule run --once": None,
    "send orders x": "counts",
    "send orders --lines {lines}": "counts",
    "set orders -a delay=1": "attributes",
    "tag orders a=b": "tags",
    "untag orders a": None,
    "upgrade --yes": None,
    "delete orders {handle}": "counts",
    "change-visibility orders {handle} 1": None,
    "create other": None,
    "delete-queue dead --yes": None,
    "decide orders --again --yes": None,
}
"""Commands that change something, and the verb that shows it."""
READS = ("check", "consumers", "counts", "doctor", "list", "peek", "show", "sql", "views", "watch", "consume")


def test_every_command_is_tried_or_changes_nothing_that_it_prints() -> None:
    known = {each.removeprefix("-v ").split()[0] for each in COMMANDS}
    assert known == {each.split()[0] for each in CHANGES} | {*READS}


@pytest.fixture
def command_values(orders: Queue, lake: LakeQueue, root: str, tmp_path: Path) -> dict[str, str]:
    lake.create_queue("dead")
    orders.set_attributes(redrive_policy=lakequeue.RedrivePolicy("dead", 5))
    orders.send_batch([lakequeue.SendEntry(body) for body in "abc"])
    [message] = orders.receive(1)
    (tmp_path / "lines").write_text("one\ntwo\n")
    waits = orders.peek("state = 'visible'")[0].message_id
    lines, table = str(tmp_path / "lines"), str(tmp_path / "table")
    write_deltalake(table, pa.table({"id": [1]}))
    return {"root": root, "table": table, "id": waits, "handle": message.receipt_handle, "lines": lines}


@pytest.mark.parametrize("json_", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(("command", "shows"), CHANGES.items(), ids=[each.split()[0] for each in CHANGES])
def test_a_change_is_noted_on_standard_error_and_is_no_failure(
    run: Run, orders: Queue, command_values: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    command: str, shows: str | None, json_: tuple[str, ...],
) -> None:  # fmt: skip
    before = shows and getattr(orders, shows)()
    monkeypatch.setattr(sys, "__stdout__", None)  # as `>&-` leaves it
    done = run(*json_, *(each.replace("&", " ").format(**command_values) for each in command.split()))
    assert (done.exit_code, done.stdout) == (0, "")
    assert shows is None or getattr(orders, shows)() != before
    if json_:
        json.loads(done.stderr)
    else:
        first, told = done.stderr.split("\n", 1)
        assert first == "standard output is closed; done all the same:" and told.strip()


def shell(root: str, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line of the shell, in which LQ is lakequeue."""
    package = str(Path(lakequeue.__file__).parents[1])
    env = os.environ | {"PYTHONPATH": package, "LAKEQUEUE_ROOT": root}
    program = f'LQ() {{ {shlex.quote(sys.executable)} -c {shlex.quote(PROGRAM)} "$@"; }}\n{command}'
    return subprocess.run(["bash", "-c", program], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("LQ send orders x >&-", "standard output is closed"),
        ("LQ send orders x >/dev/full", "standard output cannot be written: No space left on device"),
        (
            "{ sleep 0.3; LQ send orders x; echo code $? >&2; } | true",
            "standard output cannot be written: Broken pipe",
        ),
    ],
    ids=["closed", "full", "pipe"],
)
def test_a_send_ends_well_whatever_its_output_is(root: str, orders: Queue, command: str, reason: str) -> None:
    done = shell(root, command)
    assert done.returncode == 0 and done.stderr.removesuffix("code 0\n").startswith(
        f"{reason}; done all the same:\nsent "
    )
    assert orders.counts().visible == 1 and ("|" in command) == done.stderr.endswith("\ncode 0\n")


@pytest.mark.parametrize("streams", [">&- 2>&-", ">/dev/full 2>/dev/full", "<&- >&- 2>&-", "2>&-", "2>/dev/full"])
def test_a_send_without_any_stream_ends_well(root: str, orders: Queue, streams: str) -> None:
    assert shell(root, f"LQ send orders x {streams}").returncode == 0
    assert shell(root, f"LQ send nowhere x {streams}").returncode == 1
    assert [message.body for message in orders.peek()] == ["x"]  # nothing was printed into a file of the root
    assert LakeQueue(root).check() == []


@pytest.mark.parametrize("command", ["list", "export orders", "watch --count 1", "counts --json"])
def test_a_command_that_only_reads_fails(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    orders.send("a")
    monkeypatch.setattr(sys, "__stdout__", None)
    done = run(*command.split())
    assert done.exit_code == 3 and "standard output is closed" in done.stderr
