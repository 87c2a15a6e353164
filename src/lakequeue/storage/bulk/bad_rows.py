"""Drops rows that break a rule, or diverts the rows to a Delta table. The other rows are sent."""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Literal, get_args

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakequeue.errors import InvalidOptions
from lakequeue.model.clock import MICROS
from lakequeue.storage import layout
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.bulk.message_rules import INPUT_COLUMNS, PRIORITY, Rule
from lakequeue.storage.bulk.staged_files import read_spilled
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.engines.transaction import Answer, Change, Decision, transact
from lakequeue.storage.folder import Folder
from lakequeue.storage.parquet_files import writer
from lakequeue.storage.stores import Store

_log = logging.getLogger("lakequeue")

_INPUT = [*(layout.MESSAGES.field(name) for name in INPUT_COLUMNS), pa.field(PRIORITY, pa.float64())]
_REFUSED = pa.schema([("reason", pa.string()), *_INPUT])
COLUMNS = pa.schema([("queue", pa.string()), ("refused_at", layout.INSTANT), *_REFUSED])
"""Columns of the table that gets diverted rows. The column ``reason`` names all rules that the row breaks."""

OnBadRow = Literal["fail", "drop", "divert"]


def option_problems(on_bad_row: str, table: str | None) -> list[str]:
    """Returns a text for each wrong value of the options ``onBadRow`` and ``badRows``."""
    known = get_args(OnBadRow)
    if on_bad_row not in known:
        return [f"option onBadRow is {on_bad_row}, it must be {', '.join(known[:-1])} or {known[-1]}"]
    if on_bad_row == "divert":
        return [] if table else ['option badRows is missing; say .option("badRows", …)']
    return ['option badRows is only for .option("onBadRow", "divert")'] if table else []


@attrs.frozen
class BadRows:
    """What happens to rows that break a rule. They are written to ``table``, or dropped if ``table`` is None."""

    queue: str
    store: Store
    table: str | None = None

    def prepare(self) -> None:
        """Creates the table for diverted rows, if missing. Raises InvalidOptions for wrong columns."""
        if self.table is None:
            return
        engine = Engine(self.store)
        if not engine.exists(self.table):
            engine.create(self.table, COLUMNS, [], {})
        fields = json.loads(engine.open(self.table).state.metadata["schemaString"])["fields"]
        if [field["name"] for field in fields] not in (COLUMNS.names, COLUMNS.names[:-1]):  # earlier ones lack it
            expected = ", ".join(COLUMNS.names)
            raise InvalidOptions([f"option badRows: {self.table} is a table of other columns than {expected}"])

    def divert(self, messages: Folder, files: Sequence[DataFile], key: SendKey, by: str, said: str) -> None:
        """Adds refused rows to ``table`` in one commit, removes their files, and logs a warning.

        If ``table`` is None, only logs the warning. Call this method before ``write_manifest``.

        Args:
            files: files from ``RefusedRows``.
            by: text that names the queue and its rules. If a send is repeated with equal ``key`` and ``by``, its
                rows are not added again.
            said: the broken rules with their numbers of rows, for the warning.
        """
        if self.table is not None:
            app_id = f"{key.app_id}-refused-{hashlib.sha256(by.encode()).hexdigest()[:16]}"
            self._add(messages, files, app_id, key.version)
            messages.remove([file.path for file in files])
        went = "dropped" if self.table is None else f"diverted to {self.table}"
        _log.warning("queue %s: rows were %s: %s", self.queue, went, said)

    def _add(self, messages: Folder, files: Sequence[DataFile], app_id: str, version: int) -> None:
        assert self.table is not None
        table = Engine(self.store).open(self.table)
        added: list[DataFile] = []

        def decide(_: int) -> Decision[None]:
            known = table.transaction(app_id)
            if known >= version:
                return Answer(None)
            if not added:
                added.append(_copied(messages, files, table.folder, self.queue))
            return Change({app_id: known}, {app_id: version}, partial(table.add, added), None)

        transact(table, decide, busy=f"too many lost races at {self.table}; nothing was sent")


class RefusedRows:
    """Counts the refused rows of a partition. Writes these rows into a file, unless they are dropped."""

    def __init__(self, messages: Folder, path: str, bad_rows: BadRows) -> None:
        self._messages = messages
        self._path = path
        self._dropped = bad_rows.table is None
        self.rows = 0
        self._opened = ExitStack()
        self._target: pq.ParquetWriter | None = None

    def removed_from(
        self, rows: pa.RecordBatch, broken: Mapping[str, pa.Array], rules: Sequence[Rule]
    ) -> pa.RecordBatch:
        """Returns the rows without those that break rules. ``broken`` has a mask of wrong rows for each rule."""
        said = [
            pc.if_else(pc.fill_null(broken[rule.name], False), f"{rule.of_one}; ", "")
            for rule in rules
            if rule.name in broken
        ]
        reason = pc.utf8_rtrim(pc.binary_join_element_wise(*said, ""), "; ")
        bad = pc.not_equal(reason, "")
        self.rows += pc.sum(bad).as_py()
        if not self._dropped:
            refused = rows.append_column("reason", reason).filter(bad)
            if PRIORITY not in refused.schema.names:
                refused = refused.append_column(PRIORITY, pa.nulls(len(refused), pa.float64()))
            self._write(refused.select(_REFUSED.names).cast(_REFUSED))
        return rows.filter(pc.invert(bad))

    def _write(self, rows: pa.RecordBatch) -> None:
        if self._target is None:
            output = self._opened.enter_context(self._messages.writer(self._path))
            self._target = self._opened.enter_context(writer(output, _REFUSED))
        self._target.write_batch(rows)

    def file(self) -> DataFile | None:
        """Closes and returns the file of refused rows. Returns None if no row was written."""
        self._opened.close()
        if self._target is None:
            return None
        return DataFile(self._path, self._messages.entry(self._path).size, self.rows, {})


def _copied(messages: Folder, files: Sequence[DataFile], table: Folder, queue: str) -> DataFile:
    path, rows = f"{uuid.uuid4()}.parquet", 0
    now = pa.scalar(int(time.time() * MICROS), layout.INSTANT)
    with table.writer(path) as output, writer(output, COLUMNS) as target:
        for piece in chain.from_iterable(read_spilled(messages, file) for file in files):
            first = [pa.repeat(pa.scalar(queue), len(piece)), pa.repeat(now, len(piece))]
            columns = [*first, *(piece[name] for name in _REFUSED.names)]
            target.write_table(pa.table(columns, schema=COLUMNS))
            rows += len(piece)
    return DataFile(path, table.entry(path).size, rows, {})
