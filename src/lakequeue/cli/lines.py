"""Sends lines as messages: plain texts, or JSON Lines as ``export`` writes (docs/reference/cli.md)."""

from __future__ import annotations

import base64
import binascii
import codecs
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from lakequeue.cli import documents
from lakequeue.cli.values import duration
from lakequeue.errors import (
    BatchRequestTooLong,
    InvalidMessageContents,
    InvalidParameterValue,
    MissingParameter,
    QueueServiceError,
)
from lakequeue.model.messages import BatchFailure, BatchResult, SendEntry
from lakequeue.model.profiles import profile
from lakequeue.model.validation import TRACE_HEADER, normalize_attributes

if TYPE_CHECKING:
    from lakequeue import PeekedMessage, Queue

READ = 4 * 2**20
"""Maximum number of bytes that are read at once and sent in one commit."""
MAX_LINE_BYTES = 2 * READ
"""Maximum length of a line in bytes, above the body limit of every queue."""
MAX_BATCH = 5_000
"""Maximum number of entries in a batch, for queues without a limit of their own."""

Line = tuple[int, bytes]
Parse = Callable[[int, str], SendEntry]


def send_lines(
    queue: Queue,
    stream: io.BufferedIOBase,
    parse: Parse,
    sent: Callable[[BatchResult, int], None],
) -> None:
    """Sends each line as a message. Lines that arrive together are sent in one batch.

    Args:
        stream: lines in UTF-8. Empty lines and a byte order mark are skipped.
        parse: makes an entry from a line and its number. Raises QueueServiceError to refuse a line.
        sent: called after each batch with two arguments: its result (ids are line numbers), and the bytes read.
    """
    rules = profile(queue.attributes()["profile"])
    max_entries, max_bytes = rules.max_batch or MAX_BATCH, rules.batch_bytes or MAX_LINE_BYTES
    for arrived, read in _arrivals(stream):
        parsed = [_parsed(number, line, parse) for number, line in arrived if line]
        entries = [each for each in parsed if isinstance(each, SendEntry)]
        failed = [each for each in parsed if isinstance(each, BatchFailure)]
        if failed:
            sent(BatchResult([], failed), 0)
        for batch in batches(entries, max_entries, max_bytes):
            sent(_send(queue, batch), read)
            read = 0


def max_batch(queue: Queue) -> int:
    return profile(queue.attributes()["profile"]).max_batch or MAX_BATCH


def _arrivals(stream: io.BufferedIOBase) -> Iterator[tuple[list[Line], int]]:
    """Yields the numbered lines of each read, and the number of bytes read. Cuts lines that are too long."""
    rest, number = b"", 0
    while chunk := stream.read1(READ):
        *complete, rest = (rest + chunk).split(b"\n")
        yield (
            [(number + index, _stripped(number + index, line)) for index, line in enumerate(complete, 1)],
            len(chunk),
        )
        number += len(complete)
        rest = rest[: MAX_LINE_BYTES + 1]
    if rest:
        yield [(number + 1, _stripped(number + 1, rest))], 0


def _stripped(number: int, line: bytes) -> bytes:
    """Removes carriage returns at the end of a line. Removes the byte order mark of line 1."""
    return (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).rstrip(b"\r")


def _parsed(number: int, line: bytes, parse: Parse) -> SendEntry | BatchFailure:
    try:
        if len(line) > MAX_LINE_BYTES:
            raise InvalidParameterValue("The line is too long for a message.")
        return parse(number, line.decode())
    except UnicodeDecodeError as error:
        reason = f"The line is not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}."
        return BatchFailure.of(str(number), InvalidMessageContents(reason))
    except QueueServiceError as error:
        return BatchFailure.of(str(number), error)


