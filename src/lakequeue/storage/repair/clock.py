"""Sets back instants that a process stored while its clock was ahead (DUR-83)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import from_micros
from lakequeue.shard.admin import is_ahead, set_back
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Change
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.merge_segments import rewrite
from lakequeue.storage.messages.read import LogFile, log_files
from lakequeue.storage.repair.steps import RepairStep, commit_once

_OF_MESSAGES, _OF_QUEUES = (
    [field.name for field in schema if field.type == layout.INSTANT] for schema in (layout.MESSAGES, layout.QUEUES)
)
_OF_TASKS = ("started", "written")
"""Names of the fields of a requested redrive that hold instants, in milliseconds."""


def clock_steps(messages: Table, receipts: Table, now: int) -> Iterator[RepairStep]:
    """Yields the steps that set a shard's log and ledger back to ``now``."""
    clock, ledger, ahead = messages.transaction(layout.CLOCK_ID), Ledger(receipts), _files_ahead(messages, now)
    head, runs, history = ledger.load()
    if clock > now or ahead:
        sent = sum(count for _, count in ahead)
        since = f" from {from_micros(clock)}" if clock > now else ""
        text = f"sets the log's clock back{since}; {sent} messages count as sent now"
        yield RepairStep(text, lambda: _set_log_back(messages, [file for file, _ in ahead], now))
    if is_ahead(head, [*runs, *history], now):
        back, repaired, settled = set_back(head, runs, history, now)
        hidden = sum(run.size for run in runs if (run.visible_at or 0) > now)
        hidden -= sum(run.size for run in repaired if (run.visible_at or 0) > now)
        new, ids = attrs.evolve(back, epoch=head.epoch + 1), {layout.PAUSE_ID: 0}
        text = f"sets the ledger's clock back from {from_micros(head.committed_at)}"
        yield RepairStep(
            f"{text}; {hidden} messages are visible now",
            lambda: commit_once(receipts, ledger.rewrite(head.epoch, new, repaired, settled, ids)),
        )


def row_set_back(row: QueueRow, now: int) -> QueueRow:
    """Returns a row of the catalog in which instants after ``now`` are replaced by ``now``."""
    known = {name: getattr(row, name) for name in _OF_QUEUES}
    earlier = {name: min(instant, now) for name, instant in known.items() if instant is not None}
    return attrs.evolve(row, **earlier, move_tasks=_tasks_set_back(row.move_tasks, now // 1000))


def _tasks_set_back(text: str | None, now: int) -> str | None:
    try:
        tasks = json.loads(text or "[]")
        earlier = [task | {name: min(task[name], now) for name in _OF_TASKS} for task in tasks]
    except (ValueError, TypeError, KeyError):  # The field is not a list of tasks. The server replaces it.
        return text
    return text if earlier == tasks else json.dumps(earlier)


def _files_ahead(messages: Table, now: int) -> list[tuple[LogFile, int]]:
    """Returns the files that have instants after ``now``, each with the number of messages sent after ``now``."""
    found = []
    for file in log_files(messages):
        names = [name for name in _OF_MESSAGES if name not in layout.MESSAGE_PARTITIONS]
        [rows] = messages.read([file.file], names)
        instants = [rows[name].cast(pa.int64()) for name in names]
        newest = max((pc.max(column).as_py() or 0 for column in instants), default=0)
        if max(newest, file.opened_at) > now:
            found.append((file, pc.sum(pc.greater(file.sent_at(rows), now)).as_py() or 0))
    return found


def _set_log_back(messages: Table, files: Sequence[LogFile], now: int) -> None:
    def earlier(rows: pa.Table) -> pa.Table:
        for name in _OF_MESSAGES:
            instants = pc.min_element_wise(rows[name].cast(pa.int64()), now, skip_nulls=False)
            rows = layout.with_column(rows, name, instants.cast(layout.INSTANT))
        return rows

    # Starts with the lowest offset, so that send times never decrease with the offset.
    for first in sorted(file.first for file in files):
        commit_once(messages, rewrite(messages, first, earlier))
    fence = {layout.SEND_ID: messages.transaction(layout.SEND_ID)}
    ids = {**fence, layout.CLOCK_ID: min(messages.transaction(layout.CLOCK_ID), now), layout.PAUSE_ID: 0}
    commit_once(messages, Change(fence, ids, partial(messages.add, []), None))
