"""SQL over the tables as they were at an instant."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue, errors
from lakequeue.operations import sql_views
from lakequeue.storage import cleaning, layout, past_versions
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lq(tmp_path: Path) -> LakeQueue:
    return LakeQueue(str(tmp_path / "it's a `root`"))


def last_commit(lq: LakeQueue, key: str) -> datetime:
    """When the newest version of a queue's tables was committed, by the machine's clock."""
    paths = [layout.messages_path(lq.root, key, 0), layout.receipts_path(lq.root, key, 0)]
    micros = max(past_versions.versions(Store(), path)[-1].committed_at for path in paths)
    return datetime.fromtimestamp(micros / 1e6, timezone.utc)


def shown(spark: SparkSession) -> set[tuple[str, str, str]]:
    return {
        (row.queue, row.body, row.state) for row in spark.sql("SELECT queue, body, state FROM messages").collect()
    }


@pytest.mark.spark
@pytest.mark.spec("DLT-5", "DLT-3")
def test_views_show_the_tables_as_of_an_instant(spark: SparkSession, lq: LakeQueue) -> None:
    queue = lq.create_queue("orders", visibility_timeout=600)
    empty = datetime.now(timezone.utc)
    queue.send("a")
    queue.send("b")
    sent = last_commit(lq, queue.key)
    [message] = queue.receive()
    received = last_commit(lq, queue.key)
    queue.delete(message.receipt_handle)
    queue.send("c")
    lq.create_queue("later").send("elsewhere")
    lq.delete_queue("orders")

    def at(instant: datetime) -> set[tuple[str, str, str]]:
        lq.register_views(spark, as_of=instant)
        return shown(spark)

    assert at(empty - timedelta(days=1)) == set()
    assert at(empty) == set()
    assert at(sent) == {("orders", "a", "visible"), ("orders", "b", "visible")}
    assert at(received) == {("orders", "a", "in_flight"), ("orders", "b", "visible")}
    [row] = spark.sql("SELECT queue, visible, in_flight FROM queues").collect()
    assert tuple(row) == ("orders", 1, 1)
    lq.register_views(spark, now=received + timedelta(seconds=601), as_of=received)
    assert ("orders", "a", "visible") in shown(spark)
    lq.register_views(spark)
    assert shown(spark) == {("later", "elsewhere", "visible")}


def test_the_text_of_views_names_a_limited_number_of_shards(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sql_views.MOST_SHARDS == 100
    monkeypatch.setattr(sql_views, "MOST_SHARDS", 3)
    lq.create_queue("orders", shards=2)
    lq.create_queue("bills")
    assert len(lq.view_statements()) == 6
    lq.create_queue("more")
    with pytest.raises(errors.QueueClientError, match="at most 3 shards, and the queues of .* have 4"):
        lq.view_statements()


def test_an_instant_before_the_log_is_an_error_that_says_how_far_the_log_reaches(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    queue.send("a")
    early = last_commit(lq, queue.key)
    for _ in range(2):
        queue.receive(visibility_timeout=0)
    receipts = lq._runtime.engine.open(layout.receipts_path(lq.root, queue.key, 0))
    cleaning.trim(receipts, layout.Retention(0, 0, 0, 0))
    with pytest.raises(errors.QueueClientError, match="is known back to .*, and not as of"):
        lq.view_statements(as_of=early)
    assert len(lq.view_statements(as_of=last_commit(lq, queue.key))) == 6
    for wrong in (datetime(2026, 1, 1), "yesterday"):
        with pytest.raises(errors.InvalidParameterValue, match="as_of"):
            lq.view_statements(as_of=wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidParameterValue, match="now"):
            lq.view_statements(now=wrong)  # type: ignore[arg-type]
