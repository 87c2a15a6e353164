"""What a process keeps of messages is bounded by what it takes in memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakequeue import LakeQueue
from lakequeue.storage.messages import read
from lakequeue.storage.messages.append import AppendPlace, OpenSegment
from lakequeue.storage.messages.body_cache import TABLE_BYTES, BodyCache
from lakequeue.storage.messages.read import BUDGET, CacheBudget

CELLS = {"message_id": "id", "message_attributes": [], "group_id": None, "dedup_id": None, "sender_id": None}


def rows(first: int, count: int = 1, size: int = 300) -> pa.Table:
    """Rows as a send makes them."""
    more = {"trace_header": None, "delay_seconds": None, "body": "x" * size}
    return AppendPlace(OpenSegment(0, 0, 0), first, 0, False).rows([{**CELLS, **more}] * count)


def cached(cache: BodyCache) -> list[int]:
    return [offset for offset in range(1_000) if cache._known(offset) is not None]


@pytest.mark.spec("DUR-60")
def test_a_small_send_counts_for_the_table_that_it_keeps() -> None:
    budget = CacheBudget(40 * TABLE_BYTES)
    cache = BodyCache(budget)
    for offset in range(100):
        cache.remember(offset, rows(offset))
    assert budget.bytes <= budget.limit
    assert cached(cache) == list(range(100 - len(cached(cache)), 100)) and 35 < len(cached(cache)) < 40


@pytest.mark.spec("DUR-60")
def test_the_shards_of_a_process_share_its_budget() -> None:
    budget = CacheBudget(40 * TABLE_BYTES)
    caches = [BodyCache(budget) for _ in range(10)]
    for offset in range(10):
        for cache in caches:
            cache.remember(offset, rows(offset))
    assert 35 < sum(len(cached(cache)) for cache in caches) < 40
    for cache in caches:
        cache.clear()
    assert budget.bytes == 0 and not any(map(cached, caches))


@pytest.mark.spec("DUR-60")
def test_a_part_of_a_row_group_keeps_nothing_of_the_rest() -> None:
    budget = CacheBudget(2**23)
    cache = BodyCache(budget)
    cache.remember(5, rows(0, 4096, 1_000).slice(5, 10))
    assert cached(cache) == list(range(5, 15)) and budget.bytes < TABLE_BYTES + 2**16
    cache.remember(100, rows(0, 1, 2**22))
    assert 100 not in cached(cache)  # one body must not push out all others


@pytest.mark.spec("DUR-60")
def test_columns_of_a_fifo_log_count_for_what_they_take(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "BUDGET", budget := CacheBudget(2**14))
    queue = LakeQueue(str(tmp_path / "root"), engine="point").create_queue("q.fifo", fifo=True)
    for number in range(30):
        queue.send(str(number), group_id=f"group-{number}", dedup_id=str(number))
    found = [queue.receive(10, 60) for _ in range(3)]
    assert [message.body for messages in found for message in messages] == list(map(str, range(30)))
    assert 0 < len(budget._order) <= 2 and BUDGET.bytes
