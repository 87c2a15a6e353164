"""The compactor from outside: ``lakequeue compact`` and ``jobs/compact.py``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from lakequeue import InvalidParameterValue, LakeQueue, QueueClientError
from lakequeue.cli import app
from lakequeue.operations import compact, send_dataframe
from lakequeue.storage import layout
from lakequeue.testing import ManualClock

PROJECT = Path(__file__).parents[2]
JOB = PROJECT / "jobs" / "compact.py"


def run(root: str, *args: str, json: bool = False):
    options = ["--root", root, *(["--json"] if json else [])]
    return CliRunner(env={"LAKEQUEUE_ROOT": None}).invoke(app, [*options, "compact", *args])


def consumed(root: str, name: str = "orders") -> None:
    """A queue that something was sent to and deleted from, so that a part of its log is no longer needed."""
    queue = LakeQueue(root).create_queue(name)
    for number in range(3):
        queue.send(str(number))
    queue.delete_batch([message.receipt_handle for message in queue.receive(3)])


# --- several processes


def busy(root: str) -> list[str]:
    """The names of such queues."""
    names = [f"q{number}" for number in range(4)]
    for name in names:
        consumed(root, name)
    return names


@pytest.mark.spec("DLT-7")
def test_several_processes_do_and_report_the_same_as_one(root, tmp_path, monkeypatch):
    names = busy(root)
    alone = shutil.copytree(root, tmp_path / "alone")
    expected = [attrs.evolve(each, files_freed=0, bytes_freed=0) for each in LakeQueue(str(alone)).compact()]
    monkeypatch.setattr(compact, "compact_queue", None)  # this process makes no pass
    told: list[tuple[int, int, str]] = []
    lq = LakeQueue(root)
    done = lq.compact(lambda *each: told.append(each), processes=2)
    assert [attrs.evolve(each, files_freed=0, bytes_freed=0) for each in done] == expected
    assert [each.queue for each in done] == [*names, None] and all(each.segments_dropped for each in done[:-1])
    assert [number for number, *_ in told] == [0, 1, 2, 3, 4] and sorted(name for *_, name in told[:4]) == names
    assert sorted(row["queue"] for row in lq.arrow_views()["stats"].to_table().to_pylist()) == names
    assert not lq.check()
    monkeypatch.undo()
    assert all(each.idle for each in lq.compact()[:-1])


@attrs.frozen
class Killed(compact.QueuePass):
    def run(self) -> Any:
        os._exit(9)


def test_a_process_that_is_killed_is_a_failure_of_its_queues_in_that_pass(root, monkeypatch):
    [name, *_] = busy(root)
    monkeypatch.setattr(compact, "QueuePass", Killed)
    done = run(root, "--processes", "2")
    assert done.exit_code == 3 and "its process ended" in done.output and name in done.output
    monkeypatch.undo()
    assert not any(each.failures for each in LakeQueue(root).compact())


DEADLY = """
import os, signal, sys
from lakequeue import LakeQueue
from lakequeue.operations import compact

class Deadly(compact.QueuePass):
    def run(self):
        os.kill(os.getppid(), signal.SIGKILL)
        return super().run()

if __name__ == "__main__":
    compact.QueuePass = Deadly
    LakeQueue(sys.argv[1]).compact(processes=2)
"""


def test_processes_end_with_the_one_that_started_them(root, tmp_path):
    busy(root)
    script = tmp_path / "deadly.py"
    script.write_text(DEADLY)
    # returns when no process holds the output any more
    done = subprocess.run([sys.executable, str(script), root], capture_output=True, env=environment(), timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr
    lq = LakeQueue(root)
    assert not any(each.failures for each in lq.compact()) and not lq.check()


def test_processes_that_would_not_do_the_same_are_refused(root):
    LakeQueue(root).create_queue("orders")
    with pytest.raises(QueueClientError, match="the system's clock"):
        LakeQueue(root, clock=ManualClock()).compact(processes=2)
    with pytest.raises(InvalidParameterValue, match="processes"):
        LakeQueue(root).compact(processes=0)


# --- the command


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

    broken = LakeQueue(root).create_queue("broken")
    log = Path(layout.messages_path(root, broken.key, 0), "_delta_log")
    log.rename(log.with_name("elsewhere"))
    done = subprocess.run(
        [str(submit), "--properties-file", str(conf), str(JOB), "--root", root, "--once"],
        capture_output=True,
        text=True,
        env=environment() | {"PYSPARK_DRIVER_PYTHON": sys.executable},
    )
    assert "orders: 1 segment dropped" in done.stdout, done.stderr
    assert done.returncode == 3 and "broken: 6 steps failed\n" in done.stdout
    error = done.stdout.splitlines()[-1]  # spark-submit joins the two outputs of a driver
    assert error.startswith("error: storage: 6 steps failed, broken: ") and f"{log.parent} has no log" in error


@pytest.mark.cluster
@pytest.mark.spark
def test_the_stream_makes_passes_until_it_is_stopped(root, tmp_path):
    consumed(root)
    LakeQueue(root).schedules.add("once", "orders", "scheduled", at=datetime.now(timezone.utc))
    with open(tmp_path / "errors", "w") as errors:
        process = subprocess.Popen(
            job(root, "--every", "1"), stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
        )
    try:
        assert process.stdout is not None
        passes = 0
        for line in process.stdout:
            passes += "orders" in line or "nothing to do" in line
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
    assert "scheduled" in [message.body for message in LakeQueue(root).queue("orders").peek()]
    assert LakeQueue(root).queue("orders").send("still here")
