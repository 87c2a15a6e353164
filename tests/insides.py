"""Where tests look behind the faces: what this process holds of a root, and its tables."""

from __future__ import annotations

from lakequeue import CompactionSummary, LakeQueue, Queue
from lakequeue.runtime import root as roots
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Engine


def forget() -> None:
    """This process holds no root any more, and reads the next one anew, as another process would."""
    roots.opened.clear()


def reopen(lake: LakeQueue) -> LakeQueue:
    """An entry to the same root that shares nothing with those before."""
    forget()
    return LakeQueue(lake.root, clock=lake.clock, region=lake.region)


def compact(lake: LakeQueue) -> list[CompactionSummary]:
    """A pass of the compactor in which nothing fails."""
    summaries = lake.compact()
    assert [failure for summary in summaries for failure in summary.failures] == []
    return summaries


def place_of(queue: Queue) -> str:
    return queue._runtime.root.path


def messages_of(queue: Queue, shard: int = 0) -> str:
    """The table of a shard's messages."""
    return layout.messages_path(place_of(queue), queue.key, shard)


def receipts_of(queue: Queue, shard: int = 0) -> str:
    """The ledger of a shard."""
    return layout.receipts_path(place_of(queue), queue.key, shard)


def shard_of(queue: Queue, number: int = 0) -> OpenShard:
    return queue._runtime.shards[number]


def engine_of(lake: LakeQueue) -> Engine:
    return lake._runtime.engine
