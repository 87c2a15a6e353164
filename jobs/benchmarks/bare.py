"""The same work by delta-rs and DuckDB alone, for comparison."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import duckdb
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

from benchmarks.harness import Action
from lakequeue import Queue
from lakequeue.operations import browse
from lakequeue.shard.runs import IN_FLIGHT, Head, Run
from lakequeue.storage import layout
from lakequeue.storage.ledger import run_rows
from lakequeue.storage.messages.append import SEGMENT_COMMITS
from lakequeue.storage.parquet_files import write_table


class BareTables:
    """Tables ``messages`` and ``receipts`` by delta-rs alone: open handles, no fence, no housekeeping."""

    def __init__(self, path: str, messages: str, attributes: dict[str, str]) -> None:
        """``messages`` is a table with one row, which `append` repeats."""
        self._path = path
        self._row = DeltaTable(messages).to_pyarrow_table().cast(layout.MESSAGES)
        self._head = Head(attributes=attributes)
        self._epoch = self._sent = 0
        self._new_messages()
        self._receipts = DeltaTable.create(
            f"{path}/receipts",
            layout.RECEIPTS,
            partition_by=layout.RECEIPT_PARTITIONS,
            configuration=layout.RECEIPTS_PROPERTIES,
        )
        write_deltalake(self._receipts, run_rows([], [], self._head), mode="append")

    def append(self) -> Action | None:
        write_deltalake(self._messages, self._row, mode="append")
        self._sent += 1
        return None if self._sent % SEGMENT_COMMITS else self._new_messages

    def claim(self) -> None:
        self._merge(Run(self._sent, self._sent, IN_FLIGHT, "0" * 32, 1, 1, 1, 1), [])

    def delete(self) -> None:
        self._merge(None, [self._sent])

    def _new_messages(self) -> None:
        # Appends slow down with the number of live files, so a table gets no more of them than a segment.
        self._messages = DeltaTable.create(
            f"{self._path}/messages-{self._sent}",
            layout.MESSAGES,
            partition_by=layout.MESSAGE_PARTITIONS,
            configuration=layout.MESSAGES_PROPERTIES,
        )

    def _merge(self, put: Run | None, deletes: list[int]) -> None:
        self._epoch += 1
        head = attrs.evolve(self._head, epoch=self._epoch)
        rows = run_rows([put] if put else [], deletes, head, with_op=True)
        columns = {name: f"s.{name}" for name in layout.RECEIPTS.names}
        same = f"t.settled = s.settled AND t.first_offset = s.first_offset AND (t.settled = false \
AND (t.first_offset = -1 OR t.first_offset BETWEEN {self._sent} AND {self._sent}))"
        merge = self._receipts.merge(rows, same, source_alias="s", target_alias="t", streamed_exec=False)
        merge = merge.when_matched_delete("s.op = 'del'").when_matched_update(columns)
        merge.when_not_matched_insert(columns, predicate="s.op = 'put'").execute()


class BareFiles:
    """The files of one commit without a queue: a Parquet file and an entry of a log, with four syncs."""

    def __init__(self, path: Path, table: str) -> None:
        """Repeats the newest file of a table."""
        newest = max(Path(table).rglob("*.parquet"), key=os.path.getmtime)
        self._rows = ds.dataset(newest).to_table()
        self._path = path
        path.mkdir()
        self._folder = os.open(path, os.O_RDONLY)
        add = {"path": "x" * 60, "stats": "y" * 300}
        self._entry = json.dumps({"add": add, "commitInfo": {"a": "b" * 200}}).encode()
        self._version = 0

    def commit(self) -> None:
        self._version += 1
        file, draft = self._path / f"{self._version}.parquet", self._path / "draft"
        write_table(self._rows, file, use_dictionary=False)
        self._sync(file, os.O_RDONLY)
        self._sync(draft, os.O_CREAT | os.O_WRONLY, self._entry)
        os.link(draft, self._path / f"{self._version}.json")
        os.unlink(draft)
        os.fsync(self._folder)

    def _sync(self, path: Path, flags: int, content: bytes = b"") -> None:
        file = os.open(path, flags)
        if content:
            os.write(file, content)
        os.fsync(file)
        os.close(file)
        if not content:
            os.fsync(self._folder)


class BareSearch:
    """Evaluates a condition with DuckDB in this process, 4,096 messages at a time: no worker, no limits."""

    def __init__(self, queue: Queue, where: str) -> None:
        self._queue = queue
        self._query = f"SELECT ({where}) AS found FROM messages"
        self._connection = duckdb.connect(":memory:", config={"threads": "1"})

    def found(self) -> int:
        with self._queue._runtime.service("peek"):
            return sum(self._found())

    def _found(self) -> Iterator[int]:
        for shard in self._queue._runtime.shards:
            for batch in browse.batches(self._queue._runtime, shard, browse.ROWS):
                self._connection.register("messages", batch.table({"body", "state"}))
                marks = self._connection.execute(self._query).fetchnumpy()["found"]
                yield int(marks.sum())
