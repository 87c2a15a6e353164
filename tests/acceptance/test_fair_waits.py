"""The scenario of the picture in the guide to fair queues, shorter."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PLOT = Path(__file__).parents[2] / "docs" / "guides" / "fair_queues_plot.py"


@pytest.mark.spec("FAI-2")
@pytest.mark.parametrize(("fair", "longest"), [(True, 3), (False, 10)])
def test_quiet_tenants_wait_for_a_backlog_of_another_only_without_fair_groups(fair: bool, longest: int) -> None:
    """Three rounds of the consumer, or those that the backlog takes."""
    quiet, noisy = runpy.run_path(str(PLOT))["waits"](fair, seconds=30, backlog=100, at=5)
    waited = max(max(seconds) for seconds in quiet.values())
    assert waited <= longest if fair else waited >= longest - 1
    assert sum(map(len, noisy.values())) == 100, "the noisy tenant has the hands that nobody else needs"
