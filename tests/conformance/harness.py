"""Queues on both engines, and views of them as a new process sees them.

Single rules are shown by the model; here each scenario crosses the tables, and most look at the result through
an entry that knows nothing yet, as another process would.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

from lakequeue import LakeQueue, Message, Queue, SendEntry
from lakequeue.runtime import root as roots
from lakequeue.testing import ManualClock

point_only = pytest.mark.parametrize("lq", ["point"], indirect=True)
"""For scenarios whose use of the tables another test covers on both engines."""


def batch(*texts: str, **fields: Any) -> list[SendEntry]:
    return [SendEntry(text, **fields) for text in texts]


def bodies(messages: Iterable[Message]) -> list[str]:
    """Sorted bodies: the order does not matter here."""
    return sorted(message.body for message in messages)


def handles(messages: Iterable[Message]) -> list[str]:
    return [message.receipt_handle for message in messages]


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:04}" for number in range(start, start + count)]


@attrs.define
class Harness:
    """One root, used through entries that share nothing."""

    root: str
    clock: ManualClock
    engine: str
    spark: Any = None

    def open(self, *, region: str = "local", engine: str | None = None) -> LakeQueue:
        """A new entry that shares nothing with the others, like one in another process."""
        roots.opened.clear()
        engine = engine or self.engine
        spark = self.spark if engine == "spark" else None
        return LakeQueue(self.root, clock=self.clock, region=region, engine=engine, spark=spark)

    def create(self, name: str = "orders", **attributes: Any) -> Queue:
        """A new queue, created by the point engine, which takes a hundredth of the time."""
        self.open(engine="point").create_queue(name, **attributes)
        return self.open().queue(name)

    def queue(self, name: str = "orders") -> Queue:
        """The queue, opened as in another process."""
        return self.open().queue(name)

    def versions(self) -> dict[str, int]:
        """The version of every Delta table under the root."""
        logs = Path(self.root).rglob("_delta_log")
        return {
            str(log.parent.relative_to(self.root)): max(int(commit.stem) for commit in _commits(log))
            for log in logs
        }

    def log_actions(self, table: str) -> list[dict[str, Any]]:
        """Every action ever committed to a table, given its path under the root."""
        commits = sorted(_commits(Path(self.root) / table / "_delta_log"))
        return [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]


def _commits(log: Path) -> list[Path]:
    return [file for file in log.glob("*.json") if file.stem.isdigit()]


@attrs.define
class Call:
    """A call that runs in its own thread."""

    clock: ManualClock
    work: Callable[[], Any]
    result: Any = None
    ended_at: Any = None
    thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.work()
        except Exception as error:
            self.result = error
        self.ended_at = self.clock.now()

    def after(self, seconds: float) -> Call:
        """Waits until the call waits, then advances the clock."""
        self.clock.wait_for_waiters()
        self.clock.advance(seconds)
        return self

    def join(self) -> Any:
        self.thread.join(60)
        assert not self.thread.is_alive(), "the call goes on"
        return self.result
