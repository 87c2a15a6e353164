"""A stream of lines as batches of messages."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lakequeue.cli.frame import usage
from lakequeue.errors import BatchRequestTooLong
from lakequeue.model.messages import BatchFailure, BatchResult, SendEntry, normalize_attributes
from lakequeue.model.profiles import profile

if TYPE_CHECKING:
    from lakequeue import Queue

READ = 4 * 2**20
"""Bytes that are read at once at most, and so sent in one commit at most."""
LONGEST = 2 * READ
"""Bytes of a line; every queue refuses bodies that are much shorter."""
MOST = 5_000
"""Entries of a batch on queues that set no limit."""

Line = tuple[int, str]


def send_lines(
    queue: Queue,
    stream: io.BufferedIOBase,
    options: dict[str, Any],
    sent: Callable[[BatchResult, int], None],
) -> None:
    """Sends each line as a message, as soon as it arrives and with the others that arrived by then.

    Args:
        queue: where to.
        stream: lines in UTF-8; empty ones are passed over.
        options: for every message, as in ``SendEntry``.
        sent: called after each commit with its result, whose ids are line numbers, and with the bytes
            that were read for it. Refused lines do not stop the others.
    """
    rules = profile(queue.attributes()["Profile"])
    attributes = normalize_attributes(options["attributes"])
    extra = sum(len(name.encode()) + len(type_) + len(value) for name, (type_, value) in attributes.items())
    most, most_bytes = rules.max_batch or MOST, rules.batch_bytes or LONGEST
    for arrived, read in _arrivals(stream):
        for batch in _batches(arrived, most, most_bytes, extra):
            entries = [SendEntry(body, str(number), **options) for number, body in batch]
            sent(_send(queue, entries), read)
            read = 0


def most_at_once(queue: Queue) -> int:
    """Entries that one batch may have."""
    return profile(queue.attributes()["Profile"]).max_batch or MOST


def _arrivals(stream: io.BufferedIOBase) -> Iterator[tuple[list[Line], int]]:
    """The numbered lines that each read completes, and how many bytes it read."""
    rest, number = b"", 0
    while chunk := stream.read1(READ):
        *complete, rest = (rest + chunk).split(b"\n")
        yield [_line(number + index, line) for index, line in enumerate(complete, 1)], len(chunk)
        number += len(complete)
        if len(rest) > LONGEST:
            usage(f"line {number + 1} is too long for a message")
    if rest:
        yield [_line(number + 1, rest)], 0


def _line(number: int, line: bytes) -> Line:
    try:
        return number, line.rstrip(b"\r").decode()
    except UnicodeDecodeError:
        usage(f"line {number} is not UTF-8")


def _batches(lines: Sequence[Line], most: int, most_bytes: int, extra: int) -> Iterator[list[Line]]:
    """Batches within the limits of a call; a line that breaks them alone is a batch of its own."""
    batch: list[Line] = []
    size = 0
    for number, body in lines:
        if not body:
            continue
        own = len(body.encode()) + extra
        if batch and (len(batch) == most or size + own > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append((number, body))
        size += own
    if batch:
        yield batch


def _send(queue: Queue, entries: list[SendEntry]) -> BatchResult:
    try:
        return queue.send_batch(entries)
    except BatchRequestTooLong as error:
        if len(entries) > 1:
            raise
        return BatchResult([], [BatchFailure.of(str(entries[0].id), error)])
