"""Finds data files whose log entries are unreadable. The files are complete, as a log entry is written last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.model.clock import MICROS, from_micros, to_micros
from lakequeue.shard.spans import SpanSet
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile, data_files
from lakequeue.storage.folder import Folder
from lakequeue.storage.inspection.found_log import FoundLog
from lakequeue.storage.inspection.message_files import FoundFile, Range
from lakequeue.storage.messages.read import Integers
from lakequeue.storage.messages.staged_sends import is_staged


@attrs.frozen
class _Candidate:
    name: str
    size: int
    positions: Integers = attrs.field(eq=False)
    sent_at: Integers = attrs.field(eq=False)
    ids: frozenset[str]

    def at(self, base: int, opened_at: int) -> FoundFile:
        partition = {"base_offset": base, "opened_at": from_micros(opened_at)}
        file = LiveFile(self.name, self.name, self.size, len(self.positions), partition, {}, {}, {})
        sent = int(self.sent_at[0]), int(self.sent_at[-1])
        return FoundFile(file, self.positions + base, "is named by no entry", named=False, sent=sent)


def rejoined(
    log: FoundLog, kept: Sequence[FoundFile], missing: Sequence[Range], end: int, clock: int
) -> list[FoundFile]:
    """Returns files that no log entry names, but whose place in the log is certain: a gap, or the log's end.

    A place is certain if three conditions are met. The positions, send times and opening time of the file continue
    those of the files next to the place. No other file fits there. The log has none of the file's messages yet.

    Args:
        kept: the log's sound files.
        missing: offsets that are in no sound file.
        end: the log's end offset, used only if there is no sound file.
        clock: instant of the log's last known send, in microseconds.
    """
    end = max((each.last + 1 for each in kept), default=end)
    places: list[tuple[int, int | None]] = [*(each for each in missing if each[1] < end), (end, None)]
    since = min(_since(kept, first, clock) for first, _ in places)
    candidates = [each for each in _candidates(log, clock) if since <= each.sent_at[0]]
    # An append that lost a race leaves a file, too. Its messages were appended again.
    known = _ids_since(log.folder, kept, since) if candidates else set()
    candidates = [each for each in candidates if known.isdisjoint(each.ids)]
    # Drops files whose messages a later file holds, too: a retry wrote them again.
    candidates = [
        each
        for number, each in enumerate(candidates)
        if not any(each.ids <= later.ids for later in candidates[number + 1 :])
    ]
    found: list[FoundFile] = []
    for first, last in places:
        while (fitting := _fitting(candidates, [*kept, *found], first, last, clock)) is not None:
            candidate, file = fitting
            candidates.remove(candidate)
            found.append(file)
            first = file.last + 1
    return found


def _fitting(
    candidates: Sequence[_Candidate],
    files: Sequence[FoundFile],
    first: int,
    last: int | None,
    clock: int,
) -> tuple[_Candidate, FoundFile] | None:
    """Returns the file that fits at offset ``first``. Returns None if no file or several files fit."""
    before = max((each for each in files if each.last < first), key=_last, default=None)
    after = min((each for each in files if each.first > first), key=_last, default=None)
    since = _since(files, first, clock)
    until = None if after is None or after.sent is None else after.sent[0]
    found = [
        (each, each.at(*segment))
        for each in candidates
        if (segment := _segment(each, before, after, first)) is not None
        and since <= each.sent_at[0]
        and (until is None or each.sent_at[-1] <= until)
        and (last is None or first + len(each.positions) - 1 <= last)
    ]
    return found[0] if len(found) == 1 else None


def ids_of(log: FoundLog, messages: Sequence[Range]) -> dict[int, str]:
    """Returns message ids by offset, for ascending ranges of offsets. Reads live and removed files."""
    wanted = SpanSet(messages)  # The statistics of a damaged file may name any offset.
    if not wanted.size:
        return {}
    older = {file.path: file for entry in log.entries.values() for file in entry.added}
    older |= {path: file for each in log.checkpoints.values() for path, file in each.live.items()}
    ids: dict[int, str] = {}
    for file in older.values():
        base = int(file.partition.get("base_offset") or 0)
        low, high = file.minimum.get("position", 0), file.maximum.get("position", -1)
        if not wanted.within(base + low, base + high):
            continue
        try:
            rows = log.folder.rows(file.name, file.size, ["position", "message_id"])
        except (FileNotFoundError, DamagedTable):
            continue
        for position, message_id in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if base + position in wanted and message_id is not None:
                ids[base + position] = message_id
    return dict(sorted(ids.items()))


def _candidates(log: FoundLog, clock: int) -> Iterator[_Candidate]:
    """Yields the data files that no readable log entry names, oldest first. Leaves out files of bulk sends."""
    named = log.named
    for each in data_files(log.folder):
        if each.name.startswith("bulk/") or each.name in named:
            continue
        try:
            rows = log.folder.rows(each.name, each.size, ["position", "sent_at", "message_id"])
        except (FileNotFoundError, DamagedTable):
            continue
        if is_staged(each.name):
            at = pa.array([max(clock, round(each.modified * MICROS))] * len(rows)).cast(layout.INSTANT)
            rows = layout.with_column(rows, "sent_at", at)
        if not len(rows) or any(column.null_count for column in rows.columns):
            continue
        positions = rows["position"].to_numpy()
        if np.array_equal(positions, np.arange(positions[0], positions[0] + len(rows))):
            sent = rows["sent_at"].cast("int64").to_numpy()
            yield _Candidate(each.name, each.size, positions, sent, frozenset(rows["message_id"].to_pylist()))


def _segment(
    candidate: _Candidate, before: FoundFile | None, after: FoundFile | None, first: int
) -> tuple[int, int] | None:
    """Returns the base offset and the opening time of the segment to which the file belongs if its first message
    is at offset ``first``. Returns None if the file does not fit there.
    """
    segment = None
    if candidate.positions[0] == 0:
        segment = first, int(candidate.sent_at[0])
    elif before is not None and before.file.partition["base_offset"] + candidate.positions[0] == first:
        segment = _segment_of(before)
    if after is not None and _segment_of(after)[0] < first + len(candidate.positions):
        # The lost file belongs to this segment, too. A staged send has a segment of its own.
        return segment if segment == _segment_of(after) and not is_staged(candidate.name) else None
    return segment


def _segment_of(found: FoundFile) -> tuple[int, int]:
    return int(found.file.partition["base_offset"]), to_micros(found.file.partition["opened_at"])


def _ids_since(folder: Folder, files: Sequence[FoundFile], since: int) -> set[str]:
    """Returns the ids of messages sent since an instant, and maybe of some earlier messages."""
    found: set[str] = set()
    following = None
    for each in reversed(files):  # A segment has no messages sent after the next segment was opened.
        if following is not None and _segment_of(each)[0] != following[0] and following[1] < since:
            break
        found.update(folder.rows(each.file.name, each.file.size, ["message_id"])["message_id"].to_pylist())
        following = _segment_of(each)
    return found


def _since(files: Sequence[FoundFile], first: int, clock: int) -> int:
    """Returns the send time of the message before ``first``. If unknown, returns the earliest possible time."""
    before = max((each for each in files if each.last < first), key=_last, default=None)
    if before is not None and before.sent is not None:
        return before.sent[1]
    return 0 if files else clock


def _last(found: FoundFile) -> int:
    return found.last
