"""Sends one message for each new file (RLY-6). Any number of processes may send at the same time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping

import attrs
import pyarrow as pa

from lakequeue.errors import InvalidOptions, InvalidParameterValue, QueueClientError, RequestThrottled
from lakequeue.operations.json_rows import WHOLE_ROW, Bodies
from lakequeue.operations.results import SentRows
from lakequeue.operations.send_dataframe import BulkSend, bulk_target, complete_batch, last_version, send_staged
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.storage.bulk import arrow_files
from lakequeue.storage.bulk.arrow_rows import columns_of
from lakequeue.storage.bulk.manifests import Manifest, SendKey
from lakequeue.storage.bulk.sent_files import FILES, SentFiles
from lakequeue.storage.bulk.staging import Staging
from lakequeue.storage.folder import Folder
from lakequeue.storage.layout import stream_id
from lakequeue.storage.roots import is_local_folder, local_path, root_of
from lakequeue.storage.stores import Store

_COLUMNS = pa.schema([*FILES][:3])
"""Columns about a file. The body of the file's message consists of these columns."""
_TRIES = 10
"""Number of attempts. If other processes are faster in each attempt, the call raises RequestThrottled."""


@attrs.frozen
class Pattern:
    """Files below ``base`` whose paths match ``rest``. ``*`` matches any name, ``**`` any directories."""

    base: str
    rest: str

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Parses a pattern. Raises InvalidParameterValue for unknown wildcards, or if no files are named."""
        fixed, _, rest = text.partition("*")
        base, _, name = fixed.rpartition("/")
        if re.search(r"[?\[\]]", text):
            raise InvalidParameterValue.of(text, "files", "Only * and ** are wildcards.")
        if "*" not in text and not name:
            raise InvalidParameterValue.of(text, "files", "Must name files, such as landing/*.json.")
        wildcard = "*" if "*" in text else ""
        return cls(root_of(base or ("/" if text.startswith("/") else ".")), f"{name}{wildcard}{rest}")

    def matches(self) -> Callable[[str], object]:
        """Returns a function of paths relative to ``base``. Its result is true if the pattern matches the path."""
        parts = []
        for part in self.rest.split("/"):
            names = "[^/]*".join(map(re.escape, part.split("*")))
            hidden = r"(?!\.)" if part.startswith("*") else ""
            parts.append(r"(?:(?!\.)[^/]+/)*" if part == "**" else f"{hidden}{names}/")
        return re.compile("".join(parts).removesuffix("/")).fullmatch

    def __str__(self) -> str:
        return f"{self.base}/{self.rest}"


def relay_files(
    queue: OpenQueue, pattern: Pattern, columns: Mapping[str, str | None], options: Mapping[str, str] | None
) -> SentRows:
    """Sends one message for each new file. Returns the number of messages that this call sent."""
    if f"{pattern.base}/".startswith(f"{queue.root.path}/"):
        raise InvalidOptions([f"files {pattern} are in the root, where only lakequeue's tables are"])
    queue.reload()  # raises if the queue was deleted
    with queue.root.storage_errors():
        given = {name: column for name, column in columns.items() if column is not None}
        return _FileRelay(queue, pattern, given, options).run()


class _FileRelay:
    def __init__(
        self, queue: OpenQueue, pattern: Pattern, columns: Mapping[str, str], options: Mapping[str, str] | None
    ) -> None:
        self._queue, self._pattern = queue, pattern
        store = Store(pattern.base, queue.root.engine.store.options if options is None else options)
        store.check()
        if local_path(pattern.base) is not None and not is_local_folder(pattern.base):
            raise QueueClientError(f"{pattern.base} is no directory")
        self._source = store.folder(pattern.base)
        self._stream = f"relay-{hashlib.sha256(str(pattern).encode()).hexdigest()[:32]}"
        self._bodies = Bodies(_COLUMNS, WHOLE_ROW, None, queue.attributes.priorities is not None, columns)
        self._sent = 0

    def run(self) -> SentRows:
        for _ in range(_TRIES):
            sent = SentFiles(bulk_target(self._queue).tables / f"relays/{self._stream}")
            self._finish(sent)
            number = sent.last
            for files in sent.new(self._found()):
                number += 1
                if not sent.decide(number, files):
                    break  # another process was first, maybe with other files
                self._send(number, files)
            else:
                sent.refresh()
                sent.merge()
                return SentRows(self._sent)
        raise RequestThrottled(f"other processes relay {self._pattern}, and were always first; try again")

    def _finish(self, sent: SentFiles) -> None:
        """Sends the batches that a process recorded but did not send. That process may have been killed."""
        done = last_version(self._queue, stream_id(self._stream))
        if done > sent.last:
            raise QueueClientError(
                f"{self._queue.name} has {done} batches of {self._pattern}, but the record of files that were "
                f"sent only {sent.last}: it was put back, or lost"
            )
        if done:
            complete_batch(self._queue, self._key(done))
        for number in range(done + 1, sent.last + 1):
            self._send(number, sent.batch(number))

    def _found(self) -> Iterator[tuple[str, int, int]]:
        matches = self._pattern.matches()
        for entry in self._source.files():
            if matches(entry.name):
                yield f"{self._pattern.base}/{entry.name}", entry.size, round(entry.modified * 1_000_000)

    def _send(self, number: int, files: pa.Table) -> None:
        def stage(tables: Folder, staging: Staging) -> Manifest:
            rows = files.select(_COLUMNS.names).to_batches()
            return arrow_files.stage(tables, staging, self._bodies.of(rows))[0]

        send = BulkSend(self._key(number), turn=number)
        self._sent += send_staged(self._queue, columns_of(self._bodies.schema), send, stage, "relay")

    def _key(self, number: int) -> SendKey:
        return SendKey.of_batch(self._stream, number - 1)
