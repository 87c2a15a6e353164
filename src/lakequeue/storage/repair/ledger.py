"""Repairs the ledger of a shard. Lost messages count as deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from lakequeue.model.deliveries import DELIVERY_ID
from lakequeue.shard.runs import Head, Run, RunMap
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LOG
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.inspection.ledger_rows import LedgerRows
from lakequeue.storage.inspection.message_files import Range, missing_ranges
from lakequeue.storage.inspection.shards import FoundShard
from lakequeue.storage.ledger import Ledger, create_ledger
from lakequeue.storage.repair.steps import RepairStep, commit_once, done, moved_aside


@attrs.frozen
class RepairedLedger:
    """Rows of a ledger after the repair. ``changed`` is True if the repair changes any rows."""

    head: Head
    runs: list[Run]
    history: list[Run]
    changed: bool


def repaired_ledger(
    found: FoundShard,
    base: LedgerRows,
    gone: Sequence[Range],
    low: int,
) -> RepairedLedger:
    """Returns the ledger ``base`` without the lost messages ``gone``, and without messages below ``low``."""
    runs, history, head = RunMap(base.runs), RunMap(base.history), base.head
    before = max(head.head_offset, low)
    for each in (runs, history):
        each.cut(0, low - 1)
    end = max([before, *(last + 1 for _, last in gone)])
    # The head cannot skip a lost offset, so fresh messages before the last lost offset become runs.
    if end > before:
        for run in _fresh(found, missing_ranges(gone, before, end)):
            runs.put(run)
    for first, last in gone:
        runs.cut(first, last)
        history.cut(first, last)
    rows, settled = list(runs), list(history)
    floor = min([end, *(run.first for run in (*rows[:1], *settled[:1]))])
    changed = (rows, settled, end) != (sorted(base.runs), sorted(base.history), head.head_offset)
    head = attrs.evolve(head, head_offset=end, floor_offset=floor)
    return RepairedLedger(head, rows, settled, changed)


def ledger_steps(engine: Engine, found: FoundShard, rows: RepairedLedger, why: str) -> list[RepairStep]:
    """Returns the steps that write ``rows`` as the ledger. Moves the old log aside first if it is unreadable."""
    log = found.receipts
    if log is not None and log.start is not None:
        version = log.last

        def apply() -> None:
            table = engine.open(found.receipts_path)
            done(table.version == version, table.path)
            ledger = Ledger(table)
            commit_once(table, ledger.rewrite(ledger.epoch, rows.head, rows.runs, rows.history))

        return [RepairStep(f"writes the ledger anew: {why}", apply)]
    folder = engine.store.folder(found.receipts_path)
    head = attrs.evolve(rows.head, epoch=0)  # A new table starts at epoch 0.

    def create() -> None:
        create_ledger(engine, found.receipts_path, head, rows.runs)
        if DELIVERY_ID in head.attributes:  # The numbers of its deliveries continue above those handed out.
            ledger = Ledger(engine.open(found.receipts_path))
            commit_once(ledger.table, ledger.rewrite(0, rows.head, rows.runs, rows.history))

    return [
        *(moved_aside(folder, file.name, "belongs to a log without a beginning") for file in folder.files(LOG)),
        RepairStep(f"makes a new ledger: {why}", create),
    ]


def new_ledger(attributes: Mapping[str, str], version: int, low: int, send_version: int, now: int) -> LedgerRows:
    """Returns the rows of a ledger for a shard from which no message was received."""
    head = Head(
        head_offset=low,
        floor_offset=low,
        closed=send_version >= layout.CLOSED,
        committed_at=now,
        attributes=dict(attributes),
        attributes_version=version,
    )
    return LedgerRows(0, head, [], [])


def _fresh(found: FoundShard, spans: Sequence[Range]) -> list[Run]:
    """Returns runs for messages that count as never received. Dead letters keep their receive count (DLQ-4)."""
    runs = RunMap([Run(*span) for span in spans])
    for each in found.files:
        if not len(each.offsets) or each.file.nulls.get("source_receive_count") == each.file.rows:
            continue
        assert found.state is not None
        folder = found.state.folder
        rows = folder.rows(each.file.name, folder.entry(each.file.name).size, ["source_receive_count"])
        counted = np.array(rows["source_receive_count"].fill_null(0).to_numpy())
        for offset, count in zip(each.offsets[counted > 0].tolist(), counted[counted > 0].tolist(), strict=True):
            if runs.at(offset) is not None:
                runs.put(Run(offset, offset, receive_count=count, receives_before=count))
    return list(runs)
