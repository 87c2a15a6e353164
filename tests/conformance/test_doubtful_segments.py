"""Files that contradict each other about their segment are repaired, and a repair writes none (DUR-31, DUR-34)."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from conformance.damage import DAMAGE, Victim, empty, entries, victim_of_seven
from insides import compact, engine_of
from lakequeue import LakeQueueError, SendEntry
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.validation import validate_entry
from lakequeue.operations import repair as repairing
from lakequeue.storage.inspection import unnamed_files
from lakequeue.storage.messages import merge_segments
from lakequeue.storage.messages.append import Appender, NewMessage
from lakequeue.storage.messages.merge_segments import FilePieces
from lakequeue.storage.messages.read import LogReader
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace

DOUBTFUL = [kind for kind in DAMAGE if kind.startswith(("segment", "message older"))]


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    return victim_of_seven(tmp_path, clock)


def times(victim: Victim) -> list[int]:
    """Send times by offset; each instant is found where the first of them is."""
    log = LogReader(engine_of(victim.lake()).open(str(victim.messages))).log
    found = [log.sent_at(offset) for offset in range(log.end)]
    for instant in {sent + by for sent in found for by in (-1, 0, 1)}:
        first = next((offset for offset, sent in enumerate(found) if sent >= instant), log.end)
        assert log.first_sent_at_or_after(instant) == first
    return found


def segments_agree(victim: Victim, kind: str = "message older than the one before") -> None:
    """Retention and rewinds find messages by the openings of segments."""
    before = times(victim)
    DAMAGE[kind](victim)
    assert {each.repair for each in victim.lake().check()} == {"is written anew as a segment of its own"}
    [report] = victim.lake().repair(apply=True)
    assert (report.lost, report.again, report.unknown) == ([], [], [])
    assert victim.lake().check() == victim.lake().repair() == []
    assert times(victim) == before, "none is older than the one before it, and no other time changed"


@pytest.mark.spec("DUR-31")
@pytest.mark.parametrize("kind", DOUBTFUL)
def test_after_a_repair_send_times_and_openings_agree(victim: Victim, kind: str) -> None:
    segments_agree(victim, kind)


def a_staged_send_stays_apart(victim: Victim) -> None:
    """The first message of a segment is lost. A send that nobody committed comes behind all others instead."""
    victim.queue.send_arrow(pa.table({"body": ["bulk"]}))
    victim.send("lost")
    victim.clock.advance(1)
    victim.send("later")
    table = engine_of(victim.lake()).open(str(victim.messages))
    [lost, _] = [file for file in table.files() if file.partition["base_offset"] == 8]
    [row] = victim.lake()._runtime.rows()
    entry = validate_entry(SendEntry("staged"), QueueAttributes.from_wire(row.attributes))
    staged = Appender(table).stage([NewMessage("staged", entry)], 0, alone=False)
    os.utime(victim.messages / staged.file.path, (0, 0))  # the clock of this test is behind the disk's
    (victim.messages / lost.path).unlink()
    empty(entries(victim.messages)[-2])
    [report] = victim.lake().repair(apply=True, force=True)
    assert report.lost == [(8, 8)]
    assert victim.lake().check() == []
    times(victim)
    victim.clock.advance(60)
    assert victim.drain() == [*"123456", "bulk", "later", "staged"]


@pytest.mark.spec("DUR-34")
def test_a_staged_send_takes_no_place_amid_a_segment(victim: Victim) -> None:
    a_staged_send_stays_apart(victim)


def what_a_repair_wrote_stays(victim: Victim) -> None:
    """A repair fills a place behind a bulk send; then most of that segment is deleted, and is emptied."""
    victim.queue.send_arrow(pa.table({"body": ["a", "b", "c"]}))
    victim.send("lost")
    table = engine_of(victim.lake()).open(str(victim.messages))
    (victim.messages / max(table.files(), key=lambda file: file.partition["base_offset"]).path).unlink()
    assert victim.lake().repair(apply=True)[0].lost == [(10, 10)]
    victim.clock.advance(60)
    queue = victim.queue
    queue.delete_batch(queue.receive(8)).raise_for_failures()
    victim.clock.advance(3601)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_segments, "CUT_BYTES", 0)
        compact(victim.lake())
    assert victim.lake().check() == []
    victim.send("new")
    assert victim.drain() == ["c", "new"]


@pytest.mark.spec("DUR-31")
def test_a_segment_of_a_bulk_send_keeps_what_a_repair_wrote(victim: Victim) -> None:
    what_a_repair_wrote_stays(victim)


_SEGMENT = unnamed_files._segment
MUTATIONS = [
    Mutation(
        "segments in doubt are left to a backup",
        replace(repairing, "segments_steps", lambda *_: []),
        {segments_agree: "DUR-31"},
    ),
    Mutation(
        "a lost send may be any that has the right length",
        replace(
            unnamed_files,
            "_segment",
            lambda candidate, before, after, first: _SEGMENT(candidate, before, None, first),
        ),
        {a_staged_send_stays_apart: "DUR-34"},
    ),
    Mutation(
        "of a segment that a bulk send began, only that is rewritten",
        replace(merge_segments, "_rows_of", lambda segment: FilePieces(segment[0], segment[0].first)),
        {what_a_repair_wrote_stays: "DUR-31"},
    ),
]


@each_case(MUTATIONS)
def test_the_segments_hold_and_fall_with_their_safeguard(case: Case, tmp_path: Path) -> None:
    def prepare(_: Patch) -> tuple[Victim]:
        return (victim_of_seven(tmp_path, ManualClock()),)

    case.run(prepare, (LakeQueueError, ValueError, pytest.fail.Exception))
