"""Which message groups are noisy."""

from __future__ import annotations

import pytest

from lakequeue.shard.claim.tenants import GroupLoad, noisy


@pytest.mark.spec("FAI-3")
@pytest.mark.parametrize(
    ("loads", "found"),
    [
        ([], set()),
        ([("only", 1_000_000, 50)], set()),
        ([("million", 1_000_000, 0), ("quiet", 1, 0)], {"million"}),
        ([("million", 1_000_000, 0), *((f"quiet {n}", 1, 0) for n in range(100))], {"million"}),
        ([("slow", 0, 50), ("quiet", 3, 1)], {"slow"}),
        ([("few", 9, 9), ("none", 0, 1)], set()),
        ([("like", 40, 4), ("others", 10, 4)], set()),
        ([("more", 41, 4), ("others", 10, 4)], {"more"}),
        ([(f"busy {n}", 1_000, 9) for n in range(5)] + [("quiet", 1, 0)], set()),
        ([("", 500, 0), ("a", 1, 0), ("b", 2, 0)], {""}),
    ],
)
def test_a_group_is_noisy_if_it_has_far_more_messages_than_the_median(loads, found):
    assert noisy([GroupLoad(*load) for load in loads]) == found
