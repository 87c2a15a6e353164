"""What only a process of its own shows of the command line: signals, terminals, pipes, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

import lakequeue
from acceptance.commands import Run, Start, Terminal
from hostile import SLOW, SLOW_BODY
from insides import forget
from lakequeue import LakeQueue, Queue, QueueClientError, SendEntry
from lakequeue.operations.schedules import OpenSchedules
from lakequeue.storage import layout
from lakequeue.testing import ManualClock


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith("\n") and "Traceback" not in text


def read(stream: IO[str] | None) -> str:
    """The next line of a process."""
    assert stream is not None
    return stream.readline()


# --- Ctrl-C


@pytest.mark.parametrize(
    ("command", "until"),
    [
        ("receive orders --wait 20", "waiting for messages"),
        ("drain orders q.fifo --yes --wait 1h", "waiting for messages"),
        ("send orders -", "Ctrl-D ends"),
    ],
    ids=lambda value: value.split()[0],
)
def test_ctrl_c_ends_a_command_of_which_a_terminal_shows_that_it_waits(
    lake: LakeQueue, orders: Queue, start: Start, command: str, until: str
) -> None:
    lake.create_queue("q.fifo", fifo=True)
    orders.send("a", group_id="g")
    orders.receive()
    with Terminal() as keyboard, Terminal() as terminal:
        process = start(*command.split(), stdin=keyboard.its, stderr=terminal.its)
        terminal.until(until)
        process.send_signal(signal.SIGINT)
        told = terminal.rest()
    assert process.wait(30) == 130 and "interrupted" in told and "Traceback" not in told
    assert orders.counts().in_flight == 1


JUDGES = """
from lakequeue.conditions import sandbox
from lakequeue.cli import main
sandbox.SECONDS = 60
send = sandbox.Worker.send

def told(self, request, rows=b""):
    send(self, request, rows)
    if request.get("what") == "judge":
        print("judging", flush=True)

sandbox.Worker.send = told
main()
"""
ASKS = """
import time
from lakequeue.cli import main, sql
run = sql._rows

def told(*arguments):
    print("asking", flush=True)
    return run(*arguments)

sql._rows = told
main()
"""
MANY = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(100000000) b"


@pytest.mark.parametrize(
    ("program", "args", "until"),
    [(JUDGES, ["peek", "orders", "--where", SLOW], "judging\n"), (ASKS, ["sql", MANY], "asking\n")],
    ids=["condition", "query"],
)
def test_ctrl_c_ends_what_duckdb_computes(
    orders: Queue, start: Start, program: str, args: list[str], until: str
) -> None:
    orders.send(SLOW_BODY)
    process = start(*args, program=program)
    assert read(process.stdout) == until
    time.sleep(0.5)  # now DuckDB computes
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "interrupted\n")


def test_ctrl_c_while_lines_are_sent_prints_how_many_were_sent(orders: Queue, start: Start) -> None:
    process = start("send", "orders", "-", stdin=subprocess.PIPE)
    for body in ("one", "two"):
        process.stdin.write(body + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        assert [m.body for m in orders.receive(wait_time=20)] == [body]  # sent before the input ends
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    assert read(process.stderr) in (f"interrupted ({n} sent before that)\n" for n in ("1 message", "2 messages"))


def test_ctrl_c_ends_an_export_that_nobody_reads(orders: Queue, start: Start) -> None:
    orders.send_batch([SendEntry("x" * 1_000) for _ in range(5_000)])
    process = start("export", "orders")
    for _ in range(2):  # with the second line, the first one is counted
        read(process.stdout)
    process.send_signal(signal.SIGINT)
    told = read(process.stderr)
    process.stdout.close()  # type: ignore[union-attr]
    assert process.wait(30) == 130
    assert told.startswith("interrupted (") and told.endswith("written before that)\n")


IMPORTING = """
import sys, lakequeue_command

class Told:
    def find_spec(name, *_):
        if name == "lakequeue":
            print("importing", flush=True)

