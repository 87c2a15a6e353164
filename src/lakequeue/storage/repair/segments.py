"""Repairs segments whose files contradict each other, for example after a send to a restored log."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa

from lakequeue.storage import layout
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.engines.transaction import Change, Ids
from lakequeue.storage.inspection.message_files import FoundFile, find_files, kept_files
from lakequeue.storage.inspection.send_times import misdated
from lakequeue.storage.inspection.shards import FoundShard, doubts
from lakequeue.storage.messages.merge_segments import FilePieces
from lakequeue.storage.messages.read import log_files
from lakequeue.storage.repair.steps import RepairStep, commit_once, done


def segments_steps(engine: Engine, found: FoundShard, version: int) -> list[RepairStep]:
    """Returns a step that repairs segments whose send times or opening times are impossible, if there are any.

    Each file of these segments becomes a segment of its own. Earlier steps must have removed repeated offsets.
    """
    openings = {tuple(map(each.file.partition.get, layout.MESSAGE_PARTITIONS)) for each in found.files}
    wrong = [each.file.name for each, _ in misdated(kept_files(found.files))]
    if (not wrong and len(openings) == len({base for base, _ in openings})) or any(doubts(found)):
        return []

    def apply() -> None:
        table = engine.open(found.messages_path)
        done(table.version == version, table.path)
        files = find_files(table.folder, table.files())
        bases = {each.file.partition["base_offset"] for each, _ in misdated(files)}
        if not bases:
            return
        number, send = table.transaction(layout.FILES_ID), table.transaction(layout.SEND_ID)
        fence = {layout.FILES_ID: number, layout.SEND_ID: send}
        removed = [each for each in table.files() if each.partition["base_offset"] in bases]

        def write(ids: Ids, token: str) -> None:
            table.exchange(removed, _apart(table, files, bases), ids, token)

        commit_once(table, Change(fence, fence | {layout.FILES_ID: number + 1}, write, None))

    named = f": {', '.join(wrong)}" if wrong else ""
    return [RepairStep(f"opens a segment for each file whose segment is in doubt{named}", apply)]


def _apart(table: Table, files: Sequence[FoundFile], bases: Collection[int]) -> Iterator[pa.Table]:
    """Yields a table of rows for each new segment. Changes send times so that they never decrease."""
    newest_of = {each.file.path: each.sent[1] for each in files if each.sent is not None}
    newest = 0
    for file in log_files(table):
        for rows in FilePieces(file, file.first)(table) if file.base in bases else ():
            # A sender that knew the messages before would have given these the same times.
            sent = np.maximum.accumulate(np.maximum(file.sent_at(rows).to_numpy(), newest))
            rows = layout.with_column(rows, "sent_at", pa.array(sent).cast(layout.INSTANT))
            # The first send time is a safe opening: no message before is newer, and none of the segment is older.
            # Windows, retention and rewinds skip segments by that alone.
            opened = pa.repeat(int(sent[0]), len(rows)).cast(layout.INSTANT)
            yield layout.with_column(rows, "opened_at", opened)
            newest = int(sent[-1])
        newest = max(newest, newest_of.get(file.file.path, 0))
