"""Faults of writes, and processes that are killed at them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency import worker
from lakequeue.storage.engines.point import Table

WORKER = Path(__file__).with_name("worker.py")
FORKS = multiprocessing.get_context("forkserver")
"""Forks processes from one that has imported what they use, which takes most of the time of a short one."""
FORKS.set_forkserver_preload(
    ["lakequeue.operations.compact", "lakequeue.runtime.shard_service", "pyarrow.parquet"]
)


@attrs.define
class Fault:
    """Makes the first ``times`` writes of one kind fail, before or after they land."""

    method: str
    error: Exception
    landed: bool = False
    times: int = 1
    seen: int = 0

    def install(self, patch: pytest.MonkeyPatch) -> Fault:
        original = getattr(Table, self.method)

        def faulty(*args: Any, **more: Any) -> Any:
            self.seen += 1
            if self.seen > self.times:
                return original(*args, **more)
            if self.landed:
                original(*args, **more)
            raise self.error

        patch.setattr(Table, self.method, faulty)
        return self


def exit_code(main: Callable[..., None], *arguments: Any) -> int | None:
    """Runs a function of a module in a process of its own, which may kill itself."""
    process = FORKS.Process(target=worker.run_forked, args=(dict(os.environ), main, arguments), daemon=True)
    process.start()
    process.join(60)
    return process.exitcode


def killed(root: str, verb: str, before: int = 0, after: int = 0) -> None:
    """Runs a verb in a process that kills itself before or after the given write (the first is 1)."""
    moment = "before" if before else "after"
    assert exit_code(worker.crash, str(root), verb, before or after, moment) == -signal.SIGKILL
