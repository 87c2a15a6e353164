"""What Spark does to a log of messages loses none, doubles none, and is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.damage import Victim
from lakequeue import DamagedTable, LakeQueue
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
BODIES = [str(number) for number in range(99, 49, -1)]
"""In the order in which they are sent; Z-order is another."""


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    """A queue with fifty messages, a commit each."""
    victim = Victim(str(tmp_path / "root"), clock)
    victim.lake().create_queue("orders")
    victim.send(*BODIES)
    return victim


@pytest.mark.spec("DUR-5", "DUR-30", "DUR-31")
@pytest.mark.parametrize("order", ["", "ZORDER BY (body)"])
def test_an_optimized_log_is_read_in_order_and_rewritten(victim: Victim, spark: SparkSession, order: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.optimize.zorder.checkStatsCollection.enabled", "false")
    session.sql(f"OPTIMIZE delta.`{victim.messages}` {order}")
    [found] = victim.lake().check()
    assert not found.damage and found.table == str(victim.messages)
    assert found.problem == "does not hold its messages in order; another program wrote it"
    assert [message.body for message in victim.queue.peek(limit=100)] == BODIES
    victim.clock.advance(2 * 3600)  # the open segment is idle
    victim.lake().compact()
    assert victim.lake().check() == []
    assert victim.drain() == BODIES


@pytest.mark.spec("DUR-6", "DUR-30", "DUR-31")
def test_a_row_that_a_deletion_vector_removed_does_not_come_back(victim: Victim, spark: SparkSession) -> None:
    table = f"delta.`{victim.messages}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"OPTIMIZE {table}")  # else the file of the row is removed as a whole
    spark.sql(f"DELETE FROM {table} WHERE body = '70'")
    assert [*victim.messages.glob("deletion_vector*")]
    for verb in (lambda: victim.receive(), lambda: victim.queue.peek(), lambda: victim.queue.send("new")):
        with pytest.raises(DamagedTable, match="messages is damaged: .* the feature deletionVectors"):
            verb()
    assert "the feature deletionVectors" in victim.lake().check("orders")[0].problem
    [report] = victim.lake().repair(apply=True)
    assert not report.applied and "deletion vectors" in report.notes[0]
    with pytest.raises(DamagedTable, match="the feature deletionVectors"):
        victim.receive()


@pytest.mark.spec("DUR-72")
def test_a_lease_reads_nothing_behind_a_link(victim: Victim, spark: SparkSession, tmp_path: Path) -> None:
    """Its files are opened by Spark itself."""
    lease = LakeQueue(victim.root, clock=victim.clock, spark=spark).queue("orders").lease()
    assert lease is not None
    data = next(victim.messages.rglob("*.parquet"))
    data.rename(tmp_path / "away")
    data.symlink_to(tmp_path / "away")
    with pytest.raises(DamagedTable, match="is no plain file"):
        lease.messages.count()
