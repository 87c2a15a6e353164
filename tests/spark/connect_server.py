"""A server of Spark Connect on this machine, and a session of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acceptance.spark_cluster import Daemon
from lakequeue.spark.session import SETTINGS, installed_delta_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def server(place: Path) -> Iterator[str]:
    """Starts a server on loopback; its address."""
    settings = {
        **{name: SETTINGS[name] for name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")},
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.warehouse.dir": str(place),
        "spark.jars.packages": installed_delta_jar(),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    daemon = Daemon("org.apache.spark.deploy.SparkSubmit", "--class", SERVER, *options, "spark-internal")
    try:
        port = daemon.says(r"Spark Connect server started at: \S*:(\d+)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        daemon.stop()


@contextmanager
def session(address: str) -> Iterator[SparkSession]:
    """A remote session, also where this process has a session of its own, which rests meanwhile."""
    from pyspark.sql.connect.session import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # functions make columns for remote sessions
        spark = SparkSession.builder.remote(address).create()
        yield spark
        spark.stop()
