"""Binds a streaming checkpoint to one stream and one queue, by a file beside those of Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
from obstore.exceptions import BaseError

from lakequeue.errors import InvalidOptions, QueueClientError
from lakequeue.storage.engines.spark_access import is_remote
from lakequeue.storage.roots import root_of
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakequeue.queue import Queue

FILE = "lakequeue.json"
_IF_ABSENT = "fs.option.create.conditional.overwrite"
"""Hadoop's option of a file that must not exist yet, where the store decides it."""


@attrs.frozen
class Checkpoint:
    """A checkpoint that belongs to one stream of one queue."""

    stream: str
    """Id of the stream, kept in the checkpoint."""
    last_batch: int
    """Number of the newest micro-batch that Spark has started, finished or not; -1: none."""


def claim(spark: SparkSession, path: str, queue: Queue, kind: str) -> Checkpoint:
    """Binds a new checkpoint to a queue, or checks that an existing one is bound to it.

    Args:
        spark: the session that the query will run in; its Hadoop settings resolve ``path``.
        path: the checkpoint directory, as passed to Spark.
        queue: the queue that the stream sends to or receives from.
        kind: the function that starts the stream.

    Raises:
        InvalidOptions: the checkpoint belongs to another queue, to a deleted queue of the same name, to a stream
        in
            the other direction, or to a query that lakequeue did not start.
        QueueClientError: the checkpoint cannot be read or written.
    """
    with _errors(path):
        folder = (
            _RemoteFolder(queue._runtime.root.engine.store, path) if is_remote(spark) else _Folder(spark, path)
        )
        text = folder.read(FILE)
        if text is None:
            if folder.exists("metadata"):
                raise InvalidOptions([f"checkpoint {path} belongs to a query that {kind} did not start"])
            mine = {"stream": uuid.uuid4().hex, "kind": kind, "queue": queue.name, "region": queue.region}
            folder.write(FILE, json.dumps(mine | {"key": queue.key}))
            text = folder.read(FILE) or ""
        last_batch = max((int(name) for name in folder.names("offsets") if name.isdecimal()), default=-1)
    try:
        owner = json.loads(text)
        stream, kind_before, key = owner["stream"], owner["kind"], owner["key"]
    except (ValueError, KeyError, TypeError) as error:
        raise QueueClientError(f"{path}/{FILE} is damaged; use a new checkpoint") from error
    if key != queue.key:
        before = "an earlier queue of the name" if owner["queue"] == queue.name else "queue"
        raise InvalidOptions([f"checkpoint {path} belongs to {before} {owner['queue']}, not to {queue.name}"])
    if kind_before != kind:
        raise InvalidOptions([f"checkpoint {path} belongs to {kind_before}, not to {kind}"])
    return Checkpoint(stream, last_batch)


class _Folder:
    """A directory on the file system of the checkpoint."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._hadoop: Any = spark._jvm.org.apache.hadoop.fs
        self._path = self._hadoop.Path(path)
        self._system = self._path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._child(name)))

    def names(self, folder: str) -> list[str]:
        if not self.exists(folder):
            return []
        return [status.getPath().getName() for status in self._system.listStatus(self._child(folder))]

    def read(self, name: str) -> str | None:
        if not self.exists(name):
            return None
        stream = self._system.open(self._child(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Writes a file unless there is one; a process that is killed leaves at most a draft behind."""
        if self._system.hasPathCapability(self._path, _IF_ABSENT):
            self._write_if_absent(name, text)
            return
        draft = self._child(f".{name}.{uuid.uuid4().hex}")
        stream = self._system.create(draft, False)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not self._system.rename(draft, self._child(name)):
            self._system.delete(draft, False)  # another process was faster; its file stays

    def _write_if_absent(self, name: str, text: str) -> None:
        """As `write`, on S3: a rename is a check and a copy there, so two processes would both succeed."""
        from py4j.protocol import Py4JJavaError

        stream = self._system.createFile(self._child(name)).must(_IF_ABSENT, True).build()
        try:
            stream.write(bytearray(text.encode()))
            stream.close()
        except Py4JJavaError:
            if not self.exists(name):
                raise
            # another process was faster, or this one did, and the answer was lost; the caller reads it

    def _child(self, name: str) -> Any:
        return self._hadoop.Path(self._path, name)


class _RemoteFolder:
    """A directory that a session of Spark Connect keeps a checkpoint in, as this process reaches it itself."""

    def __init__(self, store: Store, path: str) -> None:
        uri = root_of(path)
        same = urlsplit(uri)[:2] == urlsplit(store.root)[:2]
        self._folder = Store(uri, store.options if same else None).folder(uri)

    def exists(self, name: str) -> bool:
        return self._folder.exists(name)

    def names(self, folder: str) -> list[str]:
        return [entry.name.rpartition("/")[2] for entry in self._folder.files(f"{folder}/")]

    def read(self, name: str) -> str | None:
        try:
            return self._folder.read(name).decode()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Writes a file unless there is one."""
        self._folder.create(name, text.encode())


@contextmanager
def _errors(path: str) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception.getMessage()).strip().partition("\n")[0]
        raise QueueClientError(f"checkpoint {path} cannot be used: {reason}") from error
    except (OSError, BaseError) as error:
        raise QueueClientError(f"checkpoint {path} cannot be used: {first_line(error)}") from error
