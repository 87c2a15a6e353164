"""Without the packages of the extras everything ordinary works, and the rest says in one line what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
REFUSE = """
import sys

EXTRAS = {"pyspark", "delta", "py4j", "pandas", "matplotlib", "starlette", "uvicorn", "httptools", "uvloop"}
EXTRAS |= {"botocore", "boto3", "prometheus_client", "opentelemetry", "grpc", "kombu", "airflow", "dagster"}


class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refuse)
"""
HANDLER = "def handle(message, context):\n    print(message.body)\n"
SPARK, PLOT, SERVE = "'pyspark", "'matplotlib", "'starlette"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """Runs Python in an environment in which no package of an extra can be imported."""
    (tmp_path / "sitecustomize.py").write_text(REFUSE)
    (tmp_path / "work.py").write_text(HANDLER)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "LAKEQUEUE_ROOT": str(tmp_path / "root")}
    environment["PYTHONTZPATH"] = ""  # the machine has no time zones

    def run(*args: object, input: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, args)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, input=input, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.fixture
def lakequeue(python: Run) -> Run:
    def run(*args: object, input: str = "") -> subprocess.CompletedProcess[str]:
        return python("-m", "lakequeue_command", *args, input=input)

    return run


def test_ordinary_commands_work(lakequeue: Run, tmp_path: Path) -> None:
    def printed(*args: object, input: str = "") -> str:
        done = lakequeue(*args, input=input)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed("create", "orders", "--visibility-timeout", "60", "-a", "rewind_range=1d")
    printed("send", "orders", "-", input="a book\na lamp\n")
    assert "a book" in printed("receive", "orders", "--delete")
    assert "a lamp" in printed("peek", "orders", "--where", "state = 'visible' AND age < 600")
    assert "orders" in printed("counts", "orders") and "orders" in printed("list")
    query = "SELECT state, count(*) AS messages, max(sent_at) FROM messages GROUP BY state ORDER BY state"
    assert "deleted" in printed("sql", query)
    assert "00:00:00.123Z" in printed("sql", "SELECT TIMESTAMP_NS '2020-01-01 00:00:00.123456789'")
    assert '"a lamp"' in printed("export", "orders")
    printed("plot", "orders", "--json")
    assert "a lamp" in printed("consume", "orders", "work:handle", "--until-empty")
    printed("rewind", "orders", "--ago", "1h", "--yes")
    printed("compact")
    printed("check")
    printed("show", "orders")
    printed("views")
    printed("copy", tmp_path / "root", tmp_path / "copy")


@pytest.mark.parametrize("args", [["list"], ["counts", "orders"], ["send", "orders", "a"], ["receive", "orders"]])
def test_a_short_command_loads_what_it_needs(lakequeue: Run, python: Run, args: list[str]) -> None:
    lakequeue("create", "orders")
    program = """
import sys, lakequeue_command
try:
    lakequeue_command.main()
finally:
    tens_of_milliseconds = {"deltalake", "duckdb", "pyarrow.dataset", "lakequeue.cli.consume", "lakequeue.cli.sql"}
    if "receive" not in sys.argv:  # whose --max has a default, and typer has pydantic convert that
        tens_of_milliseconds.add("pydantic")
    print(sorted(tens_of_milliseconds & sys.modules.keys()))
"""
    done = python("-c", program, *args)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stdout + done.stderr


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


@pytest.mark.parametrize(
    ("args", "needs", "advice"),
    [
        (["sql", "SELECT 1", "--spark"], "sql with Spark needs pyspark", SPARK),
        (["sql", "--register", "here"], "sql with Spark needs pyspark", SPARK),
        (["demo"], "demo without --no-spark needs pyspark", SPARK),
        (["plot", "orders", "--out", "a.svg"], "plot needs matplotlib", PLOT),
        (["serve", "--create-root"], "serve needs ", SERVE),
        (["consume", "orders", "work:handle", "--metrics-port", "0"], "needs prometheus_client", "'prometheus"),
        (["consume", "orders", "work:handle", "--opentelemetry"], "needs opentelemetry", "'opentelemetry-api"),
    ],
)
def test_a_command_that_needs_an_extra_says_so(lakequeue: Run, args: list[str], needs: str, advice: str) -> None:
    lakequeue("create", "orders")
    done = lakequeue(*args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert done.stderr.startswith("error: environment: ") and needs in done.stderr
    assert advice in done.stderr.partition(", which is not installed: pip install ")[2]


@pytest.mark.parametrize("job", ["compact", "consume_batch", "consume_stream", "produce_batch", "produce_stream"])
def test_a_job_says_so(python: Run, job: str) -> None:
    done = python(PROJECT / "jobs" / f"{job}.py", "--help")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert "lakequeue.spark needs pyspark, which is not installed: pip install " in done.stderr


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
        "lakequeue.otel needs opentelemetry",
        "lakequeue.integrations.celery needs kombu",
        *["lakequeue.spark needs pyspark"] * 3,
        "lakequeue.integrations.airflow needs airflow",
        "lakequeue.integrations.dagster needs dagster",
    ]


def test_the_demo_needs_no_extra(lakequeue: Run, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(12):
        (files / f"m{number:02}.py").write_text("class C: ...\n")
    (files / "no.py").write_text("def (:\n")
    done = lakequeue("demo", "--no-spark", "--input", files)
    assert done.returncode == 0, done.stderr
    for told in (
        "Sent: 16 messages",
        "lost with 10 messages",
        "Done: 12 files with 12 lines",
        "broken-3.py",
        "no.py",
    ):
        assert told in done.stdout