sys.meta_path.insert(0, Told)
lakequeue_command.main()
"""


@pytest.mark.parametrize("after", [0.0, 0.05, 0.2, 0.4])
def test_an_interrupt_while_modules_are_imported_prints_no_trace(start: Start, after: float) -> None:
    process = start("list", program=IMPORTING)  # `watch` would end well once it has begun
    assert read(process.stdout) == "importing\n"
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGINT, 130, 3) and out == ""  # 3: it had seen that there is no root
    assert "Traceback" not in err and err.count("\n") <= 1


def test_an_interrupt_before_a_command_begins_prints_no_trace() -> None:
    interrupted = "typer.main.get_command = lambda *_: signal.default_int_handler(2, None)"
    code = f"import lakequeue_command, signal, typer; {interrupted}; lakequeue_command.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_command_starts_at_the_module_that_handles_interrupts(start: Start) -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'lakequeue = "lakequeue_command:main"' in project and '"src/lakequeue_command.py"' in project
    assert start("--version").communicate(timeout=60) == (f"lakequeue {lakequeue.__version__}\n", "")


# --- pipes and terminals


def test_an_export_whose_reader_has_enough_ends_quietly(orders: Queue, start: Start) -> None:
    orders.send_batch([SendEntry("x" * 1_000) for _ in range(1_000)])
    process = start("export", "orders")
    assert json.loads(read(process.stdout))["body"] == "x" * 1_000
    process.stdout.close()  # type: ignore[union-attr]
    assert (process.stderr.read(), process.wait(30)) == ("", 0)  # type: ignore[union-attr]


def test_messages_that_no_reader_has_are_not_deleted(orders: Queue, start: Start) -> None:
    orders.send("precious")
    reader, writer = os.pipe()
    os.close(reader)
    process = start("receive", "orders", "--delete", stdout=writer)
    os.close(writer)
    told = process.communicate(timeout=30)[1]
    assert process.returncode == 3 and "  body      precious\n" in told and "the messages are not deleted" in told
    assert orders.counts().in_flight == 1


def test_lines_go_to_standard_output_while_a_terminal_shows_progress(orders: Queue, start: Start) -> None:
    orders.send_batch([SendEntry(str(number)) for number in range(3)])
    with Terminal() as terminal:
        out, _ = start("export", "orders", stderr=terminal.its).communicate(timeout=60)
        os.close(terminal.its)
    assert [json.loads(line)["body"] for line in out.splitlines()] == ["0", "1", "2"]


def test_a_terminal_gets_one_table_that_changes(orders: Queue, start: Start) -> None:
    with Terminal() as terminal:
        process = start("watch", "--every", "0.02", stdout=terminal.its, env={"COLUMNS": "150"})
        terminal.until("in flight")
        orders.send_batch([SendEntry(str(number)) for number in range(4_321)])
        shown = terminal.until("4321")
        process.send_signal(signal.SIGINT)
        terminal.rest()  # so that it does not wait for a reader
    assert (process.communicate(timeout=30)[1], process.returncode) == ("", 0)
    assert "\x1b[" in shown  # written over the last one


def test_a_terminal_gets_colours_and_movements_of_ours_alone(orders: Queue, start: Start) -> None:
    """Even what was made to look like them goes."""
    orders.set_tags({"plain": "\x1b[31mred\x1b[2K"})
    env = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "COLUMNS": "120"}
    with Terminal() as terminal:
        process = start("show", "orders", stdout=terminal.its, stderr=terminal.its, env=env)
        shown = terminal.rest()
    assert process.wait(60) == 0
    assert "\x1b[" in shown, "rich draws in bold"
    assert "\x1b[31m" not in shown and "\x1b[2K" not in shown and "\ufffd[31mred\ufffd[2K" in shown


# --- what else a command meets


def test_a_message_that_crashes_duckdb_does_not_crash_the_command(orders: Queue, start: Start) -> None:
    orders.send("[" * 500_000 + "]" * 500_000)
    deep = "[" * 10_000 + '"INT"' + "]" * 10_000
    process = start("peek", "orders", "--where", f"from_json('1', '{deep}') IS NULL OR json_contains(body, '1')")
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "") and one_line(error) and "not one of those" in error


def test_sql_with_spark_says_that_java_is_missing(orders: Queue, start: Start) -> None:
    process = start("sql", "--spark", "SELECT 1", env={"PATH": "/nowhere", "JAVA_HOME": ""})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert "Java" in err and one_line(err)


LISTS = """
import atexit, sys
atexit.register(lambda: print(*sorted(name.partition('.')[0] for name in sys.modules), file=sys.stderr))
from lakequeue.cli import main
main()
"""


def test_sql_needs_neither_java_nor_pyspark_nor_the_working_directory(
    orders: Queue, start: Start, tmp_path: Path
) -> None:
    orders.send("a")
    (tmp_path / "here").mkdir()
    env = {"PATH": "/nowhere", "JAVA_HOME": ""}
    query = "SELECT count(*) + 41 FROM messages"
    out, err = start("sql", query, program=LISTS, env=env, cwd=tmp_path / "here").communicate(timeout=60)
    assert "42" in out and "lakequeue" in err.split()
    assert not {"pyspark", "py4j", "delta"} & set(err.split())
    assert os.listdir(tmp_path / "here") == []


# --- lakequeue watch: transcripts/queues.txt shows what it prints


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


# --- schedules


@pytest.mark.spec("JOB-7")
@pytest.mark.parametrize(
    "command",
    ["schedule run", "consume idle builtins:print", "serve --port 0 --no-access-log"],
    ids=lambda command: command.split()[0],
)
def test_processes_that_run_send_what_is_due(lake: LakeQueue, orders: Queue, start: Start, command: str) -> None:
    lake.create_queue("idle")
    lake.schedules.add("once", "orders", "x", at=lake.clock.now())
    process = start(*command.split())
    [message] = orders.receive(wait_time=20) or orders.receive(wait_time=20)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert message.body == "x" and lake.schedules.list() == []


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


# --- the first process of a container


JOBS = Path(__file__).parents[2] / "jobs"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")
apart = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0,
    reason="may make no namespace of processes",
)


def inside(process: subprocess.Popen[str]) -> int:
    """The id outside of the process that is the first one in its namespace."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


