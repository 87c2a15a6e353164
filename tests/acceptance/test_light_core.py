"""Without the packages of the extras everything ordinary works, and the rest says in one line what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refused_extras import REFUSE

PROJECT = Path(__file__).parents[2]
HANDLER = "def handle(message, context):\n    print(message.body)\n"
SPARK, PLOT, SERVE = "'pyspark", "'matplotlib", "'starlette"
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from lakequeue.cli import app
results = [CliRunner().invoke(app, args, input=text) for args, text in json.loads(sys.argv[1])]
print(json.dumps([(each.exit_code, each.stdout, each.stderr) for each in results]))
"""
JOBS = """
import runpy, sys
for sys.argv[0] in sys.argv[1:]:
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        print(ended.code)
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Result = tuple[int, str, str]
"""Exit code, standard output and standard error of a command."""


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """Runs Python in an environment in which no package of an extra can be imported."""
    (tmp_path / "sitecustomize.py").write_text(REFUSE)
    (tmp_path / "work.py").write_text(HANDLER)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "LAKEQUEUE_ROOT": str(tmp_path / "root")}
    environment["PYTHONTZPATH"] = ""  # the machine has no time zones

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, args)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    return run


@pytest.fixture
def commands(python: Run) -> Callable[..., list[Result]]:
    """Runs commands one after the other, in one process."""

    def run(*lines: list[object] | tuple[list[object], str]) -> list[Result]:
        asked = [line if isinstance(line, tuple) else (line, None) for line in lines]
        done = python("-c", COMMANDS, json.dumps(asked, default=str))
        assert done.returncode == 0, done.stderr
        return [tuple(each) for each in json.loads(done.stdout)]

    return run


def test_ordinary_commands_work(commands: Callable[..., list[Result]], tmp_path: Path) -> None:
    query = "SELECT state, count(*) AS messages, max(sent_at) FROM messages GROUP BY state ORDER BY state"
    lines: list[tuple[Any, str]] = [
        (["create", "orders", "--visibility-timeout", "60", "-a", "rewind_range=1d"], "orders"),
        ((["send", "orders", "-"], "a book\na lamp\n"), ""),
        (["receive", "orders", "--delete"], "a book"),
        (["peek", "orders", "--where", "state = 'visible' AND age < 600"], "a lamp"),
        (["counts", "orders"], "orders"),
        (["list"], "orders"),
        (["sql", query], "deleted"),
        (["sql", "SELECT TIMESTAMP_NS '2020-01-01 00:00:00.123456789'"], "00:00:00.123Z"),
        (["export", "orders"], '"a lamp"'),
        (["plot", "orders", "--json"], ""),
        (["consume", "orders", "work:handle", "--until-empty"], "a lamp"),
        (["rewind", "orders", "--ago", "1h", "--yes"], ""),
        (["compact"], ""),
        (["check"], ""),
        (["show", "orders"], ""),
        (["views"], ""),
        (["copy", tmp_path / "root", tmp_path / "copy"], ""),
    ]
    found = commands(*[line for line, _ in lines])
    for (line, told), (code, out, err) in zip(lines, found, strict=True):
        assert code == 0 and told in out, (line, out, err)


def test_a_short_command_loads_what_it_needs(commands: Callable[..., list[Result]], python: Run) -> None:
    commands(["create", "orders"])
    program = """
import sys, lakequeue_command
sys.meta_path.pop(0)  # with the extras, whose pandas Arrow would load
try:
    lakequeue_command.main()
finally:
    tens_of_milliseconds = {"deltalake", "duckdb", "pyarrow.dataset", "lakequeue.cli.consume", "lakequeue.cli.sql"}
    tens_of_milliseconds |= {"pandas", "pyspark", "py4j", "delta"}
    if "receive" not in sys.argv:  # whose --max has a default, and typer has pydantic convert that
        tens_of_milliseconds.add("pydantic")
    print(sorted(tens_of_milliseconds & sys.modules.keys()))
"""
    for args in (["list"], ["counts", "orders"], ["receive", "orders"], ["send", "orders", "a"]):
        done = python("-c", program, *args)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), (args, done.stdout + done.stderr)
    *_, loaded = python("-c", program, "--help").stdout.splitlines()
    assert "lakequeue.cli.sql" in loaded and not any(name in loaded for name in ("pyspark", "py4j", "'delta'"))


def test_ordinary_verbs_work(python: Run) -> None:
    done = python(
        "-c",
        """
import asyncio, pyarrow as pa
from lakequeue import Consumer, LakeQueue, RedrivePolicy, aio
lq = LakeQueue("root")
lq.create_queue("failed")
q = lq.create_queue("orders", redrive_policy=RedrivePolicy("failed", 1))
q.send("a", attributes={"n": 1})
q.send_arrow(pa.table({"body": ["b", "c"]}))
q.receive()[0].delete()
lease = q.lease(1)
print(lease.arrow().num_rows)
lease.release()
print([seen.body for seen in q.peek("body = 'c'")])
Consumer(q, lambda message, context: None).run(until_empty=True)
print(q.counts().visible, lq.arrow_views()["messages"].to_table().num_rows > 0, lq.check())
async def visible():
    return (await (await aio.LakeQueue("root").queue("orders")).counts()).visible
