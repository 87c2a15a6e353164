"""The four lines of the data source, for any session: local, on a cluster, or through Spark Connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lakequeue import LakeQueue
from lakequeue.spark.streams import started


def four_lines(spark: Any, root: str, place: Path) -> None:
    """Writes, looks, streams from one queue to another, and reads that; by the system's clock.

    Args:
        spark: any session in which the data source is known.
        root: of queues, which the workers of the session reach too; it may not exist yet.
        place: a directory for checkpoints and results.
    """
    lq = LakeQueue(root)
    orders, copies = lq.create_queue("orders"), lq.create_queue("copies")
    here = {"root": root}

    df = spark.range(0, 100, 1, 4).selectExpr("concat('order ', id) AS body")
    df.write.format("lakequeue").options(**here, queue="orders", sendId="load").mode("append").save()
    df.write.format("lakequeue").options(**here, queue="orders", sendId="load").mode("append").save()
    assert orders.counts().visible == 100

    look = spark.read.format("lakequeue").options(**here, queue="orders").load()
    assert look.where("state = 'visible'").count() == 100

    messages = spark.readStream.format("lakequeue").options(**here, queue="orders", maxMessages="40").load()
    writer = messages.select("body", "message_attributes").writeStream.format("lakequeue")
    writer = writer.options(**here, queue="copies", checkpointLocation=str(place / "to-copies"))
    assert started(writer.trigger(availableNow=True).start).awaitTermination(200)
    assert (orders.counts().visible, orders.counts().in_flight, copies.counts().visible) == (0, 0, 100)

    copied = spark.readStream.format("lakequeue").options(**here, queue="copies").load()
    files = copied.select("body", "message_id", "receive_count").writeStream.format("parquet")
    files = files.options(path=str(place / "files"), checkpointLocation=str(place / "to-files"))
    assert started(files.trigger(availableNow=True).start).awaitTermination(200)
    rows = spark.read.parquet(str(place / "files")).collect()
    assert sorted(row.body for row in rows) == sorted(f"order {number}" for number in range(100))
    assert (copies.counts().visible, copies.counts().in_flight) == (0, 0)
