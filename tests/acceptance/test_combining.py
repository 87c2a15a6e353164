"""The table of what combines with what says what queues accept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakequeue import LakeQueue, QueueServiceError

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "combining.md"
FEATURES: dict[str, dict[str, object]] = {
    "FIFO": {"fifo": True},
    "priorities": {"priorities": 2},
    "rate limit": {"rate_limit": "50/s"},
    "unique sends": {"deduplication_interval": 60},
    "fair groups": {"fair_groups": True},
    "group limit": {"group_in_flight_limit": 3},
    "shards": {"shards": 4},
    "delay": {"delay": 5},
}
ASIDE = {"deduplication_scope": "message_group"}


def table_cells() -> dict[tuple[str, str], str]:
    """The cells of the table by their row and column."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    table = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    columns = [re.sub(r"\[(.*?)\].*", r"\1", name) for name in table[0]]
    return {(row[0], columns[place]): cell for row in table[2:] for place, cell in enumerate(row) if place}


TOLD = table_cells()


def test_the_table_has_all_features_and_is_symmetric() -> None:
    assert {*TOLD} == {(one, other) for one in FEATURES for other in FEATURES}
    for (one, other), cell in TOLD.items():
        assert cell[:2] == TOLD[other, one][:2]


@pytest.mark.parametrize(("one", "other"), [pair for pair in TOLD if pair[0] < pair[1]])
def test_a_queue_accepts_what_the_table_says(tmp_path: Path, one: str, other: str) -> None:
    wanted = FEATURES[one] | FEATURES[other] | (ASIDE if {one, other} == {"FIFO", "shards"} else {})
    try:
        LakeQueue(str(tmp_path / "root")).create_queue("q.fifo" if "fifo" in wanted else "q", **wanted)
        accepted = True
    except QueueServiceError:
        accepted = False
    assert TOLD[one, other].startswith("yes" if accepted else "no")
