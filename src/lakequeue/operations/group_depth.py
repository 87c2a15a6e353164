"""The depth of each message group, and which groups are noisy (FAI-3)."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.model.arguments import check_whole
from lakequeue.model.clock import MICROS
from lakequeue.model.states import MessageState
from lakequeue.operations.judged_log import JudgedShard
from lakequeue.operations.pool import concurrently
from lakequeue.operations.results import GroupCounts
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.claim.tenants import NOISE, NOISE_FROM, GroupLoad, noisy
from lakequeue.storage.stores import Store

GROUPS = pa.schema(
    [
        *((name, pa.string()) for name in ("queue", "region", "group_id")),
        *((name, pa.int64()) for name in ("visible", "in_flight")),
        ("oldest_age", pa.float64()),
        ("noisy", pa.bool_()),
    ]
)
"""Columns of groups with visible or in-flight messages. ``oldest_age`` is in seconds, of visible messages only."""

_IN_FLIGHT = (MessageState.IN_FLIGHT.value, MessageState.MOVING.value)
_COUNTED = pc.field("state").isin([MessageState.VISIBLE.value, *_IN_FLIGHT])
_SUMS = [("visible", "sum"), ("in_flight", "sum"), ("oldest_age", "max")]
_PARTS = 1 << 16


def group_counts(queue: OpenQueue, limit: int) -> list[GroupCounts]:
    """Returns the largest message groups of a queue, at most ``limit`` groups."""
    check_whole("limit", limit)
    return largest(group_sums(queue), limit)


def largest(sums: pa.Table, limit: int) -> list[GroupCounts]:
    """Returns the ``limit`` largest groups in ``sums``, a result of ``group_sums``."""
    most = sums.append_column("all", pc.add(sums["visible"], sums["in_flight"]))
    order = [("all", "descending"), ("group_id", "ascending")]
    return [GroupCounts(**row) for row in most.sort_by(order).slice(0, limit).drop_columns("all").to_pylist()]


def group_sums(queue: OpenQueue) -> pa.Table:
    """Returns all message groups of a queue, as ``GROUPS`` without the columns ``queue`` and ``region``."""
    with queue.service("groups"):
        queue.learn_of_shards()
        root, now = queue.root, queue.now()

        def judged(shard: int) -> JudgedShard:
            # files stay for a minute, which is enough to count: pinned, they would stay for a day at each count
            return JudgedShard.load(queue.row, root.path, shard, root.engine.open, now, root.check_expiry)

        return summed(concurrently(judged, range(len(queue.shards))), root.engine.store, queue.fifo)


def summed(shards: Iterable[JudgedShard], store: Store, fifo: bool) -> pa.Table:
    """Adds up the message groups of a queue's shards. Returns the columns of ``group_sums``."""
    parts, rows, added = [_EMPTY], 0, 0
    for shard in shards:
        for batch in shard.batches(store, {"group_id", "state", "sent_at"}, _COUNTED):
            part = _part(batch, shard.judge.instant)
            parts.append(part)
            rows += len(part)
            if rows > added + _PARTS:
                parts = [_added(parts)]
                rows = 0
                added = len(parts[0])
    sums = _added(parts)
    return sums.append_column("noisy", _noisy(sums, fifo))


def _part(batch: pa.RecordBatch, instant: int) -> pa.Table:
    batch = batch.filter(_COUNTED)
    visible = pc.equal(batch["state"], MessageState.VISIBLE.value)
    ages = pc.divide(pc.subtract(instant, batch["sent_at"].cast(pa.int64())).cast(pa.float64()), float(MICROS))
    counts = visible.cast(pa.int64())
    columns = [batch["group_id"], counts, pc.subtract(1, counts), pc.if_else(visible, ages, None)]
    return _added([pa.Table.from_arrays(columns, schema=_EMPTY.schema)])


def _added(parts: Iterable[pa.Table]) -> pa.Table:
    sums = pa.concat_tables(parts).group_by("group_id", use_threads=False).aggregate(_SUMS)
    return sums.select(["group_id", *("_".join(each) for each in _SUMS)]).rename_columns(_EMPTY.column_names)


_EMPTY = pa.schema(
    [("group_id", pa.string()), ("visible", pa.int64()), ("in_flight", pa.int64()), ("oldest_age", pa.float64())]
).empty_table()


def _noisy(sums: pa.Table, fifo: bool) -> pa.Array:
    if fifo:
        return pa.nulls(len(sums), pa.bool_())
    names = pc.fill_null(sums["group_id"], "").to_pylist()
    loads = map(GroupLoad, names, sums["visible"].to_pylist(), sums["in_flight"].to_pylist())
    found = noisy(list(loads))
    return pa.array([name in found for name in names], pa.bool_())


def statement(judged: str, fifo: bool) -> str:
    """Returns the SQL of the depth of message groups. ``judged`` is the SQL of messages with their states."""
    shares = ("visible", "in_flight")
    loud = " OR ".join(
        f"{share} >= {NOISE_FROM} AND {share} > {NOISE} * "
        f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {share}) OVER ()"
        for share in shares
    )
    return f"""
        SELECT queue, region, group_id, visible, in_flight, oldest_age,
            {"CAST(NULL AS BOOLEAN)" if fifo else f"count(*) OVER () > 1 AND ({loud})"} AS noisy
        FROM (
            SELECT queue, region, group_id, count_if(state = 'visible') AS visible,
                count_if(state <> 'visible') AS in_flight,
                max(CASE WHEN state = 'visible' THEN age END) AS oldest_age
            FROM ({judged})
            WHERE state IN ('visible', 'in_flight', 'moving')
            GROUP BY queue, region, group_id
        )
    """
