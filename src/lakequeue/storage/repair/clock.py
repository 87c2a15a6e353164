"""Bringing the clock of a shard back that a process with a wrong one set ahead (DUR-83)."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import from_micros
from lakequeue.shard.admin import set_back
from lakequeue.storage import layout
from lakequeue.storage.engines.commit import commit
from lakequeue.storage.engines.point import Table
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.merge_segments import rewrite
from lakequeue.storage.messages.read import log_files
from lakequeue.storage.repair.steps import Step, done

_INSTANTS = ("opened_at", "sent_at", "first_sent_at")


def clock_steps(messages: Table, receipts: Table, now: int) -> Iterator[Step]:
    """What brings log and ledger of a shard back to an instant; nothing if neither is ahead of it."""
    clock, ledger = messages.transaction(layout.CLOCK_ID), Ledger(receipts)
    head, runs, history = ledger.load()
    if clock > now:
        sent = sum(count for _, count in _sent_after(messages, now))
        text = f"sets the log's clock back from {from_micros(clock)}; {sent} messages count as sent now"
        yield Step(text, lambda: _set_log_back(messages, now))
    if head.committed_at > now:
        back, mended = set_back(head, runs, now)
        hidden = sum(run.size for run in runs if (run.visible_at or 0) > now)
        hidden -= sum(run.size for run in mended if (run.visible_at or 0) > now)
        new = attrs.evolve(back, epoch=head.epoch + 1)
        text = f"sets the ledger's clock back from {from_micros(head.committed_at)}"
        yield Step(
            f"{text}; {hidden} messages are visible now",
            lambda: done(ledger.rewrite(head.epoch, new, mended, history), receipts.path),
        )


def _sent_after(messages: Table, now: int) -> Iterator[tuple[int, int]]:
    """Files with messages sent after an instant, the last one first: its first offset, and how many."""
    for file in reversed(log_files(messages)):
        [rows] = messages.read([file.file], ["sent_at"])
        count = pc.sum(pc.greater(file.sent_at(rows), now)).as_py() or 0
        if not count and file.opened_at <= now:
            return
        yield file.first, count


def _set_log_back(messages: Table, now: int) -> None:
    def earlier(rows: pa.Table) -> pa.Table:
        for name in _INSTANTS:
            instants = pc.min_element_wise(rows[name].cast(pa.int64()), now, skip_nulls=False)
            rows = layout.with_column(rows, name, instants.cast(layout.INSTANT))
        return rows

    # the first one first, so that instants never decrease with the offset
    for first in sorted(first for first, _ in _sent_after(messages, now)):
        done(rewrite(messages, first, earlier), messages.path)
    fence = {layout.SEND_ID: messages.transaction(layout.SEND_ID)}
    ids = {**fence, layout.CLOCK_ID: now}
    done(commit(messages, fence, lambda token: messages.add([], ids, token)), messages.path)
