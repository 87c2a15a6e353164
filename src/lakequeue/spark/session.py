"""Builds Spark sessions and registers the data source. Importing this module does not import pyspark."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lakequeue.errors import MissingPackage, QueueClientError
from lakequeue.spark.compiled_home import compiled_home
from lakequeue.storage.engines.spark_access import packages, quiet_about_pandas
from lakequeue.storage.providers import PROVIDERS, scheme_of
from lakequeue.storage.roots import root_of
from lakequeue.storage.store_failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRETS = "^storage[.]"
"""Matches the names of options whose values Spark must not show."""
SETTINGS: dict[str, str] = {
    # The extension parses Delta's SQL commands (MERGE, replaceWhere).
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    # SQL views look up delta.`path` in the session catalog.
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Instants are in UTC everywhere. A view must not depend on the zone of the machine.
    "spark.sql.session.timeZone": "UTC",
    # In places Spark parses partition values in the JVM's zone instead of the session's.
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
    # The Delta log of a queue is small. The default of 50 tasks to replay it costs a second per commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Ledger joins and counts are small. 200 shuffle tasks would dominate them.
    "spark.sql.shuffle.partitions": "4",
    # Jobs and tests do not use the UI, and its port clashes between processes.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # INT96 has no statistics and no time zone. The point engine writes microseconds, too.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The Delta log replaces the _SUCCESS file.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Options of the data source may be secrets under any name. Spark shows them in plans and errors.
    "spark.sql.redaction.options.regex": f"(?i)url|{SECRETS}",
    # Silences Spark before setLogLevel can be called.
    "spark.log.level": "ERROR",
}

_NOISE = re.compile(
    r"ERROR (WriteToDataSourceV2Exec: Data source write support .*\] (is aborting|aborted|failed to abort)\."
    r"|DataWritingSparkTask: Abort(ing|ed) commit for|Utils: Aborting task$)"
    r"|^org\.apache\.spark\.TaskKilledException: Stage cancelled|\tat |^Setting Spark log level to"
)
"""Matches lines of Spark's log that only repeat an exception, or report a stopped query."""
_STARTED = "the JVM has started\n"


def build_session(
    app_name: str = "lakequeue", master: str | None = None, root: str | None = None, **extra: str
) -> SparkSession:
    """Starts a Spark session for lakequeue, or returns the running session.

    Under ``spark-submit``, the master, memory and packages of that command apply. Otherwise, Ivy finds and caches
    Delta's jar.

    Args:
        app_name: name in the cluster's lists.
        master: for example ``local[2]``; None for the master of ``spark-submit``, or ``local[*]`` without
            ``spark-submit``.
        root: the root to open in the session. For a root in an object store, Spark gets the file system for it.
        extra: further settings, by their full names: ``**{"spark.driver.memory": "2g"}``.

    Raises:
        QueueClientError: Java, delta-spark or the Delta jars are missing.
    """
    unknown = sorted(name for name in extra if not name.startswith("spark."))
    if unknown:
        raise QueueClientError(f"Spark settings start with 'spark.': {', '.join(unknown)}")
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    with quiet_about_pandas():
        # Imported here without the warning that an import by py4j would show.
        importlib.import_module("pyspark.testing.utils")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has already started the JVM.
    running = SparkContext._active_spark_context is not None
    if not submitted and not running:
        _require_java()

    configured = SparkConf(loadDefaults=SparkContext._jvm is not None)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    if not submitted and (master or configured.get("spark.master") or "local").startswith("local"):
        # By default, Python workers run the python3 on the PATH, which may be another interpreter.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in (SETTINGS | extra).items():
        if name in extra or configured.get(name) is None:
            builder = builder.config(name, value)
    # Under spark-submit, the conf file or --packages provides the jars.
    if "spark.jars.packages" not in extra and configured.get("spark.jars.packages") is None and not submitted:
        more = (extra.get("spark.jars.extraPackages") or "").split(",")
        scheme = "" if root is None else scheme_of(root_of(root))
        jars = (installed_delta_jar(), *more, *packages(scheme, installed_hadoop()))
        builder = builder.config("spark.jars.packages", ",".join(filter(None, jars)))
        if configured.get("spark.jars.excludes") is None and "spark.jars.excludes" not in extra:
            builder = builder.config("spark.jars.excludes", ",".join(excluded(scheme)))

    if not submitted and not running and SparkContext._gateway is None:
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(builder._options.items()))
        with compiled_home(conf.get("spark.master", "local")):
            _launch(conf)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise QueueClientError(f"Spark did not start: {first_line(error)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def register(spark: SparkSession) -> None:
    """Registers the data source ``lakequeue`` in a session. Makes plans hide values of ``storage.`` options."""
    from pyspark.errors import AnalysisException

    from pyspark_lakequeue import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark has found it by itself.
            raise
    name = "spark.sql.redaction.options.regex"
    hidden = spark.conf.get(name)
    if hidden is None or SECRETS not in hidden:
        spark.conf.set(name, f"{hidden}|{SECRETS}" if hidden else SECRETS)


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=os.path.join(home, "bin") if home else None) is not None:
        return
    if home:
        raise QueueClientError(
            f"JAVA_HOME is {home}, but there is no bin/java in it; Spark needs Java 17 or later"
        )
    raise QueueClientError("Spark needs Java 17 or later: set JAVA_HOME or put java on the PATH")


