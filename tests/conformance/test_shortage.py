"""When a root's disk counts as short of space, and the report of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakequeue import LakeQueue
from lakequeue.operations import shortage as module
from lakequeue.operations.shortage import shortage
from lakequeue.storage.reserve import Space

GIB = 2**30


@pytest.mark.parametrize(
    ("space", "text", "urgent"),
    [
        (Space(50 * GIB, 10 * GIB - 1, 100_000, 10**7), "only 20% of the root's disk (10,240 MiB) is free", False),
        (Space(50 * GIB, 10 * GIB, 100_000, 10**7), None, False),
        (Space(1000 * GIB, 10 * GIB, None), None, False),
        (
            Space(1000 * GIB, 900 * GIB, 99_999, 10**7),
            "the root's disk has only room for 99,999 more files",
            False,
        ),
        (Space(40 * GIB, 9 * GIB, None), None, False),
        (Space(100 * GIB, 2**20, 50_000, 10**7), "(1 MiB) is free, with room for 50,000 more files", True),
        (Space(100 * GIB, 2**20 - 1, None), "only 1,023 KiB of the root's disk is free: a send, receive", True),
        (Space(100 * GIB, 2**13, None), "only 8 KiB of the root's disk is free", True),
        (Space(100 * GIB, 2**13 - 1, None), "the root's disk is full: sends, receives and deletes fail", True),
        (Space(100 * GIB, 90 * GIB, 9_999, 10**7), "has only room for 9,999 more files", True),
        (Space(100 * GIB, 90 * GIB, 0, 10**7), "the root's disk is full", True),
        (Space(200 * 2**20, 199 * 2**20, None), None, False),
        (Space(40 * 2**20, 34 * 2**20, 9_990, 10_240), None, False),
        (Space(40 * 2**20, 7 * 2**20, 9_990, 10_240), "only 18% of the root's disk (7 MiB) is free", True),
        (None, None, False),
    ],
)
def test_a_shortage_is_reported_and_named_urgent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: Space | None, text: str | None, urgent: bool
) -> None:
    lake = LakeQueue(str(tmp_path / "root"))
    lake.create_queue("orders").send("x" * 2**16)
    lake.create_queue("small")
    monkeypatch.setattr(module, "space_of", lambda path: space)
    found = shortage(lake._runtime)
    told = str(found and found.advice)
    assert (found is None) == (text is None) and (text or "") in told
    assert ("lakequeue compact --now 0 frees" in told) == urgent


MIB = 2**20
COMPACT, PURGE = "lakequeue compact --now 0", "lakequeue purge "


@pytest.mark.parametrize(
    ("space", "sizes", "purged", "others"),
    [
        (Space(100 * MIB, MIB, None), {"orders": 90 * MIB, "small": 9}, "orders", False),
        (Space(100 * MIB, 2 * MIB, None), {"orders": 49 * MIB}, "orders", False),
        (Space(100 * MIB, 2 * MIB, None), {"orders": 48 * MIB}, "orders", True),
        (Space(100 * MIB, MIB, None), {"orders": MIB - 1, "small": 9}, None, True),
        (Space(100 * MIB, MIB, None), {}, None, True),
    ],
)
def test_other_files_come_before_a_purge_unless_the_queues_have_half_of_the_space(
    space: Space, sizes: dict[str, int], purged: str | None, others: bool
) -> None:
    found = module.of_sizes(space, sizes, "/my data")
    look, purge = ["du -xah '/my data' | sort -h | tail"], [] if purged is None else [f"{PURGE}{purged}", COMPACT]
    steps = [*look, COMPACT, *purge] if others else [COMPACT, *purge, *look]
    assert [step.command for step in found.steps] == steps and found.urgent
    used, total = (space.size_bytes - space.free_bytes) / MIB, sum(sizes.values()) / MIB
    cause = "other files fill it: " if others else ""
    assert found.hint == f"{cause}the queues have {total:.1f} of the {used:.1f} MiB used"
    assert found.largest == ({} if purged is None else sizes)
    hidden = found.without_names()
    assert [step.command for step in hidden.steps] == [COMPACT, *([f"{PURGE}QUEUE", COMPACT] if purge else [])]
    assert hidden.largest == {}


@pytest.mark.parametrize(("free", "size", "first"), [(MIB, 30, True), (MIB - 1, 30, False), (MIB, 20, False)])
def test_a_compaction_comes_first_if_it_frees_much_and_can_write(free: int, size: int, first: bool) -> None:
    sizes = {"old": size * MIB, "orders": 10 * MIB}
    found = module.of_sizes(Space(100 * MIB, free, None), sizes, "/data", used_up=True, empty=["old"])
    commands = [step.command for step in found.steps]
    assert (commands[0] == COMPACT) == first != found.hint.startswith("first enlarge the disk")
    assert ("messages that are gone have 30.0 MiB; the queues have 40.0 of" in found.hint) == first
    assert f"{PURGE}orders" in commands and f"{PURGE}old" not in commands, "a purge of it frees nothing"
    assert found.largest == {"orders": 10 * MIB}


def test_queues_without_messages_are_left_out_of_the_purge_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeQueue(str(tmp_path / "root"))
    old = lake.create_queue("old")
    old.send("x" * 2**16)
    lake.create_queue("small").send("a")
    monkeypatch.setattr(module, "space_of", lambda path: Space(MIB, 2**16, None))
    assert f"{PURGE}old" in str(shortage(lake._runtime))
    old.purge()
    found = shortage(lake._runtime)
    assert found is not None and PURGE + "old" not in str(found) and "old" not in found.largest


def test_a_lack_of_files_is_looked_for_by_directory() -> None:
    found = module.of_sizes(Space(100 * MIB, 90 * MIB, 99, 9_999), {"orders": 9}, "/data")
    look = "du -xS --inodes /data | sort -n | tail"
    assert [step.command for step in found.steps] == [COMPACT, f"{PURGE}orders", COMPACT, look]
    assert found.hint == "" and found.largest == {"orders": 9}


def test_without_a_reserve_the_first_advice_is_none_that_may_fail() -> None:
    found = module.of_sizes(Space(100 * MIB, 0, None), {"orders": 90 * MIB}, "/data", used_up=True)
    assert found.hint == (
        "first enlarge the disk, delete other files, or copy the root to a larger disk: nothing is reserved for "
        "purges and compactions, so they may fail; the queues have 90.0 of the 100.0 MiB used"
    )
    assert found.steps[0].command == "du -xah /data | sort -h | tail"
