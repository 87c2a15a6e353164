"""When a root's disk counts as short of space, and what is said of it."""

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
        (Space(100 * GIB, 20 * GIB, None), None, False),
        (Space(100 * GIB, 19 * GIB, None), "only 19% of the root's disk, 19,456 MiB, is free", False),
        (Space(100 * GIB, 2**20, 50_000), "1 MiB, is free, with room for 50,000 files", True),
        (Space(100 * GIB, 2**20 - 1, None), "the root's disk is full", True),
        (Space(100 * GIB, 90 * GIB, 9_999), "with room for 9,999 files", True),
        (Space(100 * GIB, 90 * GIB, 0), "the root's disk is full", True),
        (Space(200 * 2**20, 199 * 2**20, None), None, False),
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
    assert (found is None) == (text is None) and (text or "") in str(found)
    assert (shortage(lake._runtime, only_urgent=True) is not None) == urgent
    assert ("the largest queues: orders 0." in str(found)) == urgent
