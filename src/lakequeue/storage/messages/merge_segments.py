"""Keeps the log of a shard in few files: drops, merges and empties segments.

The floor is the lowest offset that is still needed. Segments before the floor are dropped. The last segment takes
appends. It is replaced only if it is before the floor, or if no message was sent for an hour. Each commit checks
and raises the version of the application id ``files``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.clock import MICROS
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table
from lakequeue.storage.engines.transaction import Answer, Change, Committed, Decision, Ids, transact
from lakequeue.storage.messages.emptied_rows import ForgottenMessages
from lakequeue.storage.messages.read import LogFile, log_files
from lakequeue.storage.messages.staged_sends import is_staged

TIERS = [256 * 1024, 2 * 1024 * 1024, 16 * 1024 * 1024]
"""Limits in bytes. If ``TIER_SEGMENTS`` adjacent segments are all within the same limit, they are merged."""
TIER_SEGMENTS = 8
JOINED_BYTES = 128 * 1024 * 1024
"""Maximum total bytes of segments that are merged into one, because they are held in memory."""
IDLE = 3600 * MICROS
"""Microseconds without a send after which the last segment counts as closed."""
CUT_BYTES = 256 * 1024
"""Minimum bytes of a segment. A smaller segment is not rewritten to drop or empty only some of its rows."""
CUT_ROWS = 100_000
"""Maximum rows of each file that is written when a part of a segment is rewritten."""

_FILE = layout.FILES["messages"]
_BUSY = "the log of the queue is too busy"

SegmentFiles = list[LogFile]


@attrs.frozen
class MergeCounts:
    """Numbers of segments that a pass has dropped, merged or cut."""

    dropped: int = 0
    """Number of segments that were dropped because all their messages were before the floor."""
    merged: int = 0
    """Number of segments that were merged into a larger segment."""
    cut: int = 0
    """Number of segments that were rewritten because some of their rows were dropped or emptied."""

    def __add__(self, other: MergeCounts) -> MergeCounts:
        return MergeCounts(self.dropped + other.dropped, self.merged + other.merged, self.cut + other.cut)


def merge_recent(
    table: Table,
    floor: int,
    drop_before: int | None = None,
    confirm: Callable[[], None] = lambda: None,
    least: int | None = None,
) -> None:
    """Drops closed segments before ``floor``, and merges the newest small segments. Called when a segment was
    closed.

    Args:
        floor: a floor that the ledger has committed. May be out of date.
        drop_before: instant in microseconds. Segments with messages sent at this instant or later stay (RET-11).
        confirm: called right before a commit. Raises an error if an older ledger was restored.
        least: minimum number of segments of the lowest tier to merge. None means ``TIER_SEGMENTS``.
    """
    _run(table, lambda seen: _next_step(seen, floor, drop_before, _newest_small, least), confirm)


def merge_all(
    table: Table,
    floor: int,
    now: int,
    drop_before: int | None = None,
    confirm: Callable[[], None] = lambda: None,
    announce: Callable[[int], int] = lambda known: 0,
    forgotten: Callable[[], ForgottenMessages] | None = None,
) -> MergeCounts:
    """Drops, merges, cuts and empties segments where that is due. Returns how many segments it changed.

    Args:
        floor, drop_before, confirm: as for ``merge_recent``.
        now: an instant in microseconds.
        announce: records in the ledger that bodies will be removed. Takes the number of the last removal, and
            returns the number of this removal.
        forgotten: returns the messages that the ledger has forgotten. None to empty no messages.
    """
    if table.commits_alone:  # Delta's own commits have no null count of bodies.
        forgotten = None
    lineage, done, announced = table.lineage, set[int](), 0
    known = forgotten and cache(forgotten)

    def step(seen: _LogSegments) -> _MergeStep | None:
        nonlocal announced, known
        if table.lineage is not lineage:
            return None  # The log was restored, so its messages may be others.
        found = (
            _next_step(seen, floor, drop_before, _any_small)
            or _foreign_step(table, seen)
            or _cut_step(seen, floor, drop_before)
            or (known and _empty_step(seen, now, drop_before, known, done))
            or _open_step(table, seen, floor, now, drop_before)
        )
        if known is None or forgotten is None or found is None or found.outcome.dropped:
            return found
        if not any(known().count(each[0].first, each[-1].last) > _emptied_in(each) for each in found.segments):
            return found
        last = table.transaction(layout.EMPTYING_ID)
        if not announced or announced != last:
            # Announced again if another emptying came first, because the ledger may drop this mark.
            announced, known = announce(last), cache(forgotten)
        return attrs.evolve(_emptied(found, known(), drop_before), mark=announced)

    return _run(table, step, confirm)


def rewrite(table: Table, offset: int, change: Callable[[pa.Table], pa.Table]) -> Change[MergeCounts]:
    """Returns the change that applies the function ``change`` to all rows of the segment at ``offset``."""
    seen = _snapshot(table)
    segments = [*seen.segments, *([seen.open_one] if seen.open_one else [])]
    segment = next(each for each in segments if each[0].first <= offset <= each[-1].last)

    def rows(table: Table) -> Iterator[pa.Table]:
        return map(change, _rows_of(segment)(table))

    step = _MergeStep([segment], rows, MergeCounts(), with_send=segment is seen.open_one)
    return _replacement(table, seen, step, lambda: None)


def put_in_order(table: Table, first: int, last: int) -> None:
    """Sorts the rows of every segment that other programs wrote, if the segment has an offset from ``first`` to
    ``last``. Raises RequestThrottled after too many lost races.
    """

    def decide(_: int) -> Decision[object]:
        found = (file for file in log_files(table) if file.last >= first and file.first <= last)
        foreign = next((file for file in found if _is_foreign(table, [file])), None)
        return Answer(None) if foreign is None else rewrite(table, foreign.first, lambda rows: rows)

    while isinstance(transact(table, decide, busy=_BUSY), Committed):
        pass


@attrs.frozen
class _LogSegments:
    """Segments of a log's snapshot, and the versions that its application ids have in the snapshot."""

    segments: list[SegmentFiles]
    ends: list[int]
    """For each closed segment, an instant after which none of its messages was sent."""
    open_one: SegmentFiles | None
    number: int
    """Number of past merges and removals of segments, from the application id ``files``."""
    send_version: int
    last_sent_at: int


