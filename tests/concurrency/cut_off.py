"""Bulk sends that end between the commits of two shards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from concurrency.harness import check_log
from concurrency.steps import at
from lakequeue import Queue, QueueClientError
from lakequeue.storage.bulk import commit_files

SHARDS, ROWS = 3, 30


def cut_off_after(patch: pytest.MonkeyPatch, commits: int) -> None:
    """Has every commit of a bulk send but the first ones fail."""
    at(patch, commit_files.ShardCommit, "commit", OSError("cut off"), number=commits + 1, times=1_000)


def cut_off(queue: Queue, send: Callable[[], object], commits: int) -> QueueClientError:
    with pytest.MonkeyPatch.context() as patch:
        cut_off_after(patch, commits)
        with pytest.raises(QueueClientError) as caught:
            send()
    assert caught.value.outcome_unknown == (commits > 0)
    sent = bodies(queue)
    assert (0 < len(sent) < ROWS) if commits else not sent
    return caught.value


def bodies(queue: Queue) -> list[int]:
    return sorted(int(row.body) for row in check_log(queue))
