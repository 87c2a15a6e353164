"""Which jars of Delta belong to an installed pair of pyspark and delta-spark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lakequeue.errors import MissingPackage, QueueClientError

JARS: Mapping[str, Sequence[str]] = {
    "4.0": ("4.0.0", "4.0.1", "4.1.0", "4.2.0", "4.3.0", "4.3.1", "4.4.0"),
    "4.1": ("4.1.0", "4.2.0", "4.3.0", "4.3.1", "4.4.0"),
    "4.2": ("4.4.0",),
}
"""Releases of Delta that have jars on Maven Central for a minor version of Spark, oldest first."""
_WHEEL_ONLY = {"4.4.1"}
"""Releases of delta-spark whose jars were never published."""
_BEFORE_SUFFIX = {"4.0.0", "4.0.1"}
"""Releases whose artifact does not name the version of Spark."""


def delta_jar(spark: str, delta: str) -> str:
    """The Maven coordinates of Delta's jar for versions of pyspark and delta-spark.

    It is the release of delta-spark itself if that has a jar for this Spark, else the newest one that has: the
    Python package is a thin wrapper that works with a newer or older jar. Releases that this version of lakequeue
    does not know are taken to have jars.

    Raises:
        QueueClientError: no jar of Delta for this Spark is published.
    """
    minor = ".".join(spark.split(".")[:2])
    known = JARS.get(minor, ())
    newest = max((_order(release) for releases in JARS.values() for release in releases), default=())
    if minor == "4.1" and delta == "4.1.0" and spark != "4.1.0":
        # Spark 4.1.4 has no class IgnoreCachedData, which this jar loads for engine="spark"
        delta = known[-1]
    elif delta not in known and (_order(delta) <= newest or delta in _WHEEL_ONLY):
        if not known:
            raise QueueClientError(
                f"no jar of Delta for Spark {minor} is published (pyspark {spark}, delta-spark {delta}): install "
                f"pyspark {max(JARS, key=_order)}, set spark.jars.packages, or use a session of your own without "
                'Delta, which only SQL views and engine="spark" need'
            )
        delta = known[-1]
    suffix = "" if delta in _BEFORE_SUFFIX else f"_{minor}"
    return f"io.delta:delta-spark{suffix}_2.13:{delta}"


def installed_delta_jar() -> str:
    """``delta_jar`` for the packages that are installed.

    Raises:
        QueueClientError: one of them is missing, or no jar is published for them.
    """
    try:
        return delta_jar(version("pyspark"), version("delta-spark"))
    except PackageNotFoundError as error:
        raise MissingPackage.of("a session without spark.jars.packages", "spark", error) from error


def installed_hadoop() -> str | None:
    """The release of Hadoop in the installed pyspark, or None if it has none of its own."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    names = (re.fullmatch(r"hadoop-client-api-(.+)\.jar", path.name) for path in jars.glob("hadoop-client-api-*"))
    return next((name[1] for name in names if name is not None), None)


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release))
