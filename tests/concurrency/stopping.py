"""Processes that are stopped during a commit while time passes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from concurrency.steps import Step, at
from insides import place_of
from lakequeue import Queue
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table


def without_turns(patch: pytest.MonkeyPatch) -> None:
    """Lets processes decide on what they know, as those do that went on without a turn."""
    patch.setattr("lakequeue.storage.engines.turns._DiskTurns._take", lambda *_, **__: False)


def older(root: str | Path, seconds: float) -> None:
    """Makes the files under a root older."""
    for folder, _, names in os.walk(root):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            written = os.stat(path).st_mtime - seconds
            os.utime(path, (written, written))


def stopped_in(patch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> Step:
    """Stops the next write after its data files are written and before its log entry."""
    return at(patch, Table, "_create_entry", meanwhile)


def time_flies(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Makes the machine's wall clock jump, as after a suspend, and the storage's with it."""
    clock_jumps(patch, seconds)
    patch.setattr("lakequeue.storage.clock_guard._stamped", lambda *_: time.time())


def clock_jumps(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Makes the machine's wall clock wrong."""
    now = time.time
    patch.setattr("lakequeue.storage.engines.commit.time.time", lambda: now() + seconds)


def short_logs(patch: pytest.MonkeyPatch) -> None:
    """Makes new queues write checkpoints and trim their logs every few commits."""
    for properties in (layout.MESSAGES_PROPERTIES, layout.RECEIPTS_PROPERTIES):
        patch.setitem(properties, "delta.checkpointInterval", "10")
    patch.setattr("lakequeue.storage.engines.commit.TRIM_EVERY", 5)
    patch.setattr("lakequeue.storage.engines.log_trimming.LOG_ENTRIES", 5)
    patch.setattr("lakequeue.storage.engines.log_trimming.READING", 0)


def busy_hours(queue: Queue) -> None:
    """Sends and settles in another process until the earlier log entries are trimmed twice; for `short_logs`."""
    for _ in range(2):
        for number in range(12):
            queue.send(f"other {number}")
            [message] = queue.receive(visibility_timeout=600)
            queue.change_visibility(message.receipt_handle, 500)
        older(place_of(queue), 2 * 3600)


@contextmanager
def stopped(script: str, *arguments: str) -> Iterator[None]:
    """A process, stopped once it has written a line."""
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"in\n"
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate()
        assert process.returncode == 0
