"""Object stores on this machine, each a process of its own: S3 by moto, Azure by Azurite, GCS by its fake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import attrs
from benchmarks import object_store

BUCKET = object_store.BUCKET


@attrs.frozen
class Bucket:
    """A bucket on a server.

    Attributes:
        uri: of the bucket.
        environment: variables that direct clients to the server.
    """

    uri: str
    environment: Mapping[str, str]

    def new_root(self) -> str:
        """A root that does not exist yet."""
        return f"{self.uri}/{uuid4().hex}"


@contextmanager
def started(command: list[str | Path]) -> Iterator[subprocess.Popen[str]]:
    """Runs a server until the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def s3() -> Iterator[Bucket]:
    """moto behind a lock."""
    with started([sys.executable, object_store.__file__]) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        yield Bucket(f"s3://{BUCKET}", object_store.environment(url))
