"""Queries in SQL: of a queue of many shards, of many queues, and of many messages, compared with DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import duckdb

from benchmarks.harness import LONG, Bench, Figure, seconds_of
from lakequeue import LakeQueue, SendEntry
from lakequeue.spark import register

OF_QUEUES = {
    "counts of all queues": "SELECT queue, visible, in_flight, delayed FROM queues",
    "messages by queue and state": "SELECT queue, state, count(*) FROM messages GROUP BY ALL",
    "oldest message of each queue": "SELECT queue, max(age) FROM messages WHERE state = 'visible' GROUP BY ALL",
    "messages of 3 queues": "SELECT body FROM messages WHERE queue IN ('queue-1', 'queue-2', 'queue-3')",
    "messages of queues by a subquery": """
        SELECT queue, count(*) FROM messages
        WHERE queue IN (SELECT queue FROM queues WHERE in_flight BETWEEN 1 AND 10) GROUP BY ALL
    """,
}
"""Queries over all queues, each with few messages."""
OF_FEW = {
    "depth of one queue": "SELECT visible, in_flight FROM queues WHERE queue = 'queue-1'",
    "states of one queue": "SELECT state, count(*) FROM messages WHERE queue = 'queue-1' GROUP BY ALL",
    "messages sent long ago": "SELECT count(*) FROM messages WHERE sent_at < CAST('2020-01-01' AS TIMESTAMP)",
}
"""Queries that need few of the queues."""
OF_ONE = {
    "by state": "SELECT state, count(*) FROM messages WHERE queue = 'long' GROUP BY ALL",
    "of a state": "SELECT count(*) FROM messages WHERE queue = 'long' AND state = 'in_flight'",
    "by id": "SELECT body, state FROM messages WHERE queue = 'long' AND message_id = '{id}'",
    "of some offsets": "SELECT message_id FROM messages WHERE queue = 'long' AND log_offset BETWEEN 5000 AND 5100",
    "throughput by minute": """
        SELECT date_trunc('minute', sent_at), count(*) FROM messages WHERE queue = 'long' GROUP BY ALL
    """,
    "a sum over JSON": """
        SELECT sum(CAST({json}(body, '$.amount') AS BIGINT)) FROM messages WHERE queue = 'long'
    """,
    "newest of each group by a window": """
        SELECT count(*) FROM (
            SELECT row_number() OVER (PARTITION BY group_id ORDER BY log_offset DESC) AS place
            FROM messages WHERE queue = 'long'
        ) WHERE place = 1
    """,
}
"""Queries of the messages of a large queue."""


def queries(bench: Bench) -> Iterator[Figure]:
    """Queries of Spark over roots of many queues and over many messages; bare: DuckDB."""
    bench.spark.range(1).count()
    for queues in (10, bench.sizes.queues // 10 or 1, bench.sizes.queues):
        with bench.scratch() as scratch:
            lake = LakeQueue(f"{scratch}/queues", spark=bench.spark)
            for number in bench.track(range(queues), f"{queues:,} queues"):
                queue = lake.create_queue(f"queue-{number}", visibility_timeout=LONG)
                queue.send_batch([SendEntry("{}")] * 10)
                queue.receive(1 + number % 3)
            yield from _beside_duckdb(bench, lake, f"{queues:,} queues", (OF_QUEUES, 5, 2), (OF_FEW, 2, 1))
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", spark=bench.spark)
        queue, rows = lake.create_queue("long"), bench.sizes.read
        [message] = queue.receive() if queue.send("{}") else []
        amount = "concat('{\"amount\": ', id, ', \"text\": \"', substr(body, 1, 480), '\"}') AS body"
        bodies = bench.bodies(rows, 512).selectExpr("*", "monotonically_increasing_id() % 1000 AS id")
        queue.send_dataframe(bodies.selectExpr(amount, "CAST(id AS STRING) AS group_id"))
        for deleted in (True, False):
            assert (lease := queue.lease(rows // 10, LONG)) is not None
            lease.delete() if deleted else None
        of_one = {name: text.replace("{id}", message.message_id) for name, text in OF_ONE.items()}
        yield from _beside_duckdb(bench, lake, f"{rows:,} messages", (of_one, 2, 1))


def _beside_duckdb(
    bench: Bench, lake: LakeQueue, of: str, *asked: tuple[Mapping[str, str], float, float]
) -> Iterator[Figure]:
    """Runs queries in Spark and in DuckDB. Each bound is a multiple of DuckDB's time, plus seconds."""
    yield Figure(f"SQL over {of}: views registered", seconds_of(lambda: lake.register_views(bench.spark)), bound=3)
    with duckdb.connect() as connection:
        for name, relation in lake.arrow_views().items():
            connection.register(name, relation)
        for name, text, times, more in [
            (*query, *bound) for queries, *bound in asked for query in queries.items()
        ]:

            def ask(text: str = text.replace("{json}", "get_json_object")) -> None:
                bench.spark.sql(text).collect()

            def bare(text: str = text.replace("{json}", "json_extract_string")) -> None:
                connection.sql(text).fetchall()

            [(ours, duck)] = bench.alternate(name, bench.sizes.warm_rounds, (ask, bare))
            yield Figure(f"SQL over {of}: {name} / DuckDB", ours, duck, round(times + more / duck, 1))


def sql(bench: Bench) -> Iterator[Figure]:
    """Messages by state in SQL, for a queue of many shards; bare: of one shard."""
    many = max(2, bench.sizes.shards)
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

        roots = {count: f"{scratch}/{count}" for count in (many, 1)}
        for count, root in roots.items():
            queue = LakeQueue(root, spark=spark).create_queue("asked", shards=count)
            queue.send_dataframe(bench.bodies(bench.sizes.few, 100).repartition(many))
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
            yield Figure(f"SQL by {what}: messages by state, {many} shards / one", *times, bound=2)
