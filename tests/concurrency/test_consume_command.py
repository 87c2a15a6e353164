"""`lakequeue consume` in several processes that are stopped, ended and killed, with outages of the storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from concurrency.consumed import (
    LONG,
    Story,
    beginning,
    consumed_through_everything,
)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    (tmp_path / "data").mkdir()
    (tmp_path / "nothing").touch()
    (tmp_path / "root").symlink_to(tmp_path / "data")
    with beginning(Story, tmp_path, str(tmp_path / "root")) as story:
        yield story


@pytest.mark.slow
@pytest.mark.spec("RCV-6", "HBN-1", "HBN-21", "FIF-1")
def test_consumers_lose_nothing_to_signals_and_outages(story: Story) -> None:
    print(consumed_through_everything(story, 20, seed=1))


@pytest.mark.long
@pytest.mark.timeout(LONG + 600)
@pytest.mark.spec("RCV-6", "HBN-1", "HBN-21", "FIF-1")
def test_consumers_lose_nothing_to_ten_minutes_of_signals_and_outages(story: Story) -> None:
    print(consumed_through_everything(story, LONG, seed=2))
    assert min(story.ends[each] for each in ("SIGTERM", "SIGKILL", "SIGINT", "drained", "stopped")) > LONG / 60
