"""Empties the rows of forgotten or erased messages. The rows stay, because readers find messages by row number."""

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
"""Columns that are cleared for a forgotten message. Ids, instants and data of dead letters are kept."""
_ERASED = (*_CLEARED, "dead_letter_note")
"""Columns that are cleared for an erased message. The body becomes an empty text, other columns become NULL."""
_COUNTING = {"group_id", "dedup_id"}
"""Columns that are kept while they are needed to refuse a send with the same deduplication id."""


@attrs.frozen(eq=False)
class ForgottenMessages:
    """Messages that the ledger has forgotten: all before ``head`` that are in no run."""

    epoch: int
    head: int
    """Offset before which all messages were received. Later messages are not forgotten."""
    firsts: Integers
    lasts: Integers
    """Last offset of each run, sorted. ``firsts`` has the first offsets. Runs of the history are included."""

    def count(self, first: int, last: int) -> int:
        """Returns the number of forgotten messages in a range of offsets."""
        last = min(last, self.head - 1)
        start = int(np.searchsorted(self.lasts, first))
        stop = int(np.searchsorted(self.firsts, last, side="right"))
        kept = np.minimum(self.lasts[start:stop], last) - np.maximum(self.firsts[start:stop], first) + 1
        return max(0, last - first + 1) - int(kept.sum())

    def empty(self, rows: pa.Table, sent_before: int | None) -> pa.Table:
        """Clears the forgotten messages among ``rows``, except messages sent at ``sent_before`` or later."""
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
    """Instant in microseconds. A message that was sent later keeps the columns in ``_COUNTING``."""

    def empty(self, rows: pa.Table) -> pa.Table:
        """Clears the erased message among ``rows``."""
        mine = pc.equal(rows["message_id"], self.message_id)
        old = pc.less_equal(rows["sent_at"].cast(pa.int64()), self.keep_from)
        for name in _ERASED:
            cleared = pc.and_(mine, old) if name in _COUNTING else mine
            empty = pa.scalar("" if name == "body" else None, rows[name].type)
            rows = layout.with_column(rows, name, pc.if_else(cleared, empty, rows[name]))
        return rows

    def is_due(self, table: Table, offset: int) -> bool:
        """True if the row at ``offset`` has content that ``empty`` must still clear."""
        file = next((file for file in log_files(table) if file.first <= offset <= file.last), None)
        if file is None:  # The segment was dropped.
            return False
        row = file.rows_of(table, ["sent_at", *_ERASED], offset, offset)
        full = {name for name in _ERASED if row[name][0].as_py()}
        if file.sent_at(row)[0].as_py() > self.keep_from:
            full -= _COUNTING
        return bool(full)
