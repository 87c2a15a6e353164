"""Empties the rows of forgotten or erased messages. Rows stay, because readers find messages by row."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table
from lakequeue.storage.messages.read import log_files

Integers = npt.NDArray[np.int64]

_CLEARED = ("body", "message_attributes", "group_id", "dedup_id", "sender_id", "trace_header", "send_id")
"""Columns of a forgotten message that become NULL. Ids, instants and the columns of dead letters are kept."""
_ERASED = (*_CLEARED, "dead_letter_note")
"""Columns of an erased message that become NULL. Only the body becomes an empty text."""
_COUNTING = {"group_id", "dedup_id"}
"""Columns that are kept as long as another send may repeat the message's deduplication id."""


@attrs.frozen(eq=False)
class ForgottenMessages:
    """The messages that a committed ledger has forgotten for good. Counts from the first stored offset on."""

    epoch: int
    head: int
    """First offset that was never received. Messages from this offset on are not forgotten."""
    firsts: Integers
    lasts: Integers
    """Last offset of each run, in order. ``firsts`` has the first offsets. Runs of the history are included."""

    def count(self, first: int, last: int) -> int:
        """Returns the number of forgotten messages in a range of offsets."""
        last = min(last, self.head - 1)
        start = int(np.searchsorted(self.lasts, first))
        stop = int(np.searchsorted(self.firsts, last, side="right"))
        kept = np.minimum(self.lasts[start:stop], last) - np.maximum(self.firsts[start:stop], first) + 1
        return max(0, last - first + 1) - int(kept.sum())

    def empty(self, rows: pa.Table, sent_before: int | None) -> pa.Table:
        """Clears the content of forgotten messages. Keeps messages sent at ``sent_before`` or later."""
        offsets = pc.add(rows["base_offset"], rows["position"]).to_numpy()
        place = np.searchsorted(self.firsts, offsets, side="right") - 1
        kept = (place >= 0) & (np.append(self.lasts, -1)[place] >= offsets)
        gone = (offsets < self.head) & ~kept
        if sent_before is not None:
            gone &= rows["sent_at"].cast(pa.int64()).to_numpy() < sent_before
        if not gone.any():
            return rows
        chosen = pa.array(gone)
        for name in _CLEARED:
            rows = layout.with_column(rows, name, pc.if_else(chosen, pa.scalar(None, rows[name].type), rows[name]))
        return layout.with_column(rows, "emptied", pc.if_else(chosen, True, rows["emptied"]))


@attrs.frozen
class ErasedMessage:
    """The message to erase, by its id."""

    message_id: str
    keep_from: int
    """Instant in microseconds. Messages sent after this instant keep the columns of ``_COUNTING``."""

    def empty(self, rows: pa.Table) -> pa.Table:
        """Returns ``rows`` without the content of the erased message."""
        mine = pc.equal(rows["message_id"], self.message_id)
        old = pc.less_equal(rows["sent_at"].cast(pa.int64()), self.keep_from)
        for name in _ERASED:
            cleared = pc.and_(mine, old) if name in _COUNTING else mine
            empty = pa.scalar("" if name == "body" else None, rows[name].type)
            rows = layout.with_column(rows, name, pc.if_else(cleared, empty, rows[name]))
        return rows

    def is_due(self, table: Table, offset: int) -> bool:
        """True if the row at ``offset`` still has content that ``empty`` would clear."""
        file = next((file for file in log_files(table) if file.first <= offset <= file.last), None)
        if file is None:  # The segment was dropped.
            return False
        row = file.rows_of(table, ["sent_at", *_ERASED], offset, offset)
        full = {name for name in _ERASED if row[name][0].as_py()}
        if file.sent_at(row)[0].as_py() > self.keep_from:
            full -= _COUNTING
        return bool(full)
