"""The jobs through spark-submit, on real input."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import attrs
import pyarrow.compute as pc
from deltalake import DeltaTable

from lakequeue import LakeQueue
from lakequeue.cli.demo_files import parse

PROJECT = Path(__file__).parents[2]
HANDLERS = Path(__file__).with_name("handlers.py")


@attrs.frozen
class Ended:
    """How a job ended."""

    status: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """For spark-submit and what it starts: this Python, and the package that is under test."""
    package = str(PROJECT / "src")
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return os.environ | python | {"PYTHONPATH": package, "SPARK_LOCAL_IP": "127.0.0.1", "COLUMNS": "160"}


def submit(conf: str, master: str, name: str, *args: str) -> Ended:
    """Runs a job of `jobs`, or any script, on a cluster."""
    command = [
        str(Path(sys.executable).with_name("spark-submit")),
        *("--properties-file", str(PROJECT / "conf" / f"{conf}.conf"), "--py-files", str(HANDLERS)),
        *("--master", master),
        name if name.endswith(".py") else str(PROJECT / "jobs" / f"{name}.py"),
    ]
    done = subprocess.run([*command, *args], capture_output=True, text=True, env=environment(), timeout=500)
    return Ended(done.returncode, done.stdout, done.stderr)


def sources() -> tuple[str, dict[str, int]]:
    """Real input: a package of pyspark, and what is in its modules."""
    folder = Path(sysconfig.get_path("purelib"), "pyspark", "ml")
    paths = [path for path in folder.rglob("*.py") if not path.name.startswith("_")]  # Spark passes those over
    found = [parse(path.read_text(encoding="utf-8")) for path in paths]
    totals = {name: sum(each[name] for each in found) for name in ("lines", "functions", "classes")}
    return str(folder), {"messages": len(found), **totals}


def measured(table: str) -> dict[str, int]:
    """What is in the table of results, as `sources` tells it; every message must be there once."""
    results = DeltaTable(table).to_pyarrow_table(columns=["message_id", "lines", "functions", "classes"])
    totals = {name: pc.sum(results[name]).as_py() for name in ("lines", "functions", "classes")}
    assert len(set(results["message_id"].to_pylist())) == len(results)
    return {"messages": len(results), **totals}


def play(run: Callable[..., Ended], root: str, place: str, producer: str, consumer: str) -> str:
    """Python files to messages to measurements; the table.

    Args:
        run: runs a job, given its name and arguments.
        place: directory or URI for the table and for the checkpoints.
        producer, consumer: which jobs, ``batch`` or ``stream``.
    """
    folder, expected = sources()
    queue = LakeQueue(root).create_queue("modules", visibility_timeout=3600)
    options = ("wholetext=true", "recursiveFileLookup=true", "pathGlobFilter=*.py")
    here = ("--root", root, "--queue", "modules")
    source = [*here, "--format", "text", "--path", folder, "--body-column", "*"]
    source += [part for option in options for part in ("--option", option)]
    results = ["--table", f"{place}/results", "--handler", "handlers:modules"]
    streams = [["--once", "--checkpoint", f"{place}/{name}"] for name in ("sent", "received")]
    produced = {"batch": ["--send-id", "ml"], "stream": streams[0]}[producer]
    consumed = {"batch": ["--max-messages", "50"], "stream": streams[1]}[consumer]
    sent = run(f"produce_{producer}", *source, *produced)
    assert sent.status == 0, f"{sent.out}\n{sent.err}"
    assert queue.counts().visible == expected["messages"]
    done = run(f"consume_{consumer}", *here, *results, *consumed)
    assert done.status == 0, done.err
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)
    return f"{place}/results"
