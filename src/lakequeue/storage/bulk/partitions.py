"""Partitions of a DataFrame, by any session of Spark 4: how many, and which rows go where."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def file_count(spark: SparkSession) -> int:
    """Number of files that a bulk send in message groups is written to: tasks that run at once, or fewer."""
    wanted = spark.conf.get("spark.sql.shuffle.partitions", "") or ""
    tasks = _tasks(spark)
    return min(int(wanted), tasks) if wanted.isdecimal() else tasks  # Databricks: "auto"


def _tasks(spark: SparkSession) -> int:
    """Number of tasks that run at once."""
    from pyspark.sql import functions as F

    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return int(context.defaultParallelism)
    # through Spark Connect there is no context; a range has as many partitions
    [[last]] = spark.range(2**16).select(F.spark_partition_id().alias("number")).agg(F.max("number")).collect()
    return int(last) + 1


def repartition_by_number(spark: SparkSession, df: DataFrame, count: int, number: Column) -> DataFrame:
    """The rows in ``count`` partitions, each in the partition of its number.

    Adaptive execution keeps a number of partitions that was asked for (REPARTITION_BY_NUM).
    """
    from pyspark.sql import functions as F

    if hasattr(df, "repartitionById"):  # since Spark 4.1
        return df.repartitionById(count, number)
    # earlier, rows go by the hash of a column: one value for each partition, found by trying
    key = F.col("id").cast("int")
    tried = spark.range(64 * count).select(F.pmod(F.hash(key), F.lit(count)).alias("number"), key.alias("key"))
    keys = {row.number: row.key for row in tried.collect()}
    if len(keys) < count:
        raise AssertionError(f"{count} partitions have no keys below {64 * count}")
    return df.repartition(count, F.element_at(F.array(*(F.lit(keys[i]) for i in range(count))), number + 1))
