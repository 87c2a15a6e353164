"""What a Spark session needs to read and write a root on an object store: jars, and the rights to one bucket."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lakequeue.errors import QueueClientError
from lakequeue.storage.providers import PROVIDERS, scheme_of
from lakequeue.storage.stores import Store, bare_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEWEST = "3.5.0"
"""The release of Hadoop in the newest pyspark that was tried."""
_AWS_SDK = {"3.4.1": "2.24.6", "3.4.2": "2.29.52", _NEWEST: "2.35.4"}
"""The release of the AWS SDK that each hadoop-aws names."""

READ = {
    # names of files are not patterns
    "__globPaths__": "false",
    # Spark writes checksums of pages, and verifies none by default
    "parquet.page.verify-checksum.enabled": "true",
}
"""Options of a reader of files by their names."""

_S3A = "org.apache.hadoop.fs.s3a"
_SETTINGS = {
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "region": "endpoint.region",
    "default_region": "endpoint.region",
}
"""Settings of s3a by options of delta-rs, without their prefix."""
_RIGHTS = ("aws.credentials.provider", "access.key", "secret.key", "session.token")


def packages(scheme: str, hadoop: str | None) -> tuple[str, ...]:
    """Maven coordinates of the file system for the scheme of a root, none for a local one.

    Args:
        scheme: as ``scheme_of`` answers it.
        hadoop: release of Hadoop in Spark; None: of the newest Spark.

    Raises:
        QueueClientError: that Hadoop has no such file system.
    """
    hadoop = hadoop or _NEWEST
    # the parts of the AWS SDK that s3a uses, of the release that this hadoop-aws names
    sdk = _AWS_SDK.get(hadoop, _AWS_SDK[_NEWEST])
    if scheme == "s3":
        parts = (f"software.amazon.awssdk:{name}:{sdk}" for name in ("s3-transfer-manager", "sts"))
        return (f"org.apache.hadoop:hadoop-aws:{hadoop}", *parts)
    if scheme == "gs" and hadoop.startswith(("3.3", "3.4")):
        raise QueueClientError(
            f"Hadoop {hadoop} has no file system for gs:// of its own: install pyspark 4.2, or name Google's "
            "gcs-connector in spark.jars.packages"
        )
    provider = PROVIDERS.get(scheme)
    return (f"org.apache.hadoop:{provider.hadoop}:{hadoop}",) if provider and provider.hadoop else ()


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, which has no JVM in this process."""
    return getattr(spark, "_jsparkSession", None) is None


def is_stopped(spark: SparkSession) -> bool:
    return bool(spark.is_stopped if is_remote(spark) else spark.sparkContext._jsc is None)


def allow(spark: SparkSession, store: Store) -> None:
    """Lets a session reach a root on an object store; does nothing for a local one.

    Spark's rights come from its own Hadoop configuration: from the settings of the job, from the variables AWS_…
    of the driver, or from the role of the machine. On S3, the credentials, endpoint and region of the root's
    ``storage_options`` are added to it, for this bucket alone (``fs.s3a.bucket.<bucket>.…``). Spark sends this
    configuration to the executors with each job. It is in no plan, job argument or log, nor in ``SparkConf``, but
    any code of the driver can read it. The other options, and those for other stores, stay in the driver.

    What the session sets for the bucket itself wins. So do the first options of several, as Hadoop keeps the
    connection: credentials that expire need a provider in the session's own settings.

    Raises:
        QueueClientError: the session has no file system for the store, or Spark needs another name of the root.
    """
    scheme = scheme_of(store.root)
    context: Any = getattr(spark, "_jsc", None)
    if not scheme or context is None:  # Spark Connect: its server has rights of its own
        return
    if not PROVIDERS[scheme].hadoop:
        raise QueueClientError(
            f"{store.root}: for Spark, name the root abfss://<container>@<account>.dfs.core.windows.net/…"
        )
    hadoop = context.hadoopConfiguration()
    _require_file_system(spark, hadoop, scheme)
    if scheme != "s3":
        return
    # so that s3:// names the same file there, as the path of a checkpoint for example
    hadoop.setIfUnset("fs.s3.impl", f"{_S3A}.S3AFileSystem")
    prefix = f"fs.s3a.bucket.{urlsplit(store.root).netloc}."
    settings = s3a_settings(store.options)
    if any(hadoop.get(prefix + name) is not None for name in _RIGHTS):
        settings = {name: value for name, value in settings.items() if name not in _RIGHTS}
    for name, value in settings.items():
        hadoop.setIfUnset(prefix + name, value)


def s3a_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Settings of s3a for one bucket that mean what options of delta-rs mean."""
    given = {bare_name(name): value for name, value in options.items()}
    found = {_SETTINGS[name]: value for name, value in given.items() if name in _SETTINGS}
    if "access.key" in found:
        kind = "TemporaryAWSCredentialsProvider" if "session.token" in found else "SimpleAWSCredentialsProvider"
        found["aws.credentials.provider"] = f"{_S3A}.{kind}"
    elif given.get("skip_signature", "").lower() == "true":
        found["aws.credentials.provider"] = f"{_S3A}.AnonymousAWSCredentialsProvider"
    virtual = given.get("virtual_hosted_style_request", os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", ""))
    # Spark takes an endpoint from this variable by itself, but then asks for bucket.host, which few servers have
    if ("endpoint" in found or "AWS_ENDPOINT_URL" in os.environ) and virtual.lower() != "true":
        found["path.style.access"] = "true"
    return found


def require_atomic_commits(store: Store) -> None:
    """Refuses commits through Spark where two of them could overwrite each other.

    Raises:
        QueueClientError: the root is on S3, where Delta's log store checks and then writes.
    """
    if scheme_of(store.root) == "s3":
        raise QueueClientError(
            f'{store.root}: engine="spark" cannot commit on S3, as two commits could overwrite each other there; '
            'engine="auto" can'
        )


def _require_file_system(spark: SparkSession, hadoop: Any, scheme: str) -> None:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(PROVIDERS[scheme].hadoop_scheme, hadoop)
    except Py4JJavaError as error:
        wanted = packages(scheme, str(jvm.org.apache.hadoop.util.VersionInfo.getVersion()))[0]
        raise QueueClientError(
            f"this Spark session has no file system for {scheme}://: start it by build_session(root=…), or with "
            f"the packages in conf/, {wanted} for one"
        ) from error


def quoted(name: str) -> str:
    """A name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


@contextlib.contextmanager
def quiet_about_pandas() -> Iterator[None]:
    """PySpark imports pandas for functions over batches of Arrow, and warns of each that is newer than itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