@attrs.frozen
class _MergeStep:
    """Segments, and the rows by which a commit replaces them."""

    segments: list[SegmentFiles]
    rows: Callable[[Table], Iterable[pa.Table]]
    outcome: MergeCounts
    with_send: bool = False
    """True if the commit replaces the last segment. No send may then be committed at the same time."""
    epoch: int = 0
    """Epoch of the ledger that lists forgotten messages. The step empties their rows. 0 if no rows are emptied."""
    mark: int = 0
    """Random number that identifies this removal of bodies; see ``EMPTYING_ID``. 0 if no rows are emptied."""


def _run(
    table: Table, next_step: Callable[[_LogSegments], _MergeStep | None], confirm: Callable[[], None]
) -> MergeCounts:
    def decide(lost: int) -> Decision[MergeCounts]:
        seen = _snapshot(table)
        step = None if lost else next_step(seen)  # Another process merges, and goes on.
        return Answer(MergeCounts()) if step is None else _replacement(table, seen, step, confirm)

    done = MergeCounts()
    while isinstance(step := transact(table, decide, busy=_BUSY), Committed):
        done += step.value
    return done


def _snapshot(table: Table) -> _LogSegments:
    files = log_files(table)
    segments = [list(group) for _, group in groupby(files, key=lambda file: file.base)]
    ends = [segment[0].opened_at for segment in segments[1:]]
    return _LogSegments(
        segments[:-1],
        ends,
        segments[-1] if segments else None,
        table.transaction(layout.FILES_ID),
        table.transaction(layout.SEND_ID),
        table.transaction(layout.CLOCK_ID),
    )


def _next_step(
    seen: _LogSegments,
    floor: int,
    drop_before: int | None,
    small: Callable[[list[SegmentFiles], int], list[SegmentFiles]],
    least: int | None = None,
) -> _MergeStep | None:
    gone = [
        segment
        for segment, end in zip(seen.segments, seen.ends, strict=True)
        if segment[-1].last < floor and (drop_before is None or end < drop_before)
    ]
    if gone:
        return _drop(gone)
    for segment in seen.segments:
        if len(segment) > 1:
            return _merge([segment])
    for tier in TIERS:
        found = small(seen.segments, tier)
        if len(found) >= (least if least and tier == TIERS[0] else TIER_SEGMENTS):
            return _merge(found)
    return None


