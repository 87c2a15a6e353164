"""The compactor from outside: ``lakequeue compact`` and ``jobs/compact.py``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from lakequeue import LakeQueue
from lakequeue.cli import app
from lakequeue.operations import send_dataframe
from lakequeue.storage import layout

PROJECT = Path(__file__).parents[2]
JOB = PROJECT / "jobs" / "compact.py"


def run(root: str, *args: str, json: bool = False):
    options = ["--root", root, *(["--json"] if json else [])]
    return CliRunner(env={"LAKEQUEUE_ROOT": None}).invoke(app, [*options, "compact", *args])


def consumed(root: str) -> None:
    """A queue that something was sent to and deleted from."""
    queue = LakeQueue(root).create_queue("orders")
    for number in range(3):
        queue.send(str(number))
    queue.delete_batch([message.receipt_handle for message in queue.receive(3)])


# --- the command


@pytest.mark.spec("DLT-7")
def test_the_command_frees_and_tells(root, monkeypatch):
    consumed(root)
    monkeypatch.setattr(layout, "RECEIPTS_RETENTION", layout.Retention(0, 0))
    done = run(root, json=True)
    assert (done.exit_code, done.stderr) == (0, "")
    orders, own = json.loads(done.stdout)
    assert (orders["queue"], orders["segments_dropped"], orders["failures"]) == ("orders", 1, [])
    assert orders["files_freed"] >= 2 and orders["bytes_freed"] > 1_000
    assert own["queue"] is None
    again = run(root)
    assert again.exit_code == 0
    assert again.stdout.split()[:3] == ["queue", "expired", "dropped"]
    assert "orders" in again.stdout and "(the root's own tables)" in again.stdout


def test_the_command_takes_one_queue(root):
    consumed(root)
    LakeQueue(root).create_queue("others")
    document = json.loads(run(root, "orders", json=True).stdout)
    assert (document["queue"], document["segments_dropped"]) == ("orders", 1)


def test_the_command_refuses_in_one_line(root, tmp_path):
    for where, status in ((root, 3), (str(tmp_path), 3)):
        refused = run(where)
        assert refused.exit_code == status and refused.stderr.count("\n") == 1
        assert refused.stderr.startswith("error: storage: ")
    consumed(root)
    refused = run(root, "nothing")
    assert (refused.exit_code, refused.stdout) == (1, "")
    expected = "error: QueueDoesNotExist: The specified queue does not exist: there is no nothing in "
    assert refused.stderr.startswith(expected) and refused.stderr.count("\n") == 1


@pytest.mark.parametrize("args", [["--nonsense"], ["orders", "others"]])
def test_the_command_refuses_wrong_usage(root, args):
    refused = run(root, *args)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: usage: ") and refused.stderr.count("\n") == 1


def test_an_interrupt_is_no_step_that_fails(root, monkeypatch):
    consumed(root)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(send_dataframe, "sweep_manifests", interrupt)
    done = run(root)
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_steps_that_fail_are_an_error_after_the_rest_is_done(root, monkeypatch):
    consumed(root)

    def fail(*_):
        raise OSError("disk on fire")

    monkeypatch.setattr(send_dataframe, "sweep_manifests", fail)
    done = run(root, json=True)
    assert done.exit_code == 3 and "disk on fire" in done.stderr
    orders, _ = json.loads(done.stdout)
    assert orders["segments_dropped"] == 1
    assert orders["failures"] == ["manifests of bulk sends: disk on fire"]


# --- the job


def job(root: str, *args: str) -> list[str]:
    return [sys.executable, str(JOB), "--root", root, *args]


def environment() -> dict[str, str]:
    package = str(PROJECT / "src")
    return os.environ | {"PYTHONPATH": package, "PYSPARK_PYTHON": sys.executable, "COLUMNS": "160"}


@pytest.mark.cluster
@pytest.mark.spark
def test_spark_submit_makes_one_pass(root):
    consumed(root)
    submit = Path(sys.executable).with_name("spark-submit")
    conf = PROJECT / "conf" / "local.conf"

    def one_pass() -> Any:
        return subprocess.run(
            [str(submit), "--properties-file", str(conf), str(JOB), "--root", root, "--once"],
            capture_output=True,
            text=True,
            env=environment() | {"PYSPARK_DRIVER_PYTHON": sys.executable},
        )

    done = one_pass()
    assert done.returncode == 0, done.stderr
    [row] = [line.split() for line in done.stdout.splitlines() if "orders" in line]
    assert row[:3] == ["orders", "0", "1"]
    broken = LakeQueue(root).create_queue("broken")
    log = Path(layout.messages_path(root, broken.key, 0), "_delta_log")
    log.rename(log.with_name("elsewhere"))
    done = one_pass()
    assert done.returncode == 1 and "orders" in done.stdout
    error = done.stdout.splitlines()[-1]  # spark-submit joins the two outputs of a driver
    assert error.startswith("error: 6 steps failed, broken: ") and f"{log.parent} has no log" in error


@pytest.mark.cluster
@pytest.mark.spark
def test_the_stream_makes_passes_until_it_is_stopped(root, tmp_path):
    consumed(root)
    with open(tmp_path / "errors", "w") as errors:
        process = subprocess.Popen(
            job(root, "--every", "1"), stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
        )
    try:
        assert process.stdout is not None
        passes = 0
        for line in process.stdout:
            passes += "orders" in line
            if passes == 3:
                break
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.stdout.read()
        assert process.wait(60) == 0, (tmp_path / "errors").read_text()
        assert time.monotonic() - began < 60
    finally:
        process.kill()
        process.wait()
    assert passes == 3
    assert DeltaTable(f"{root}/stats").to_pyarrow_table().num_rows >= 1
    assert LakeQueue(root).queue("orders").send("still here")
