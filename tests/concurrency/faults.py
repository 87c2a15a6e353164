"""Faults of writes, and processes that are killed at them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from lakequeue.storage.engines.point import PointTable

WORKER = Path(__file__).with_name("worker.py")


@attrs.define
class Fault:
    """Makes the first ``times`` writes of one kind fail, before or after they land."""

    method: str
    error: Exception
    landed: bool = False
    times: int = 1
    seen: int = 0

    def install(self, patch: pytest.MonkeyPatch) -> Fault:
        original = getattr(PointTable, self.method)

        def faulty(*args: Any, **more: Any) -> Any:
            self.seen += 1
            if self.seen > self.times:
                return original(*args, **more)
            if self.landed:
                original(*args, **more)
            raise self.error

        patch.setattr(PointTable, self.method, faulty)
        return self


def killed(root: str, verb: str, before: int = 0, after: int = 0) -> None:
    """Runs a verb in a process that kills itself before or after the given write (the first is 1)."""
    moment = "before" if before else "after"
    done = subprocess.run(
        [sys.executable, str(WORKER), "crash", root, verb, str(before or after), moment],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -9, done.stderr