print(asyncio.run(visible()))
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1", "['c']", "0 True []", "0"]


def test_a_command_that_needs_an_extra_says_so(commands: Callable[..., list[Result]]) -> None:
    expected = [
        (["sql", "SELECT 1", "--spark"], "sql with Spark needs pyspark", SPARK),
        (["sql", "--register", "here"], "sql with Spark needs pyspark", SPARK),
        (["demo"], "demo without --no-spark needs pyspark", SPARK),
        (["plot", "orders", "--out", "a.svg"], "plot needs matplotlib", PLOT),
        (["serve", "--create-root"], "serve needs ", SERVE),
        (["consume", "orders", "work:handle", "--metrics-port", "0"], "needs prometheus_client", "'prometheus"),
        (["consume", "orders", "work:handle", "--opentelemetry"], "needs opentelemetry", "'opentelemetry-api"),
    ]
    _, *found = commands(["create", "orders"], *[args for args, *_ in expected])
    for (_, needs, advice), (code, out, err) in zip(expected, found, strict=True):
        assert (code, out, err.count("\n")) == (3, "", 1), err
        assert err.startswith("error: environment: ") and needs in err
        assert advice in err.partition(", which is not installed: pip install ")[2]


def test_a_job_says_so(python: Run) -> None:
    jobs = ["compact", "consume_batch", "consume_stream", "produce_batch", "produce_stream"]
    done = python("-c", JOBS, *[PROJECT / "jobs" / f"{job}.py" for job in jobs])
    assert (done.returncode, done.stdout.split()) == (0, ["3"] * len(jobs)), done.stderr
    needs = "lakequeue.spark needs pyspark, which is not installed: pip install "
    assert [needs in line for line in done.stderr.splitlines()] == [True] * len(jobs)


def test_rows_of_the_benchmark_that_need_no_extra_are_measured(python: Run) -> None:
    done = python(PROJECT / "jobs" / "benchmark.py", "--quick", "--scale", "0.01", "--only", "durable", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 3


def test_verbs_and_modules_that_need_an_extra_say_so(python: Run) -> None:
    done = python(
        "-c",
        """
import importlib
from lakequeue import Consumer, LakeQueue, MissingPackage
lq = LakeQueue("root")
q = lq.create_queue("orders")
q.send("a")
lease = q.lease(1)
for use in (
    lambda: q.send_dataframe(None),
    lambda: lease.messages,
    lambda: lq.register_views(None),
    lambda: lq.create_views(None, "here"),
    lambda: LakeQueue("root", engine="spark"),
    lambda: Consumer(q, lambda message, context: None, metrics_port=0),
    lambda: Consumer(lq.create_queue("rows", table="/nowhere"), lambda messages, contexts: None, batch=2),
    *(lambda name=name: importlib.import_module(name)
      for name in ("lakequeue.otel", "lakequeue.integrations.celery", "lakequeue.spark", "lakequeue.spark.source",
                   "pyspark_lakequeue", "lakequeue.integrations.airflow", "lakequeue.integrations.dagster")),
):
    try:
        use()
    except MissingPackage as error:
        assert isinstance(error, ModuleNotFoundError)
        print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    needs = [line.partition(", which is not installed: pip install '")[0] for line in done.stdout.splitlines()]
    assert needs == [
        "send_dataframe needs pyspark",
        "Lease.messages needs pyspark",
        "register_views needs pyspark",
        "create_views needs pyspark",
        'engine="spark" needs pyspark',
        "metrics_port needs prometheus_client",
        "a consumer of a queue with a delivery table needs deltalake",
        "lakequeue.otel needs opentelemetry",
        "lakequeue.integrations.celery needs kombu",
        *["lakequeue.spark needs pyspark"] * 2,
        "pyspark_lakequeue needs pyspark",
        "lakequeue.integrations.airflow needs airflow",
        "lakequeue.integrations.dagster needs dagster",
    ]


def test_the_demo_needs_no_extra(python: Run, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(12):
        (files / f"m{number:02}.py").write_text("class C: ...\n")
    (files / "no.py").write_text("def (:\n")
    quick = "from lakequeue.cli import demo_workers, main; demo_workers.LOST_SECONDS = 0.2; "
    program = f"{quick}demo_workers.RETRY_SECONDS = 0.2; main()"
    done = python("-c", program, "demo", "--no-spark", "--input", files)
    assert done.returncode == 0, done.stderr
    for told in (
        "Sent: 16 messages",
        "lost with 10 messages",
        "Done: 12 files with 12 lines",
        "broken-3.py",
        "no.py",
    ):
        assert told in done.stdout
