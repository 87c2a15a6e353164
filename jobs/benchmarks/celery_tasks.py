"""Row of Celery: tasks a second without a broker, on `lakequeue serve`, and on Redis."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.harness import Bench, Figure
from benchmarks.wire import STARTING, listens, server

WORKERS = 1, 2, 4
PATIENCE = 600.0
_SEND = "import celery_app, sys; [celery_app.mark.delay() for _ in range(int(sys.argv[1]))]"

Broker = tuple[str, dict[str, Any]]
"""URL and transport options."""


def celery(bench: Bench) -> Iterator[Figure]:
    """Tasks sent a second by one process, and run a second by 1, 2 and 4 workers of one process each."""
    with bench.scratch() as scratch, server(scratch) as port:
        brokers: dict[str, Broker] = {
            "without a broker": (f"lakequeue:///{scratch}/own", {}),
            "on serve": (
                f"sqs://any:any@localhost:{port}/",
                {"is_secure": False, "polling_interval": 0.1, "wait_time_seconds": 2},
            ),
        }
        with _redis(scratch) as redis:
            if redis is not None:
                brokers["on Redis"] = redis, {}
            for workers in WORKERS:
                rates = {}
                for name in bench.track(list(brokers), f"celery, {workers} workers"):
                    rates[name] = _rates(Path(scratch), brokers[name], workers, bench.sizes.tasks)
                for name in brokers:
                    sent, run = rates[name]
                    if workers == 1:
                        yield Figure(f"celery: tasks sent {name}, 1 process", sent, unit="/s")
                    yield Figure(f"celery: tasks run {name}, {workers} workers", run, unit="/s")
        if redis is None:
            bench.say("celery: no row for Redis, as redis-server or the Python package redis is not installed")


def _rates(scratch: Path, broker: Broker, workers: int, tasks: int) -> tuple[float, float]:
    """Returns the tasks sent a second, and then run a second."""
    where = scratch / f"celery-{workers}-{broker[0].partition(':')[0]}"
    where.mkdir()
    environment = os.environ | {"BROKER": broker[0], "OPTIONS": json.dumps(broker[1]), "WHERE": str(where)}
    here = Path(__file__).parent
    begun = perf_counter()
    subprocess.run([sys.executable, "-c", _SEND, "1"], cwd=here, env=environment, check=True)
    start = perf_counter() - begun
    begun = perf_counter()
    subprocess.run([sys.executable, "-c", _SEND, str(tasks)], cwd=here, env=environment, check=True)
    sent = tasks / max(1e-3, perf_counter() - begun - start)
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-c", "1", "--without-mingle"]
    processes = [
        subprocess.Popen(
            [*command, "-n", f"w{number}"],
            cwd=here,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(workers)
    ]
    done = where / "done"
    try:
        _wait(lambda: len(list(where.glob("ready-*"))) == workers)
        (where / "go").touch()  # Each worker waits in its first task.
        begun = perf_counter()
        _wait(lambda: done.exists() and done.stat().st_size > tasks)
        return sent, (tasks + 1) / (perf_counter() - begun)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(STARTING)


def _wait(condition: Any) -> None:
    deadline = perf_counter() + PATIENCE
    while not condition():
        if perf_counter() > deadline:
            raise RuntimeError("Celery's workers took too long")
        time.sleep(0.01)


@contextlib.contextmanager
def _redis(scratch: str) -> Iterator[str | None]:
    """Starts a Redis that syncs each change to the disk, like lakequeue. Yields its URL, or None without Redis."""
    program = shutil.which("redis-server")
    if program is None or find_spec("redis") is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = ["--port", str(port), "--dir", scratch, "--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        _wait(lambda: listens(port))
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()