@apart
@pytest.mark.parametrize("after", [0.0, 0.1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "command", ["consume orders time:sleep", "serve", "schedule run", "compact", "send orders -"]
)
def test_a_signal_ends_the_first_process_of_a_container_while_modules_are_imported(
    start: Start, orders: Queue, command: str, number: int, after: float
) -> None:
    process = start(*command.split(), program=IMPORTING, before=NAMESPACE)
    assert read(process.stdout) == "importing\n"
    time.sleep(after)
    os.kill(inside(process), number)
    assert process.wait(30) == 128 + number
    assert process.stderr.read() in ("", "interrupted\n")  # type: ignore[union-attr]


@apart
@pytest.mark.parametrize("job", [each.name for each in sorted(JOBS.glob("*.py")) if each.name != "benchmark.py"])
def test_sigterm_ends_a_job_that_is_the_first_process_while_modules_are_imported(start: Start, job: str) -> None:
    run = f"import runpy; runpy.run_path({str(JOBS / job)!r}, run_name='__main__')"
    process = start("--help", program=IMPORTING.replace("lakequeue_command.main()", run), before=NAMESPACE)
    assert read(process.stdout) == "importing\n"
    os.kill(inside(process), signal.SIGTERM)
    assert process.wait(30) == 143


@apart
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_first_process_of_a_container_without_a_handler_of_its_own(
    start: Start, orders: Queue, number: int
) -> None:
    with Terminal() as keyboard, Terminal() as terminal:
        process = start("send", "orders", "-", stdin=keyboard.its, stderr=terminal.its, before=NAMESPACE)
        terminal.until("Ctrl-D ends")
        os.kill(inside(process), number)
        assert process.wait(30) == 128 + number


@apart
def test_a_second_signal_ends_a_server_that_is_the_first_process(start: Start, orders: Queue) -> None:
    process = start("serve", "--port", "0", before=NAMESPACE)
    port = int(read(process.stderr).rpartition(":")[2])
    assert read(process.stderr).startswith("console: ")
    slow = socket.create_connection(("127.0.0.1", port), 30)
    slow.sendall(
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n"
        b"X-Amz-Target: AmazonSQS.ListQueues\r\n\r\n{"
    )
    assert slow.recv(25).startswith(b"HTTP/1.1 100 ")  # else the first signal may find no request
    first = inside(process)
    while process.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGTERM)
        time.sleep(0.2)
    assert process.returncode == 143
    slow.close()
