"""Handlers for the jobs under test; Spark's Python workers import them too."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from lakequeue.cli.demo_files import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOUND = "struct<lines: bigint, functions: bigint, classes: bigint, problem: string>"


def measure(body: str) -> dict[str, Any]:
    return parse(json.loads(body)["value"])


def modules(messages: DataFrame) -> DataFrame:
    """What the Python source in each message comes to."""
    from pyspark.sql import functions as F

    found = F.udf(measure, FOUND, useArrow=False)("body")
    return messages.repartition(2).select("message_id", found.alias("file")).select("message_id", "file.*")


def upper(messages: DataFrame) -> DataFrame:
    return messages.selectExpr("message_id", "upper(body) AS body", "receive_count")


def fail(messages: DataFrame) -> None:
    raise ValueError("not today")


def fail_in_a_worker(messages: DataFrame) -> DataFrame:
    return modules(messages.selectExpr("message_id", "'no JSON' AS body"))


def refuse(messages: DataFrame) -> tuple[None, DataFrame]:
    """Fails each message that is not a number, with a reason."""
    failed = messages.where("try_cast(body AS int) IS NULL")
    return None, failed.selectExpr("message_id", "concat(body, ' is no number') AS reason")


def wait_for_an_extension(messages: DataFrame) -> DataFrame:
    """Returns once the receipts of the messages end later than they did at first."""
    from lakequeue import LakeQueue
    from serve.serving import wait_until

    queue = LakeQueue(os.environ["LAKEQUEUE_TEST_ROOT"]).queue("orders")

    def ends() -> list[object]:
        return [message.visible_at for message in queue.peek()]

    first = ends()
    wait_until(lambda: ends() > first, "an extension")
    return upper(messages)
