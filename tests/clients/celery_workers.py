"""The application in celery_jobs.py, and workers for it."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import group

from serve.serving import PATIENCE

JOBS = Path(__file__).with_name("celery_jobs.py")


@contextmanager
def application(broker: str, where: Path, visibility: float, **variables: str) -> Iterator[Any]:
    """The module of the application; the environment of its workers holds as long."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"BROKER": broker, "RESULTS": f"file://{where}", "VISIBILITY": visibility}.items():
            patch.setenv(name, str(value))
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.syspath_prepend(JOBS.parent)
        patch.delitem(sys.modules, JOBS.stem, raising=False)
        yield importlib.import_module(JOBS.stem)
        del sys.modules[JOBS.stem]


def start(where: Path, *options: str) -> subprocess.Popen[bytes]:
    """A worker in a process group of its own, whose log is in ``where``."""
    with (where / "worker.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", JOBS.stem, "worker", "-c", "2", "-l", "INFO", *options],
            cwd=JOBS.parent,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker and its children as a power cut does."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def worker(where: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, which ends in an orderly way."""
    process = start(where, *options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                kill(process)


def tasks_run(jobs: Any) -> None:
    """A group of tasks runs, and one that fails is tried again."""
    results = group(jobs.add.s(number, number) for number in range(30)).apply_async().get(PATIENCE)
    assert results == [2 * number for number in range(30)]
    assert jobs.persist.delay("käse").get(PATIENCE) == {"text": "käse", "retries": 2}


def seen_with_one_rejected(queue: Any) -> list[Any]:
    """Messages of a queue of kombu as they come: the first of three is rejected, what comes then acknowledged."""
    for number in range(3):
        queue.put({"number": number})
    seen = [queue.get(timeout=PATIENCE)]
    seen[0].requeue()
    while len(seen) < 4:
        seen.append(queue.get(timeout=PATIENCE))
        seen[-1].ack()
    numbers = [message.payload["number"] for message in seen]
    assert sorted(numbers) == sorted([0, 1, 2, numbers[0]])
    return seen