def batches(entries: Sequence[SendEntry], max_entries: int, max_bytes: int) -> Iterator[list[SendEntry]]:
    """Yields batches within the limits of a call. An entry above the limits gets a batch of its own."""
    batch: list[SendEntry] = []
    size = 0
    for entry in entries:
        own = _size(entry)
        if batch and (len(batch) == max_entries or size + own > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += own
    if batch:
        yield batch


def _size(entry: SendEntry) -> int:
    # half a surrogate pair, which JSON can write, is refused later
    size = len(entry.body.encode(errors="surrogatepass"))
    try:
        attributes = normalize_attributes(entry.attributes)
    except InvalidParameterValue:  # refused by the send, which names the line
        return size
    return size + sum(len(name.encode()) + len(type_) + len(value) for name, (type_, value) in attributes.items())


def _send(queue: Queue, entries: list[SendEntry]) -> BatchResult:
    try:
        return queue.send_batch(entries)
    except BatchRequestTooLong as error:
        if len(entries) > 1:
            raise
        return BatchResult([], [BatchFailure.of(str(entries[0].id), error)])


# --- JSON Lines

_FIELDS = ("body", "attributes", "group_id", "dedup_id", "delay", "priority", "trace_header")
"""Fields of a line that a send puts into the message."""
_EXPORT_ONLY = ("message_id", "state", "sent_at", "visible_at", "receive_count", "source_queue", "moved_at")
"""Fields of a line that only an export writes. A send ignores these fields."""


def document(message: PeekedMessage, now: datetime, fifo: bool) -> dict[str, Any]:
    """Returns a message as a line of an export. A delayed message gets its remaining delay in seconds."""
    left = None
    if message.state.value == "delayed" and message.visible_at is not None and not fifo:
        left = max(0, math.ceil((message.visible_at - now).total_seconds()))  # not every profile accepts fractions
    own: dict[str, Any] = {"delay": left, "priority": message.priority or None, "state": message.state.value}
    own |= {"attributes": documents.attributes(message.message_attributes) or None}
    shown = {name: own[name] if name in own else getattr(message, name) for name in (*_FIELDS, *_EXPORT_ONLY)}
    return {name: value for name, value in shown.items() if value is not None}


class Reader:
    """Parses lines as entries for a queue. ``options`` are defaults for missing fields."""

    def __init__(self, queue: Queue, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._fifo = queue.fifo
        self._needs_dedup = queue.fifo and not queue.attributes()["content_based_deduplication"]

    def entry(self, number: int, line: str) -> SendEntry:
        """Parses a line as an entry with the line number as id. Raises QueueServiceError for an invalid line."""
        return SendEntry(id=str(number), **self._options | self._arguments(line))

    def _arguments(self, line: str) -> dict[str, Any]:
        try:
            given = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise InvalidParameterValue(f"The line is not JSON: {reason}.") from None
        if not isinstance(given, dict):
            raise InvalidParameterValue('The line is not a JSON object, such as {"body": "…"}.')
        for name in given:
            if name not in _FIELDS and name not in _EXPORT_ONLY:
                raise InvalidParameterValue(f"Unknown field {name!r}; fields are {', '.join(_FIELDS)}.")
        found = {name: given[name] for name in _FIELDS if given.get(name) is not None}
        for name in ("body", "group_id", "dedup_id", "trace_header"):
            if not isinstance(found.get(name, ""), str):
                raise InvalidParameterValue(f"Field {name} must be a text, not {json.dumps(found[name])[:40]}.")
        if not found.get("body"):
            raise MissingParameter("Field body is missing or empty.")
        if self._fifo and not (found.get("group_id") or self._options.get("group_id")):
            raise MissingParameter(
                "Field group_id is missing, which a FIFO queue needs; --group gives one to all."
            )
        if self._needs_dedup and not found.get("dedup_id"):
            raise MissingParameter(
                "Field dedup_id is missing, which a FIFO queue without content-based deduplication needs."
            )
        if "delay" in found:
            found["delay"] = _delay(found["delay"])
        if "attributes" in found:
            found["attributes"] = (self._options.get("attributes") or {}) | _attributes(found["attributes"])
        if "trace_header" in found:
            found["system_attributes"] = {TRACE_HEADER: found.pop("trace_header")}
        return found


def _delay(given: object) -> float:
    try:
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            raise typer.BadParameter(f"{json.dumps(given)[:40]} is not a duration")
        return duration(given)
    except typer.BadParameter as error:
        raise InvalidParameterValue(f"Field delay: {error.message}.") from None


def _attributes(given: object) -> dict[str, Any]:
    """Parses attributes: texts, numbers, or objects of type and value. Binary values are base64."""
    if not isinstance(given, dict):
        raise InvalidParameterValue("Field attributes must be an object of names and values.")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            if value.keys() != {"type", "value"} or not all(isinstance(each, str) for each in value.values()):
                raise InvalidParameterValue(f"Attribute {name!r} must have a type and a value, both texts.")
            found[name] = (value["type"], _value(name, value["type"], value["value"]))
        elif isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            found[name] = value
        else:
            raise InvalidParameterValue(f"Attribute {name!r} must be a text, a number, or a type and a value.")
    return found


def _value(name: str, type_: str, value: str) -> str | bytes:
    if not type_.startswith("Binary"):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise InvalidParameterValue(f"The value of attribute {name!r} is not base64.") from None
