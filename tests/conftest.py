"""Fixtures that every part of the suite shares."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakequeue import LakeQueue
from lakequeue.storage import clock_guard
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from objectstore.servers import Bucket


_directories = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, help="repeat one run of tests/simulation, by the seed that a failure told"
    )
    parser.addoption(
        "--write-transcripts", action="store_true", help="write anew what tests/acceptance/transcripts say"
    )


def pytest_configure() -> None:
    """Ctrl-C works in tests, and in the processes that they start, even in a background job of a shell.

    Such a job ignores SIGINT, and whoever it starts inherits that, unless it handles the signal itself.
    """
    os.environ.pop("COLUMNS", None)  # tests say how wide the terminal is
    # what one process compiles serves the others: the tests themselves, and commands that tests start
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["LAKEQUEUE_DURABILITY"] = "process"  # a power cut may take these queues; DUR tests say otherwise
    # hardly a query runs often enough to repay the second compiler: it took a third of the time of short sessions;
    # and a collector of one thread takes a seventh less than G1, whose threads and barriers serve large heaps
    # without the second compiler, a JVM has 48 MiB for compiled code: twenty tests fill that, then it interprets
    cache = "-XX:ReservedCodeCacheSize=256m"
    # queries run once or twice here: to compile each of them took a tenth to a fifth of the time
    interpreted = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 {cache} -XX:+UseSerialGC {interpreted}")
    clock_guard.SECOND_LOOK = 0.0  # nobody sets the clock right meanwhile; tests that do make the pause themselves
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Says what stays in one process of the run; what needs Spark and is not its core is slow.

    Each process of the run has a session of Spark of its own, but the core shares one, as a second one would take
    longer than it saves. Two processes that download the same at once would get in each other's way: jars for
    object stores, or the servers of these.
    """
    marked = {mark.name for mark in item.iter_markers()}
    server = getattr(item, "callspec", None) and item.callspec.params.get("bucket")
    if "spark" in marked and marked & {"core", "objectstore"}:
        item.add_marker(pytest.mark.xdist_group("spark"))
    elif marked & {"spark", "clients"}:
        item.add_marker(pytest.mark.xdist_group(item.location[0]))
    elif server:
        item.add_marker(pytest.mark.xdist_group(server))
    if "spark" in marked and not marked & {"core", "objectstore"}:
        item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of those that .ci/run runs together, the longest come first: at the end, short ones keep all busy."""
    items.sort(key=lambda item: Path(item.location[0]).parent.name not in {"objectstore", "clients", "spark"})


def pytest_collection_finish() -> None:
    """The garbage collector passes over what was collected here: 800,000 objects, half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A directory with a name of its own, as roots are known by path: pytest reuses names of removed ones."""
    path = tmp_path / str(next(_directories))
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def _loggers_stay() -> Iterator[None]:
    """What a command sets up for its own process to log with does not outlive its test."""
    loggers = logging.getLogger(), logging.getLogger("lakequeue.access")
    before = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lq(tmp_path: Path, clock: ManualClock) -> LakeQueue:
    """A root that does not exist yet."""
    return LakeQueue(str(tmp_path / "root"), clock=clock)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Bucket]:
    """A server of S3 for the whole run."""
    from objectstore import servers  # moto and boto3 take a second

    with servers.s3() as bucket:
        yield bucket


@pytest.fixture
def s3_root(s3_server: Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root on S3 that does not exist yet; the environment leads there."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.new_root()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of a process of the run, warm; tests keep apart by their ``tmp_path``."""
    from lakequeue.spark.session import build_session

    session = build_session(
        "lakequeue-tests",
        "local[2]",
        **{
            # 2 GiB are not enough for some hundred tests in one session
            "spark.driver.memory": "4g",
            # else spark-warehouse appears in the working directory
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            # two cores: more shuffle tasks only wait for each other
            "spark.sql.shuffle.partitions": "2",
            # VACUUM lists a folder with as many tasks: 10,000, a minute and a half for a file
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        },
    )
    _start_workers(session, tmp_path_factory.mktemp("first-stream"))
    yield session
    session.stop()


def _start_workers(session: SparkSession, folder: Path) -> None:
    """Starts each kind of Python process once, before a test needs it: from a cold disk that takes long."""
    from lakequeue.spark import stream_from_queue

    session.range(1).mapInArrow(lambda batches: batches, "id long").count()
    queue = LakeQueue(str(folder / "root"), spark=session).create_queue("first")
    queue.send("first")
    stream_from_queue(queue, lambda rows, _: None, str(folder / "checkpoint"), "availableNow").awaitTermination()
    assert queue.counts().visible == 0
