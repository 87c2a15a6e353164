"""Processes that are killed at their writes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from concurrency import worker

FORKS = multiprocessing.get_context("forkserver")
"""Forks processes from one that has imported what they use, which takes most of the time of a short one."""
FORKS.set_forkserver_preload(
    [
        *("lakequeue.operations.compact", "lakequeue.runtime.open_shard", "pyarrow.parquet"),
        *("lakequeue.consumer.consumer", "deltalake"),
    ]
)


def exit_code(main: Callable[..., None], *arguments: Any) -> int | None:
    """Runs a function of a module in a process of its own, which may kill itself."""
    process = FORKS.Process(target=worker.run_forked, args=(dict(os.environ), main, arguments), daemon=True)
    process.start()
    process.join(60)
    return process.exitcode


def killed(root: object, verb: str, before: int) -> None:
    """Runs a verb in a process that kills itself before the given write (the first is 1)."""
    assert exit_code(worker.crash, str(root), verb, before) == -signal.SIGKILL
