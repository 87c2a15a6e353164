"""Finds and creates delivery tables by name in the catalogs of a Spark session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from lakequeue.errors import TableUnavailable
from lakequeue.storage.roots import root_of
from lakequeue.storage.store_failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def location(spark: SparkSession, name: str) -> str | None:
    """Returns the path or URI of a Delta table. Returns None if no such table exists. Raises TableUnavailable."""
    from pyspark.errors import PySparkException

    try:
        if not spark.catalog.tableExists(name):
            return None
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {_quoted(name)}").collect()
    except PySparkException as error:
        raise TableUnavailable(name, f"cannot be found: {first_line(error)}") from error
    found = {row.col_name: row.data_type for row in rows}
    if str(found.get("Provider", "")).lower() != "delta" or not found.get("Location"):
        raise TableUnavailable(name, "is not a Delta table")
    return root_of(found["Location"])


def create(spark: SparkSession, name: str, schema: Callable[[], pa.Schema]) -> None:
    """Creates an empty Delta table in a catalog, unless the table exists. Raises TableUnavailable."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        if spark.catalog.tableExists(name):
            return
        empty = spark.createDataFrame([], from_arrow_schema(schema()))
        empty.write.format("delta").mode("ignore").saveAsTable(_quoted(name))
    except PySparkException as error:
        raise TableUnavailable(name, f"cannot be created: {first_line(error)}") from error


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))
