"""The source of the tests of streams: a batch for each file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Folder:
    """A folder that files are dropped into, a batch each."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        self.path = path
        self._dropped = 1_000_000_000
        path.mkdir()
        text = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        self.rows: DataFrame = text.load(str(path)).withColumnRenamed("value", "body")

    def drop(self, name: str, *lines: str) -> None:
        self._dropped += 1
        path = self.path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (self._dropped, self._dropped))  # batches go by the time of the files
