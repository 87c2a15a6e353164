"""Entries that share only the tables, and reads of the tables without lakequeue's code."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from deltalake import DeltaTable

from insides import forget, messages_of, place_of
from lakequeue import LakeQueue, Queue
from lakequeue.model.clock import Clock, SystemClock
from lakequeue.shard.runs import Outgoing
from lakequeue.storage import layout

PLACES = ["disk", pytest.param("s3", marks=pytest.mark.objectstore)]
"""Where the root of a test may be."""


class Wrong(SystemClock):
    """The machine's clock, but wrong by this much."""

    def __init__(self, by: timedelta) -> None:
        self.by = by

    def now(self) -> datetime:
        return super().now() + self.by


def apart(root: object, clock: Clock, count: int = 2) -> list[LakeQueue]:
    """Entries to one root that share as little as processes do."""
    entries = []
    for _ in range(count):
        forget()
        entries.append(LakeQueue(str(root), clock=clock))
    forget()
    return entries


def elsewhere(queue: Queue) -> Queue:
    """The queue in another process, which has read nothing of it."""
    return apart(place_of(queue), queue.clock, 1)[0].queue(queue.name)


def keep_to(queue: Queue, shard: int) -> None:
    """Makes a shard the home shard of this process, for sends as well; the next receives begin there."""
    shared = queue._runtime.shards[0].shared
    shared.home.current = shared.sends.current = shard
    shared.home._receives = 0


def spread(queue: Queue, bodies: Iterable[str]) -> None:
    """Sends a message to each shard in turn."""
    for number, body in enumerate(bodies):
        keep_to(queue, number % len(queue._runtime.shards))
        queue.send(body)


def small_segments(patch: pytest.MonkeyPatch, commits: int = 2) -> None:
    """Makes segments close and merge after very few commits."""
    patch.setattr("lakequeue.storage.messages.append.SEGMENT_COMMITS", commits)
    patch.setattr("lakequeue.storage.messages.merge_segments.TIER_SEGMENTS", 3)


@contextmanager
def without_merging(patch: pytest.MonkeyPatch) -> Iterator[None]:
    with patch.context() as scope:
        scope.setattr("lakequeue.runtime.shard_sender.merge_recent", lambda *_: None)
        yield


@attrs.frozen
class Row:
    """A row of the Delta table ``messages``."""

    shard: int
    offset: int
    message_id: str
    body: str
    sent_at: Any


def log_rows(queue: Queue) -> list[Row]:
    """Every row of the logs, by shard and offset, read with delta-rs only."""
    rows: list[Row] = []
    for shard in range(len(queue._runtime.shards)):
        table = DeltaTable(messages_of(queue, shard)).to_pyarrow_table()
        columns = (table[name].to_pylist() for name in ("base_offset", "position", "message_id", "body"))
        instants = zip(table["sent_at"].to_pylist(), table["opened_at"].to_pylist(), strict=True)
        sent = [at or opened for at, opened in instants]  # a bulk segment was sent when it was opened
        rows += [
            Row(shard, base + position, message_id, body, at)
            for base, position, message_id, body, at in zip(*columns, sent, strict=True)
        ]
    return sorted(rows, key=lambda row: (row.shard, row.offset))


def log_versions(queue: Queue) -> tuple[int, int]:
    """Table versions of ``messages`` and ``receipts`` of the first shard."""
    root, key = place_of(queue), queue.key
    paths = layout.messages_path(root, key, 0), layout.receipts_path(root, key, 0)
    return DeltaTable(paths[0]).version(), DeltaTable(paths[1]).version()


def application_id(queue: Queue, app_id: str, shard: int = 0) -> int:
    table = DeltaTable(messages_of(queue, shard))
    return table.transaction_version(app_id) or 0


def check_log(queue: Queue, *, from_start: bool = True, redriven: bool = False) -> list[Row]:
    """Asserts that offsets are dense and unique, ids too (except redriven ones), and that time only increases."""
    rows = log_rows(queue)
    for shard in range(len(queue._runtime.shards)):
        part = [row for row in rows if row.shard == shard]
        end = layout.end_of(application_id(queue, layout.SEND_ID, shard))
        first = 0 if from_start else part[0].offset if part else end
        assert [row.offset for row in part] == list(range(first, end))
        sent = [row.sent_at for row in part]
        assert sent == sorted(sent)
    assert redriven or len({row.message_id for row in rows}) == len(rows)
    return rows


def at_once(calls: Sequence[Callable[[], Any]], patience: float = 60) -> list[Any]:
    """Runs each call in its own thread, all at once; returns their results or errors in order."""
    outcomes: list[Any] = [None] * len(calls)
    ready = threading.Barrier(len(calls))

    def run(index: int) -> None:
        ready.wait(patience)
        try:
            outcomes[index] = calls[index]()
        except BaseException as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
        assert not thread.is_alive(), "a call hangs"
    return outcomes


def sent_bodies(queue: Queue) -> list[str]:
    """The bodies in the logs, which are sound."""
    return [row.body for row in check_log(queue)]


def unfinished(queue: Queue) -> list[Outgoing]:
    """What is on its way to another queue."""
    moves = [shard.ledger.query(lambda machine: machine.outgoing()) for shard in queue._runtime.shards]
    return [move for move in moves if move]


def drain(queue: Queue) -> list[str]:
    """Receives all visible messages; returns their bodies."""
    bodies: list[str] = []
    while messages := queue.receive(max_messages=1_000, wait_time=0):
        bodies += [message.body for message in messages]
    return bodies


def in_place(backup: Path, root: Path) -> None:
    """As ``rsync --archive --delete`` does: what is the same stays."""
    for path in sorted(root.rglob("*"), reverse=True):
        there = backup / path.relative_to(root)
        if not there.exists():
            with suppress(OSError):  # processes that run write there and remove
                path.rmdir() if path.is_dir() else path.unlink()
    for path in sorted(backup.rglob("*")):
        there = root / path.relative_to(backup)
        if path.is_dir():
            there.mkdir(exist_ok=True)
        else:
            put_back_file(path, there)


def put_back_file(source: Path, target: Path) -> None:
    """Copies a file that differs, under another name first."""
    if not target.exists() or _time(target) != _time(source):
        shutil.copy2(source, target.with_name("new"))
        target.with_name("new").rename(target)


def _time(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns
