"""What a running consumer says of itself in a small file, by which idle consumers are seen too (JOB-14)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone

import attrs

from lakequeue.model.clock import format_instant, parse_instant

LARGEST = 64 * 1_024
"""Bytes of such a file; a larger one is ignored."""


@attrs.frozen
class ConsumerProcess:
    """A process in which a consumer runs, as it said at most a minute ago.

    Attributes:
        host: name of its machine.
        pid: its process id there.
        started_at: when ``run`` began.
        seen_at: when the process last said so.
        handlers: number of calls of the handler that ran then.
        oldest_handler: when the oldest of them began; None if no handler ran.
    """

    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    handlers: int
    oldest_handler: datetime | None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@attrs.frozen
class ConsumerFile:
    """The content of the file: the consumer's name, the keys of its queues, and its process."""

    name: str
    queues: Sequence[str]
    process: ConsumerProcess

    def json(self) -> str:
        """The file as JSON."""
        return json.dumps(attrs.asdict(self, value_serializer=lambda _, __, value: _plain(value)))


def parse(text: bytes) -> ConsumerFile | None:
    """Parses such a file; None if it holds anything else: any program that may write the root may have made it."""
    try:
        found = json.loads(text)
        given = found["process"]
        first, last, oldest = (_instant(given[name]) for name in ("started_at", "seen_at", "oldest_handler"))
        texts, numbers = [found["name"], given["host"], *found["queues"]], [given["pid"], given["handlers"]]
        if first is None or last is None or {*map(type, texts)} != {str} or {*map(type, numbers)} != {int}:
            return None
        process = ConsumerProcess(given["host"], given["pid"], first, last, given["handlers"], oldest)
        return ConsumerFile(found["name"], tuple(found["queues"]), process)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return None


def _plain(value: object) -> object:
    return format_instant(value) if isinstance(value, datetime) else value


def _instant(text: str | None) -> datetime | None:
    return None if text is None else parse_instant(text).astimezone(timezone.utc)
