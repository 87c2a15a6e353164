"""Messages by state in SQL, of a queue of many shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.harness import LONG, Bench, Figure
from lakequeue import LakeQueue
from lakequeue.spark import register

MANY = 16
"""Shards of the queue that the queries read."""


def sql(bench: Bench) -> Iterator[Figure]:
    """Messages by state in SQL, for a queue of many shards; bare: of one shard."""
    with bench.scratch() as scratch:
        spark = bench.spark
        register(spark)

        def by_source(root: str) -> None:
            messages = spark.read.format("lakequeue").options(root=root, queue="asked").load()
            messages.createOrReplaceTempView("messages")

        def by_views(root: str) -> None:
            LakeQueue(root, spark=spark).register_views(spark)

        def by_scans(root: str) -> None:
            for statement in LakeQueue(root, spark=spark).view_statements():
                spark.sql(statement)

        roots = {count: f"{scratch}/{count}" for count in (MANY, 1)}
        for count, root in roots.items():
            queue = LakeQueue(root, spark=spark).create_queue("asked", shards=count)
            queue.send_dataframe(bench.bodies(bench.sizes.few, 100).repartition(MANY))
            lease = queue.lease(bench.sizes.few // 4, LONG)
            assert lease is not None
        for what, view in (("the data source", by_source), ("views", by_views), ("a catalog's views", by_scans)):

            def ask(root: str, view: Callable[[str], None] = view) -> None:
                view(root)
                spark.sql("SELECT state, count(*) FROM messages GROUP BY state").collect()

            for root in roots.values():
                ask(root)
            sides = tuple(lambda root=root: ask(root) for root in roots.values())
            [times] = bench.alternate("SQL", bench.sizes.read_rounds, sides)  # type: ignore[list-item]
            yield Figure(f"SQL by {what}: messages by state, {MANY} shards / one", *times, bound=2)
