"""Gives a Spark session access to an object store."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lakequeue.errors import QueueClientError
from lakequeue.storage.providers import PROVIDERS, scheme_of
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_NEWEST = "3.5.0"
"""Release of Hadoop in the newest pyspark that was tried."""

READ = {
    # names of files are not patterns
    "__globPaths__": "false",
    # Spark writes checksums of pages, and verifies none by default
    "parquet.page.verify-checksum.enabled": "true",
}
"""Spark's options for reading files whose names are known."""

_RIGHTS = ("aws.credentials.provider", "access.key", "secret.key", "session.token")


def packages(scheme: str, hadoop: str | None) -> tuple[str, ...]:
    """Returns the Maven packages that Spark needs to reach a root. Empty for a local root.

    ``hadoop`` is Spark's release of Hadoop, or None for the newest. Raises QueueClientError for a release without
    a file system for this scheme.
    """
    provider, hadoop = PROVIDERS.get(scheme), hadoop or _NEWEST
    if provider is None or not provider.hadoop:
        return ()
    if provider.connector and hadoop.startswith(("3.3", "3.4")):
        raise QueueClientError(
            f"Hadoop {hadoop} has no file system for {scheme}:// of its own: install pyspark 4.2, or name "
            f"{provider.connector} in spark.jars.packages"
        )
    release = provider.sdk_releases.get(hadoop, provider.sdk_releases.get(_NEWEST))
    return (f"org.apache.hadoop:{provider.hadoop}:{hadoop}", *(f"{name}:{release}" for name in provider.sdk))


def arrow_schema(chosen: StructType) -> pa.Schema:
    """Converts a Spark schema to the Arrow schema of Spark's record batches. Instants are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # From Spark 4.2 on, it has no default.
        return to_arrow_schema(chosen, timezone="UTC")
    return to_arrow_schema(chosen)


def is_remote(spark: SparkSession) -> bool:
    """True for a session of Spark Connect, which has no JVM in this process."""
    return getattr(spark, "_jsparkSession", None) is None


def is_stopped(spark: SparkSession) -> bool:
    return bool(spark.is_stopped if is_remote(spark) else spark.sparkContext._jsc is None)


def allow(spark: SparkSession, store: Store) -> None:
    """Lets a session reach a root on an object store. Does nothing for a local root.

    On S3, adds the root's credentials, endpoint and region to Spark's Hadoop configuration, for the root's bucket
    only. Spark sends these settings to the executors. Any code of the driver can read them, but plans, logs and
    ``SparkConf`` do not contain them. All other options stay in the driver.

    Settings that the session already has for the bucket are kept, also those of an earlier call. Credentials that
    expire need a provider in the session.

    Raises:
        QueueClientError: Spark lacks the file system, or needs another name of the root.
    """
    scheme = scheme_of(store.root)
    context: Any = getattr(spark, "_jsc", None)
    if not scheme or context is None:  # Spark Connect: its server has rights of its own
        return
    provider = PROVIDERS[scheme]
    if not provider.hadoop:
        raise QueueClientError(
            f"{store.root}: for Spark, name the root abfss://<container>@<account>.dfs.core.windows.net/…"
        )
    hadoop = context.hadoopConfiguration()
    file_system = _file_system(spark, hadoop, scheme)
    if provider.spark_settings is None:
        return
    # so that s3:// names the same file there, as the path of a checkpoint for example
    hadoop.setIfUnset(f"fs.{scheme}.impl", file_system)
    prefix = f"fs.{provider.hadoop_scheme}.bucket.{urlsplit(store.root).netloc}."
    settings = provider.spark_settings(store.options)
    if any(hadoop.get(prefix + name) is not None for name in _RIGHTS):
        settings = {name: value for name, value in settings.items() if name not in _RIGHTS}
    for name, value in settings.items():
        hadoop.setIfUnset(prefix + name, value)


def require_atomic_commits(store: Store) -> None:
    """Raises QueueClientError on S3, where two commits through Spark could overwrite each other."""
    provider = PROVIDERS.get(scheme_of(store.root))
    if provider is not None and provider.spark_overwrites:
        raise QueueClientError(
            f'{store.root}: engine="spark" cannot commit on S3, as two commits could overwrite each other there; '
            'engine="auto" can'
        )


def _file_system(spark: SparkSession, hadoop: Any, scheme: str) -> str:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    try:
        found = jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(PROVIDERS[scheme].hadoop_scheme, hadoop)
        return str(found.getName())
    except Py4JJavaError as error:
        wanted = packages(scheme, str(jvm.org.apache.hadoop.util.VersionInfo.getVersion()))[0]
        raise QueueClientError(
            f"this Spark session has no file system for {scheme}://: start it by build_session(root=…), or with "
            f"the packages in conf/, {wanted} for one"
        ) from error


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextlib.contextmanager
def quiet_about_pandas() -> Iterator[None]:
    """Hides PySpark's warning about a newer pandas during the block."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
