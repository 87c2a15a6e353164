"""Sessions that lakequeue did not make: nothing depends on their settings, and what they lack is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakequeue import LakeQueue
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: list[dict[str, str]] = [
    {},
    {
        "spark.sql.session.timeZone": "America/St_Johns",
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "7",
    },
    {
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.caseSensitive": "true",
        "spark.sql.files.maxRecordsPerFile": "3",
        "spark.sql.parquet.compression.codec": "gzip",
    },
]


def session_effects(spark: SparkSession, root: str) -> dict[str, Any]:
    """Sends, leases and queries in a session; everything that may depend on it."""
    from pyspark.sql import functions as F

    lq = LakeQueue(root, spark=spark, clock=ManualClock())
    plain = lq.create_queue("plain")
    ordered = lq.create_queue("ordered.fifo", fifo=True, content_based_deduplication=True)
    rows = spark.range(0, 8, 1, 1).selectExpr(
        "concat('order ', id) AS body", "map('n', 'v') AS message_attributes"
    )
    plain.send_dataframe(rows)
    ordered.send_dataframe(
        rows.selectExpr("body", "concat('g', length(body)) AS group_id", "body AS k"), order_by="k"
    )
    plain.send("single")

    def micros(frame: Any) -> list[dict[str, Any]]:
        instants = [field.name for field in frame.schema if field.dataType.typeName() == "timestamp"]
        found = frame.withColumns({name: F.unix_micros(name) for name in instants})
        return [row.asDict(recursive=True) for row in found.collect()]

    answers: dict[str, Any] = {}
    for queue in (plain, ordered):
        lease = queue.lease(5)
        assert lease is not None
        rows = micros(lease.messages.orderBy("offset"))
        answers[queue.name] = [
            (row["body"], row["sent_at"], row["sequence_number"], row["message_attributes"], row["delay_seconds"])
            for row in rows
        ]
    lq.register_views(spark, now=lq._runtime.clock.now())
    messages = micros(spark.sql("SELECT * FROM messages ORDER BY queue, log_offset"))
    answers["messages"] = [{k: v for k, v in row.items() if k != "message_id"} for row in messages]
    answers["queues"] = micros(spark.sql("SELECT * FROM queues ORDER BY queue"))
    return answers


@pytest.mark.spark
def test_answers_do_not_depend_on_settings(spark: SparkSession, tmp_path: Path) -> None:
    def in_session(number: int, settings: Mapping[str, str]) -> dict[str, Any]:
        session = spark.newSession()
        for name, value in settings.items():
            session.conf.set(name, value)
        answers = session_effects(session, str(tmp_path / str(number)))
        assert {name: session.conf.get(name) for name in settings} == dict(settings)
        return answers

    first, *others = [in_session(number, settings) for number, settings in enumerate(SETTINGS)]
    assert len(first["messages"]) == 17 and len(first["plain"]) == 5
    for other in others:
        assert other == first


PLAIN = """
import sys
from pyspark.sql import SparkSession
from lakequeue import LakeQueue, QueueClientError
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
lq = LakeQueue(sys.argv[1], spark=spark)
queue = lq.create_queue("orders")
print(queue.send_dataframe(spark.range(5).selectExpr("cast(id AS string) AS body")))
lease = queue.lease(3)
print(sorted(row.body for row in lease.messages.collect()), lease.delete().done, queue.counts().visible)
lq.register_views(spark)
[counts] = spark.sql("SELECT visible, in_flight FROM queues").collect()
print(spark.table("messages").where("state = 'deleted'").count(), *counts)
for call in (
    lambda: lq.create_views(spark, "default"),
    lambda: LakeQueue(sys.argv[1], spark=spark, engine="spark"),
):
    try:
        call()
    except QueueClientError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_plain_session_without_delta_sends_and_leases_and_has_views(tmp_path: Path) -> None:
    environment = {**os.environ, "TZ": "America/New_York", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(tmp_path / "root")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    sent, leased, seen, views, engine = done.stdout.splitlines()
    assert (sent, leased[-3:], seen) == ("5", "3 2", "3 2 0")
    assert views.startswith("SQL views need Delta in the session") and "DeltaCatalog" in views
    assert engine.startswith('engine="spark" needs Delta in the session')
