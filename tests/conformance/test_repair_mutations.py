"""Mutations of a repair: what it promises, and the safeguards that this needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conformance import test_repair as repairs
from conformance.damage import Victim, empty, entries, live, victim_of_seven
from conformance.test_repair import Killed, after, killed_before
from lakequeue import LakeQueueError
from lakequeue.operations import repair as repairing
from lakequeue.storage.inspection.shards import FoundShard
from lakequeue.storage.repair.logs import log_steps
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, shown_by


def nothing_is_committed_before_the_content_is_mended(victim: Victim) -> None:
    """Else its epoch would be given twice, and a process that has seen the lost one would not see the change."""
    empty(entries(victim.receipts)[-1])
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(repairing, "_finished", killed_before(1))
        victim.lake().repair(apply=True, force=True)
    with pytest.raises(LakeQueueError):
        victim.receive()
        pytest.fail("a receive was committed", pytrace=False)


def a_send_that_came_again_is_not_taken_for_a_torn_one(victim: Victim) -> None:
    """The file of a merged segment may lie there long after its entry was trimmed."""
    first = live(victim.messages)[0]
    shutil.copy(first, first.with_name("merged.parquet"))
    empty(entries(victim.messages)[-1])
    victim.lake().repair(apply=True, force=True)
    assert after(victim) == [*"123456", "new"]


def a_message_without_a_body_is_never_received(victim: Victim) -> None:
    before = victim.lake().queue(victim.name).counts()
    live(victim.messages)[4].unlink()
    victim.lake().repair(apply=True)
    left = victim.lake().queue(victim.name).counts()
    assert left.visible + left.in_flight == before.visible + before.in_flight - 1
    assert after(victim) == [*"12356", "new"]


MUTATIONS = [
    Mutation(
        "no barrier",
        replace(repairing, "log_steps", lambda undone, _: log_steps(undone, {})),
        {nothing_is_committed_before_the_content_is_mended: "DUR-33"},
    ),
    Mutation(
        "take any file that fits",
        replace("lakequeue.storage.inspection.unnamed_files._ids_since", lambda *_: set()),
        {a_send_that_came_again_is_not_taken_for_a_torn_one: "DUR-34"},
    ),
    Mutation(
        "leave lost messages in the ledger",
        replace(FoundShard, "gone", lambda *_: []),
        {a_message_without_a_body_is_never_received: "DUR-31"},
    ),
    Mutation(
        "believe the log about its end",
        replace(FoundShard, "end", lambda found, _: found.send_end),
        {shown_by(repairs.test_a_head_beyond_the_log_gives_no_offset_twice, lambda victim: (victim,)): "DUR-35"},
    ),
    Mutation(
        "use numbers of moves again",
        replace(repairing, "_moves", lambda *_: 0),
        {
            shown_by(
                repairs.test_moves_get_new_numbers_after_a_ledger_went_back, lambda victim: (victim,)
            ): "DUR-31"
        },
    ),
]


@each_case(MUTATIONS)
def test_the_promise_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    def prepare(_: Patch) -> tuple[Victim]:
        return (victim_of_seven(tmp_path, ManualClock()),)

    case.run(prepare, (LakeQueueError, TypeError, AttributeError, pytest.fail.Exception))
