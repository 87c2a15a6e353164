"""The four lines of the data source in local mode; elsewhere they run on a cluster and through Spark Connect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.source_scenario import four_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.core
def test_the_four_lines_of_the_data_source(spark: SparkSession, tmp_path: Path) -> None:
    four_lines(spark, str(tmp_path / "root"), tmp_path)
