"""The source of the tests of streams: a batch for each file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = {f"file{number}": [f"{number}.{line}" for line in range(3)] for number in range(3)}
LINES = sorted(line for lines in FILES.values() for line in lines)


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


def drop(folder: Path) -> None:
    """Drops ``FILES``, whose lines are ``LINES``."""
    for number, (name, lines) in enumerate(FILES.items()):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
        os.utime(folder / name, (number, number))
