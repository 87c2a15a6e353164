"""Status files that running consumers write. The files make idle consumers visible, too (JOB-14)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

import attrs

from lakequeue.model.clock import format_instant, parse_instant

LARGEST = 64 * 1_024
"""Maximum size of a status file in bytes. A larger file is ignored."""


@attrs.frozen
class ConsumerProcess:
    """A process that runs or ran a consumer, as the last report of the process describes it.

    Attributes:
        started_at: when ``run`` began.
        seen_at: when the process last wrote its file.
        handlers: number of running handler calls at ``seen_at``.
        oldest_handler: when the oldest of these calls began. None if no handler ran.
        outage_since: when its storage or delivery table began to fail. None if they worked at ``seen_at``.
        outage_reason, failing_table: the outage's error, and the delivery table if the table fails.
        dumps: True if SIGUSR1 prints the stacks of the process's threads.
        ended, stopped: True if the process ran on this machine, and is gone or stopped. Not in the file.
    """

    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    handlers: int
    oldest_handler: datetime | None
    dumps: bool = False
    outage_since: datetime | None = None
    outage_reason: str | None = None
    failing_table: str | None = None
    ended: bool = False
    stopped: bool = False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def not_seen(self) -> str:
        """Returns a line with the time of the last report. Used for processes that may have been killed."""
        state = "killed, last seen" if self.ended else "stopped, last seen" if self.stopped else "not seen since"
        return f"{self}, {state} {self.seen_at:%F %T}Z"


@attrs.frozen
class ConsumerFile:
    """Content of a consumer's status file.

    Attributes:
        requests: number of storage requests, by kind.
        damaged: when the process last met damaged messages of a queue, by the queue's key.
        pid_space: identifies the machine and container in which the process id is valid. None if unknown.
        silent: True if the process has ended, is stopped, or has not written the file for long. Not in the file.
    """

    name: str
    queues: Sequence[str]
    process: ConsumerProcess
    requests: Mapping[str, int] = attrs.field(factory=dict)
    received: int = 0
    pid_space: str | None = None
    silent: bool = False
    damaged: Mapping[str, datetime] = attrs.field(factory=dict)

    def json(self) -> str:
        written = attrs.asdict(self, value_serializer=lambda _, __, value: _plain(value))
        del written["silent"], written["process"]["ended"], written["process"]["stopped"]
        return json.dumps(written)


def parse(text: bytes) -> ConsumerFile | None:
    """Parses a status file. Returns None for invalid content, which another program may have written."""
    try:
        found = json.loads(text)
        given = found["process"]
        instants = ("started_at", "seen_at", "oldest_handler", "outage_since")
        first, last, oldest, outage = (_instant(given.get(name)) for name in instants)
        texts, numbers = [found["name"], given["host"], *found["queues"]], [given["pid"], given["handlers"]]
        requests, received = dict(found.get("requests", {})), found.get("received", 0)
        dumps, told = (
            given.get("dumps", False),
            [given.get(name) or "" for name in ("outage_reason", "failing_table")],
        )
        texts, numbers = [*texts, *requests, *told], [*numbers, *requests.values(), received]
        if first is None or last is None or {*map(type, texts)} != {str} or {*map(type, numbers)} != {int}:
            return None
        process = ConsumerProcess(
            *(given["host"], given["pid"], first, last, given["handlers"], oldest, dumps is True),
            *(outage, told[0] or None, told[1] or None),
        )
        queues, space = tuple(found["queues"]), found.get("pid_space")
        damaged = {key: parse_instant(at).astimezone(timezone.utc) for key, at in found.get("damaged", {}).items()}
        return ConsumerFile(found["name"], queues, process, requests, received, space, damaged=damaged)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return None


def _plain(value: object) -> object:
    return format_instant(value) if isinstance(value, datetime) else value


def _instant(text: str | None) -> datetime | None:
    return None if text is None else parse_instant(text).astimezone(timezone.utc)
