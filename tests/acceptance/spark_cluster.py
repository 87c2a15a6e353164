"""A standalone Spark cluster on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from acceptance.submitting import environment


class Daemon:
    """A master or worker of the installed pyspark; its log is read to the end, so that it never waits."""

    def __init__(self, *args: str) -> None:
        import pyspark

        home = os.path.dirname(pyspark.__file__)
        self._process = subprocess.Popen(
            [f"{home}/bin/spark-class", *args],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # Java reads its options in executors, too, which are processes of a worker
            env=environment()
            | {
                "SPARK_HOME": home,
                "SPARK_DAEMON_MEMORY": "512m",
                "JDK_JAVA_OPTIONS": os.environ["SPARK_SUBMIT_OPTS"],
            },
        )
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()

    def says(self, pattern: str) -> str:
        """Waits for a line in the log; the first group of the pattern."""

        def found() -> re.Match[str] | None:
            return next((match for line in self._lines if (match := re.search(pattern, line))), None)

        with self._more:
            assert self._more.wait_for(lambda: found() is not None, 120), "".join(self._lines)
            match = found()
        assert match is not None
        return match[1]

    def said(self) -> str:
        """The log so far."""
        with self._more:
            return "".join(self._lines)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@attrs.frozen
class Cluster:
    """A master and two workers."""

    url: str
    daemons: list[Daemon]

    def log(self) -> str:
        """What all of them said, the command lines of executors among it."""
        return "".join(daemon.said() for daemon in self.daemons)


@contextmanager
def cluster(place: Path) -> Iterator[Cluster]:
    """A master and two workers on loopback, as large as conf/standalone.conf asks for."""
    web = ("--webui-port", "0", "--host", "127.0.0.1")
    daemons = [Daemon("org.apache.spark.deploy.master.Master", "--port", "0", *web)]
    try:
        url = daemons[0].says(r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            size = ("--cores", "2", "--memory", "2g", "--work-dir", str(place / f"worker{number}"))
            daemons.append(Daemon("org.apache.spark.deploy.worker.Worker", *web, *size, url))
        for worker in daemons[1:]:
            worker.says(r"(Successfully registered) with master")
        yield Cluster(url, daemons)
    finally:
        for daemon in reversed(daemons):
            daemon.stop()
