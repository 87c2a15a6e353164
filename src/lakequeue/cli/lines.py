"""Sends a stream of lines as batches of messages."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lakequeue.cli.session import usage
from lakequeue.errors import BatchRequestTooLong, InvalidParameterValue
from lakequeue.model.messages import BatchFailure, BatchResult, SendEntry
from lakequeue.model.profiles import profile
from lakequeue.model.validation import normalize_attributes

if TYPE_CHECKING:
    from lakequeue import Queue

READ = 4 * 2**20
"""Maximum number of bytes that are read at once, and so are sent in one commit."""
MAX_LINE_BYTES = 2 * READ
"""Maximum length of a line; every queue refuses much shorter bodies."""
MAX_BATCH = 5_000
"""Maximum entries of a batch on queues without a limit."""

Line = tuple[int, str]
Parse = Callable[[int, str], SendEntry | BatchFailure]


def send_lines(
    queue: Queue,
    stream: io.BufferedIOBase,
    parse: Parse,
    sent: Callable[[BatchResult, int], None],
) -> None:
    """Sends each line as a message; lines that arrive together are sent in one batch.

    Args:
        queue: the queue.
        stream: lines in UTF-8; empty lines are skipped.
        parse: makes an entry of the number of a line and its text, or says why there is none.
        sent: called after each batch with its result, whose ids are line numbers, and the number of bytes read
            for it. Refused lines do not stop the others.
    """
    rules = profile(queue.attributes()["profile"])
    max_entries, max_bytes = rules.max_batch or MAX_BATCH, rules.batch_bytes or MAX_LINE_BYTES
    for arrived, read in _arrivals(stream):
        parsed = [parse(number, text) for number, text in arrived if text]
        entries = [each for each in parsed if isinstance(each, SendEntry)]
        failed = [each for each in parsed if isinstance(each, BatchFailure)]
        if failed:
            sent(BatchResult([], failed), 0)
        for batch in batches(entries, max_entries, max_bytes):
            sent(_send(queue, batch), read)
            read = 0


def max_batch(queue: Queue) -> int:
    """Maximum number of entries in one batch."""
    return profile(queue.attributes()["profile"]).max_batch or MAX_BATCH


def _arrivals(stream: io.BufferedIOBase) -> Iterator[tuple[list[Line], int]]:
    """The numbered lines that each read completes, and the number of bytes read."""
    rest, number = b"", 0
    while chunk := stream.read1(READ):
        *complete, rest = (rest + chunk).split(b"\n")
        yield [_line(number + index, line) for index, line in enumerate(complete, 1)], len(chunk)
        number += len(complete)
        if len(rest) > MAX_LINE_BYTES:
            usage(f"line {number + 1} is too long for a message")
    if rest:
        yield [_line(number + 1, rest)], 0


def _line(number: int, line: bytes) -> Line:
    try:
        return number, line.rstrip(b"\r").decode()
    except UnicodeDecodeError:
        usage(f"line {number} is not UTF-8")


def batches(entries: Sequence[SendEntry], max_entries: int, max_bytes: int) -> Iterator[list[SendEntry]]:
    """Batches within the limits of a call; an entry that exceeds them is a batch of its own."""
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
    """Bytes that count towards the limit of a call."""
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