def _newest_small(segments: list[SegmentFiles], limit: int) -> list[SegmentFiles]:
    """Returns the segments after the last segment that is larger than ``limit`` or that a bulk send wrote."""
    found: list[SegmentFiles] = []
    for segment in reversed(segments):
        bulk = segment[0].bulk and not is_staged(segment[0].file.name)
        if bulk or _size(segment) > limit or sum(map(_size, found)) + _size(segment) > JOINED_BYTES:
            break
        found.insert(0, segment)
    return found


def _any_small(segments: list[SegmentFiles], limit: int) -> list[SegmentFiles]:
    """Returns the first ``TIER_SEGMENTS`` or more adjacent segments of at most ``limit`` bytes each, or []."""
    for is_small, group in groupby(segments, key=lambda segment: _size(segment) <= limit):
        found: list[SegmentFiles] = []
        for segment in group:
            if sum(map(_size, found)) + _size(segment) > JOINED_BYTES:
                break
            found.append(segment)
        if is_small and len(found) >= TIER_SEGMENTS:
            return found
    return []


def _drop(segments: list[SegmentFiles]) -> _MergeStep:
    return _MergeStep(segments, lambda table: [], MergeCounts(dropped=len(segments)))


def _merge(segments: list[SegmentFiles]) -> _MergeStep:
    return _MergeStep(segments, lambda table: [_merged(table, segments)], MergeCounts(merged=len(segments)))


def _open_step(
    table: Table, seen: _LogSegments, floor: int, now: int, drop_before: int | None
) -> _MergeStep | None:
    """Returns a step that drops or rewrites the last segment. Returns None if it must stay as it is."""
    segment, last_sent_at = seen.open_one, seen.last_sent_at
    if segment is None:
        return None
    if segment[-1].last < floor and (drop_before is None or last_sent_at < drop_before):
        return attrs.evolve(_drop([segment]), with_send=True)
    if now - last_sent_at > IDLE:
        if len(segment) > 1:
            return attrs.evolve(_merge([segment]), with_send=True)
        if _is_foreign(table, segment):
            return _MergeStep([segment], _rows_of(segment), MergeCounts(merged=1), with_send=True)
    return None


def _is_foreign(table: Table, segment: SegmentFiles) -> bool:
    return not table.commits_alone and any(file.is_foreign for file in segment)


def _foreign_step(table: Table, seen: _LogSegments) -> _MergeStep | None:
    segment = next((each for each in seen.segments if _is_foreign(table, each)), None)
    return None if segment is None else _MergeStep([segment], _rows_of(segment), MergeCounts(merged=1))


def _cut_step(seen: _LogSegments, floor: int, drop_before: int | None) -> _MergeStep | None:
    """Returns a step that drops the rows before the floor from a segment, if at least half of the segment's rows
    are before the floor. Returns None if there is no such segment.
    """
    for segment, end in zip(seen.segments, seen.ends, strict=True):
        first, last = segment[0].first, segment[-1].last
        worth = _size(segment) >= CUT_BYTES and floor - first >= (last - first + 1) / 2
        if len(segment) == 1 and first < floor <= last and worth and (drop_before is None or end < drop_before):
            return _MergeStep([segment], FilePieces(segment[0], floor), MergeCounts(cut=1))
    return None


def _empty_step(
    seen: _LogSegments,
    now: int,
    drop_before: int | None,
    forgotten: Callable[[], ForgottenMessages],
    done: set[int],
) -> _MergeStep | None:
    """Returns a step that empties rows of a segment, if at least half of its remaining rows are to be emptied.
    None if there is no such segment. Skips the segments in ``done``.
    """
    idle = [(seen.open_one, seen.last_sent_at)] if seen.open_one and now - seen.last_sent_at > IDLE else []
    for segment, end in [*zip(seen.segments, seen.ends, strict=True), *idle]:
        first, last = segment[0].first, segment[-1].last
        if _size(segment) < CUT_BYTES or first in done or (drop_before is not None and end >= drop_before):
            continue
        before = _emptied_in(segment)
        count = forgotten().count(first, last) - before
        if count > 0 and 2 * count >= last - first + 1 - before:
            done.add(first)
            is_open = segment is seen.open_one
            return _MergeStep([segment], _rows_of(segment), MergeCounts(cut=1), with_send=is_open)
    return None