def _launch(conf: object) -> None:
    """Starts the JVM, and filters its standard error. Raises QueueClientError if Spark does not start."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    read, write = os.pipe()
    last: deque[str] = deque(maxlen=200)
    arguments = os.fdopen(read, errors="replace"), last
    reader = threading.Thread(target=_forward, args=arguments, name="lakequeue-jvm-stderr", daemon=True)
    reader.start()
    try:
        gateway = launch_gateway(conf, {"stderr": write, "stdout": subprocess.DEVNULL})
        os.write(write, _STARTED.encode())
    except PySparkRuntimeError as error:
        os.close(write)
        reader.join(5)
        raise QueueClientError(_reason(last)) from error
    os.close(write)
    SparkContext._ensure_initialized(gateway=gateway)


def _forward(lines: IO[str], last: deque[str]) -> None:
    """Collects the JVM's standard error in ``last`` until the JVM has started, then forwards it without noise."""
    while (line := lines.readline()) not in ("", _STARTED):
        last.append(line)
    for line in lines:
        if not _NOISE.search(line):
            sys.stderr.write(line)


def _reason(lines: deque[str]) -> str:
    text = "".join(lines)
    failed = re.search(r"(unresolved dependency|download failed): ?([^\],\s]+)", text)
    if failed is not None:
        return (
            f"Spark could not get its Delta jars ({failed[1]}: {failed[2]}): check the network, or the local "
            "Ivy and Maven repositories for entries with a pom but no jar, or set spark.jars.packages"
        )
    printed = [line.strip() for line in lines if line.strip() and not line.startswith(("\t", "::"))]
    return f"Spark did not start: {printed[-1] if printed else 'its Java process ended without a message'}"


JARS: Mapping[str, Sequence[str]] = {
    "4.0": ("4.0.0", "4.0.1", "4.1.0", "4.2.0", "4.3.0", "4.3.1", "4.4.0"),
    "4.1": ("4.1.0", "4.2.0", "4.3.0", "4.3.1", "4.4.0"),
    "4.2": ("4.4.0",),
}
"""Releases of Delta whose jars are on Maven Central, by minor version of Spark. The oldest release comes first."""
_WHEEL_ONLY = {"4.4.1"}
"""Releases of the Python package delta-spark for which no jars were published."""
_BEFORE_SUFFIX = {"4.0.0", "4.0.1"}
"""Releases of Delta whose Maven artifacts do not have a version of Spark in their names."""


IN_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.google.code.findbugs:*",
    "commons-logging:commons-logging",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
)
"""Dependencies of Delta and of store clients that every Spark already contains: 25 jars, together 76 MB."""


def excluded(scheme: str) -> tuple[str, ...]:
    """Returns the dependencies that Ivy can omit in any session: dependencies of Delta's jar, and of the packages
    that a URL scheme such as ``s3a`` needs.
    """
    return (*IN_SPARK, *(PROVIDERS[scheme].excluded if scheme else ()))


def delta_jar(spark: str, delta: str) -> str:
    """Returns the Maven coordinates of Delta's jar for versions of pyspark and delta-spark.

    The jar has the release of delta-spark if possible, else the newest release for this Spark, which works as
    well. Raises QueueClientError if no jar of Delta for this Spark is published.
    """
    minor = ".".join(spark.split(".")[:2])
    known = JARS.get(minor, ())
    newest = max((_order(release) for releases in JARS.values() for release in releases), default=())
    if minor == "4.1" and delta == "4.1.0" and spark != "4.1.0":
        # Spark 4.1.4 has no class IgnoreCachedData, which this jar loads for engine="spark".
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
    """Returns ``delta_jar`` for the installed packages. Raises QueueClientError if a jar or package is missing."""
    try:
        return delta_jar(version("pyspark"), version("delta-spark"))
    except PackageNotFoundError as error:
        raise MissingPackage.of("a session without spark.jars.packages", "spark", error) from error


def installed_hadoop() -> str | None:
    """Returns the release of Hadoop in the installed pyspark; None if pyspark contains no Hadoop."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    names = (re.fullmatch(r"hadoop-client-api-(.+)\.jar", path.name) for path in jars.glob("hadoop-client-api-*"))
    return next((name[1] for name in names if name is not None), None)


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release))
