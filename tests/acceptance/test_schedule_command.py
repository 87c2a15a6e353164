"""The commands on schedules, and the processes that send what is due."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from lakequeue import LakeQueue, QueueClientError
from lakequeue.cli import app
from lakequeue.operations.schedules import OpenSchedules
from lakequeue.testing import ManualClock

PROGRAM = "from lakequeue.cli import main; main()"


@pytest.fixture
def lake(root: str) -> LakeQueue:
    made = LakeQueue(root)
    made.create_queue("orders")
    return made


def run(lake: LakeQueue, *args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["--root", lake.root, *args])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.spec("JOB-7")
@pytest.mark.parametrize(
    "command",
    [["schedule", "run"], ["consume", "idle", "builtins:print"], ["serve", "--port", "0", "--no-access-log"]],
    ids=lambda command: command[0],
)
def test_processes_that_run_send_what_is_due(lake: LakeQueue, command: list[str]) -> None:
    lake.create_queue("idle")
    lake.schedules.add("once", "orders", "x", at=lake.clock.now())
    arguments = [sys.executable, "-c", PROGRAM, "--root", lake.root, *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            orders = lake.queue("orders")
            [message] = orders.receive(wait_time=20) or orders.receive(wait_time=20)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert message.body == "x" and lake.schedules.list() == []


def test_a_schedule_is_added_once_and_shown(lake: LakeQueue) -> None:
    add = ["schedule", "add", "nightly", "--queue", "orders", "--body", "x", "--cron", "0 2 * * *"]
    for _ in range(2):
        code, told, _ = run(lake, *add, "--tz", "Europe/Berlin")
        assert code == 0 and told.startswith("schedule nightly: next message at 2")
    code, told, error = run(lake, *add)
    assert (code, told, len(error.splitlines())) == (1, "", 1) and "another schedule of this name" in error
    assert run(lake, "schedule", "pause", "nightly")[1] == "schedule nightly is paused\n"
    [row] = json.loads(run(lake, "schedule", "list", "--json")[1])
    assert (row["cron"], row["tz"], row["paused"], row["last_error"]) == ("0 2 * * *", "Europe/Berlin", True, None)
    assert run(lake, "schedule", "resume", "nightly")[0] == 0
    assert "sent" in run(lake, "schedule", "run-now", "nightly")[1]
    assert run(lake, "schedule", "remove", "nightly")[0] == 0
    assert run(lake, "schedule", "list")[1] == "no schedules\n"
    assert run(lake, "schedule", "run", "--once")[1] == "0 messages sent\n"


@pytest.mark.parametrize(
    ("wrong", "reason", "code"),
    [
        (["--cron", "0 2 * *"], "cron is invalid. Reason: Must be five fields", 1),
        (["--cron", "0 2 * * *", "--tz", "Mars"], "tz is invalid. Reason: Must be an IANA time zone", 1),
        (["--cron", "0 2 * * *", "--missed", "x"], "missed is invalid. Reason: Must be one of last, all, none", 1),
        (["--at", "soon"], "'soon' is not an instant", 2),
        ([], "Give either cron or at", 1),
        (["--cron", "0 2 * * *", "--region", "elsewhere"], "does not exist", 1),
    ],
)
def test_a_wrong_schedule_is_refused_in_a_line(lake: LakeQueue, wrong: list[str], reason: str, code: int) -> None:
    found = run(lake, "schedule", "add", "nightly", "--queue", "orders", "--body", "x", *wrong)
    assert found[0] == code and reason in found[2] and len(found[2].splitlines()) == 1
    assert lake.schedules.list() == []


def test_an_outage_is_logged_once_and_ends_no_block(
    lake: LakeQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def failing(self: OpenSchedules) -> int:
        looks.append(1)
        raise QueueClientError("storage is gone")

    monkeypatch.setattr(OpenSchedules, "run_due", failing)
    clock = ManualClock()
    with LakeQueue(lake.root, clock=clock).schedules.running():
        for _ in range(3):
            clock.advance(60)
    assert len(looks) >= 3 and [record.message.count("storage is gone") for record in caplog.records] == [1]
