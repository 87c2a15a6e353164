"""Views in a catalog, for other sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue, errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE SCHEMA IF NOT EXISTS shown_queues")
    yield "shown_queues"
    spark.sql("DROP SCHEMA shown_queues CASCADE")


def test_other_sessions_query_states_and_a_refresh_follows_the_queues(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    lq = LakeQueue(str(tmp_path / "it's a root"))
    lq.create_queue("orders").send("a")
    lq.create_queue("gone").send("b")
    lq.create_views(spark, schema)
    other = spark.newSession()

    def states() -> list[tuple[str, str, str]]:
        found = other.sql("SELECT queue, body, state FROM shown_queues.messages ORDER BY queue").collect()
        return [tuple(row) for row in found]

    assert states() == [("gone", "b", "visible"), ("orders", "a", "visible")]
    lq.queue("orders").receive(visibility_timeout=600)  # each query sees the newest
    assert states()[1] == ("orders", "a", "in_flight")
    shown = {row.viewName for row in other.sql("SHOW VIEWS IN shown_queues").collect() if not row.isTemporary}
    assert shown == {"queues", "messages", "groups", "receipts", "history", "stats"}
    assert other.sql("SELECT sum(in_flight) FROM spark_catalog.shown_queues.queues").head()[0] == 1
    lq.delete_queue("gone")
    lq.create_queue("new").send("c")
    lq.create_views(spark, f"spark_catalog.{schema}")
    assert states() == [("new", "c", "visible"), ("orders", "a", "in_flight")]


HIVE = """
spark.master                     local[2]
spark.sql.catalogImplementation  hive
spark.sql.warehouse.dir          {place}/warehouse
spark.hadoop.javax.jdo.option.ConnectionURL  jdbc:derby:;databaseName={place}/metastore;create=true
"""
IN_HIVE = """
import os
import re
import sys
import lakequeue_command
from lakequeue import LakeQueue, QueueClientError
from lakequeue.spark.session import build_session

def show():
    messages = build_session("hive").table("default.messages").orderBy("queue")
    for row in messages.select("queue", "state", "body").collect():
        print(*row)

show()
sys.argv[1:] = ["sql", "--register", "default"]
try:
    lakequeue_command.main()
except SystemExit as ended:
    assert not ended.code
show()
lake = LakeQueue(os.environ["LAKEQUEUE_ROOT"])
for names, shards in (["more1", "more2", "more3", "more4"], 1), (["wide"], 294):  # 300 shards in the end
    for name in names:
        lake.create_queue(name, shards=shards)
    try:
        lake.create_views(build_session("hive"), "default")
    except QueueClientError as error:
        print(re.sub(r"one has [\\d,]+;", "one has more;", str(error)).replace(lake.root, "ROOT"))
spark = build_session("hive")
lake.register_views(spark)
spark.sql("CREATE TABLE depths USING delta AS SELECT queue, shards, visible FROM queues")
print(*spark.table("default.depths").selectExpr("count(*)", "sum(shards)", "sum(visible)").head())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hive_metastore_keeps_the_views_for_other_processes(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(HIVE.format(place=tmp_path))
    root = str(tmp_path / "root")
    lq = LakeQueue(root)
    lq.create_queue("orders").send("one")

    def run(*command: str) -> str:
        environment = os.environ | {"SPARK_CONF_DIR": str(tmp_path), "LAKEQUEUE_ROOT": root}
        command = (sys.executable, *command)
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    run(str(Path(__file__).parents[2] / "jobs" / "compact.py"), "--root", root, "--once", "--views", "default")
    lq.create_queue("later").send("two")
    assert run("-c", IN_HIVE).splitlines() == [
        "orders visible one",
        "the views are in default",
        "later visible two",
        "orders visible one",
        "the views cannot be created: the metastore's database is Derby, which keeps 32,700 characters of a view, "
        "and one has more; another database keeps longer ones",
        "the SQL of views names each table, for at most 100 shards, and the queues of ROOT have 300: use "
        "register_views where Spark's tasks have lakequeue, or DuckDB",
        "7 300 2",
    ]


def test_an_invalid_schema_is_reported_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    lq.create_queue("orders")
    for wrong in ("", "a.b.c", "a..b", ".a"):
        with pytest.raises(errors.InvalidParameterValue, match="CATALOG.SCHEMA"):
            lq.create_views(spark, wrong)
    with pytest.raises(errors.QueueClientError, match="the views cannot be created: .*nowhere") as raised:
        lq.create_views(spark, "nowhere")
    assert "\n" not in str(raised.value)
