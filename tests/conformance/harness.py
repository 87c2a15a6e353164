"""Queues, and views of them as a new process sees them.

Single rules are shown by the model; here each scenario crosses the tables, and most look at the result through
an entry that knows nothing yet, as another process would.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest

from insides import forget
from lakequeue import LakeQueue, Message, Queue, SendEntry
from lakequeue.storage.folder import Folder
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock

S3 = pytest.param("s3", marks=pytest.mark.objectstore)
"""The point engine on an object store."""

ENGINES = ["point", pytest.param("spark", marks=pytest.mark.spark), S3]

every_engine = pytest.mark.parametrize("lq", ENGINES, indirect=True)
"""For scenarios that use the tables in a way of their own; the others go through the point engine alone.

A queue on Spark differs only below the engines' interface, all of which test_engine.py shows on every engine.
These scenarios show what queues make of it: attributes, dead letters, a lost answer, two processes at once.
"""

long_on_s3 = pytest.mark.parametrize(
    "lq", ["point", pytest.param("s3", marks=[pytest.mark.objectstore, pytest.mark.long])], indirect=True
)
"""For scenarios that make hundreds of requests."""

local_only = pytest.mark.parametrize("lq", ["point"], indirect=True)
"""For scenarios about files on local disks."""


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
        forget()
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
        newest: dict[str, int] = {}
        for table, version in map(_commit, self.files()):
            if version is not None:
                newest[table] = max(version, newest.get(table, 0))
        return newest

    def log_actions(self, table: str) -> list[dict[str, Any]]:
        """Every action ever committed to a table, given its path under the root."""
        commits = [name for name in self.files(f"{table}/_delta_log") if _commit(name)[1] is not None]
        return [json.loads(line) for name in commits for line in self.folder.read(name).splitlines()]

    @property
    def folder(self) -> Folder:
        """The root's files."""
        return Store(self.root).folder(self.root)

    def files(self, prefix: str = "") -> list[str]:
        """Names of the files in a directory, below the root."""
        return sorted(entry.name for entry in self.folder.files(prefix))

    def wipe(self, prefix: str) -> None:
        """Removes a directory under the root."""
        if self.folder.local is not None:
            shutil.rmtree(self.folder.path(prefix))
        else:
            self.folder.remove(self.files(prefix))


def _commit(name: str) -> tuple[str, int | None]:
    """Table and version of a log entry's name; no version for any other file."""
    table, found, entry = name.partition("/_delta_log/")
    number = entry.removesuffix(".json")
    return table, int(number) if found and number.isdigit() else None


PATIENCE = 60.0
"""Real seconds in which a call ends once the clock lets it; mutations, whose calls hang, lower it."""


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
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the call goes on"
        return self.result