def _emptied_in(segment: SegmentFiles) -> int:
    return sum(file.emptied for file in segment)


def _emptied(step: _MergeStep, forgotten: ForgottenMessages, drop_before: int | None) -> _MergeStep:

    def rows(table: Table) -> Iterator[pa.Table]:
        return (forgotten.empty(each, drop_before) for each in step.rows(table))

    return attrs.evolve(step, rows=rows, epoch=forgotten.epoch)


def _rows_of(segment: SegmentFiles) -> Callable[[Table], Iterable[pa.Table]]:
    """Returns a function that reads a segment's rows. Rows of a bulk send are read in pieces to save memory."""
    if segment[0].bulk:
        return lambda table: (rows for file in segment for rows in FilePieces(file, file.first)(table))
    return lambda table: [_merged(table, [segment])]


@attrs.frozen
class FilePieces:
    """Function that yields a file's rows from offset ``start`` on, in pieces. Each piece becomes a segment."""

    file: LogFile
    start: int

    def __call__(self, table: Table) -> Iterator[pa.Table]:
        # Its rows may be in any order.
        whole = self.file.rows_of(table, _FILE.names) if self.file.is_foreign else None
        for first in range(self.start, self.file.last + 1, CUT_ROWS):
            last = min(self.file.last, first + CUT_ROWS - 1)
            if whole is None:
                rows = self.file.rows_of(table, _FILE.names, first, last)
            else:
                rows = whole.slice(first - self.file.first, last - first + 1)
            rows = _stamped(rows, self.file)
            # Each piece becomes a segment, opened when its first message was sent.
            opened_at = rows["sent_at"].cast(pa.int64())[0].as_py()
            yield _segment_rows(rows, first, first, opened_at)


def _size(segment: SegmentFiles) -> int:
    return sum(file.size for file in segment)


def _merged(table: Table, segments: Sequence[SegmentFiles]) -> pa.Table:
    files = [file for segment in segments for file in segment]
    parts = table.folder.for_each(lambda file: file.rows_of(table, _FILE.names), files)
    stamped = [_stamped(part, file) for part, file in zip(parts, files, strict=True)]
    rows = pa.concat_tables(stamped)
    if sum(map(_size, segments)) <= TIERS[1]:
        rows = rows.combine_chunks()  # writing 64 chunks takes twice as long as this copy and writing one
    return _segment_rows(rows, files[0].first, files[0].base, files[0].opened_at)


def _stamped(rows: pa.Table, file: LogFile) -> pa.Table:
    """Fills in the send times of a bulk send, which are the opening time of the segment."""
    rows = layout.message_rows(rows)
    if not file.bulk:
        return rows
    sent_at = pc.fill_null(rows["sent_at"], pa.scalar(file.opened_at, layout.INSTANT))
    return layout.with_column(rows, "sent_at", sent_at)


def _segment_rows(rows: pa.Table, first: int, base: int, opened_at: int) -> pa.Table:
    count = len(rows)
    # Offsets are dense, so rows are numbered consecutively.
    rows = layout.with_column(rows, "position", pa.array(range(first - base, first - base + count), pa.int64()))
    partition = [
        pa.array([base] * count, pa.int64()),
        pa.array([opened_at] * count, layout.INSTANT),
    ]
    return pa.Table.from_arrays([*partition, *rows.columns], schema=layout.MESSAGES)


def _replacement(
    table: Table, seen: _LogSegments, step: _MergeStep, confirm: Callable[[], None]
) -> Change[MergeCounts]:
    bases = [segment[0].base for segment in step.segments]
    fence = {layout.FILES_ID: seen.number}
    ids = {layout.FILES_ID: seen.number + 1}
    if step.epoch:
        ids[layout.FORGOTTEN_ID] = max(step.epoch, table.transaction(layout.FORGOTTEN_ID))
        if step.mark:
            ids[layout.EMPTYING_ID] = step.mark
    if step.with_send:
        fence[layout.SEND_ID] = ids[layout.SEND_ID] = seen.send_version
    partition = {"base_offset": bases}

    def rows() -> Iterator[pa.Table]:
        yield from step.rows(table)
        confirm()

    def write(ids: Ids, token: str) -> None:
        table.replace(partition, rows(), ids, token)

    return Change(fence, ids, write, step.outcome, counts={"merge_segments": len(bases)})
