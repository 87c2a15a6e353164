"""Options of the data source. They are checked before anything is read or written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import settings
from lakequeue.errors import InvalidOptions, QueueClientError, QueueServiceError
from lakequeue.frame_verbs import OnBadRow, names_are, option_problems, place_of, root_of
from lakequeue.model.arguments import check_visibility_timeout
from lakequeue.model.clock import MICROS, SystemClock, parse_instant
from lakequeue.model.messages import is_message_id
from lakequeue.model.receipt_handles import LONGEST_RECEIPT
from lakequeue.model.states import MessageState
from lakequeue.queue import Queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORAGE = "storage."
_PLACE = ("root", "queue", "region", f"{_STORAGE}NAME")
_CHOICE = ("state", "messageId", "fromOffset", "beforeOffset", "sentFrom", "sentBefore")
_ROWS = ("orderBy", "onBadRow", "badRows")
_LEASE = ("maxMessages", "visibilityTimeout", "leaseSeconds", "delivers")
_OF_SPARK = {"checkpointlocation", "queryname"}
LONGEST = LONGEST_RECEIPT / MICROS
DEFAULT_MAX_MESSAGES = 100_000


class Use(Enum):
    """A way to use the data source, such as a batch read. The value has the names of the valid options."""

    READ = (*_PLACE, *_CHOICE)
    STREAM_READ = (*_PLACE, *_LEASE)
    WRITE = (*_PLACE, "sendId", *_ROWS)
    STREAM_WRITE = (*_PLACE, *_ROWS)
    ANY_READ = (*_PLACE, *_CHOICE, *_LEASE)


_SPELLED = {name.lower(): name for use in Use for name in use.value}
# Views have no purged messages, and show moved ones as deleted.
_STATES = [each.value for each in MessageState if each not in (MessageState.PURGED, MessageState.MOVED)]


def _whole(value: str) -> int:
    return int(value if value.isascii() and value.isdecimal() else "none")


def _number(parse: Callable[[str], float], least: float, most: float = math.inf) -> Callable[[str], Any]:
    return lambda value: parse(value) if least <= parse(value) <= most else None


def _states(value: str) -> Sequence[str] | None:
    states = tuple(part.strip() for part in value.split(",") if part.strip())
    return states if set(states) <= set(_STATES) else None


def _instant(value: str) -> datetime | None:
    instant = parse_instant(value)
    return None if instant.tzinfo is None else instant.astimezone(timezone.utc)


_INSTANT = _instant, "an instant with its zone, as 2026-01-31T12:00:00Z"
_OFFSET = _number(_whole, 0, 2**63 - 1), "a whole number of at least 0 and less than 2**63"
_PARSED: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "maxMessages": (_number(_whole, 1), "a whole number of at least 1"),
    "visibilityTimeout": (
        _number(float, 1 / MICROS, LONGEST),
        f"seconds, more than 0 and at most {LONGEST:g}",
    ),
    "leaseSeconds": (_number(float, 0, LONGEST), f"seconds, at least 0 and at most {LONGEST:g}"),
    "delivers": ({"true": True, "false": False}.get, "true or false"),
    "state": (_states, f"some of {', '.join(_STATES)}, separated by commas"),
    "messageId": (lambda value: value if is_message_id(value) else None, "the id of a message"),
    "fromOffset": _OFFSET,
    "beforeOffset": _OFFSET,
    "sentFrom": _INSTANT,
    "sentBefore": _INSTANT,
}
"""Parser and description of each option that is not a plain text. The description names the valid values."""


@attrs.frozen
class SourceOptions:
    """The parsed options of the data source. A pickled copy opens the same queue on another machine."""

    root: str
    queue: str | None = None
    region: str = "local"
    storage: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    send_id: str | None = None
    order_by: str | None = None
    on_bad_row: OnBadRow = "fail"
    bad_rows: str | None = None
    max_messages: int = DEFAULT_MAX_MESSAGES
    visibility_timeout: float | None = None
    lease_seconds: float = LONGEST
    delivers: bool = False
    """True if rows are appended to the queue's delivery table."""
    state: Sequence[str] = ()
    """States of the messages to read; empty for all states."""
    message_id: str | None = None
    from_offset: int | None = None
    before_offset: int | None = None
    sent_from: datetime | None = None
    sent_before: datetime | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], use: Use) -> SourceOptions:
        """Parses options, whose names Spark passes in lower case. Raises InvalidOptions with all problems."""
        known = {_plain(name): name for name in use.value if not name.startswith(_STORAGE)}
        storage: dict[str, str] = {}
        found: dict[str, Any] = {}
        problems: list[str] = []
        for spelling, value in options.items():
            name = known.get(_plain(spelling), spelling)
            parse, wanted = _PARSED.get(name, (lambda text: text or None, ""))
            if name.lower().startswith(_STORAGE):
                storage[name[len(_STORAGE) :]] = value
            elif name in use.value:
                try:
                    parsed = parse(value)
                except (ValueError, OverflowError):
                    parsed = None
                if parsed is not None:
                    found[re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name)] = parsed
                elif wanted:  # An empty text counts as no value.
                    problems.append(f"option {name} is {value}, it must be {wanted}")
            elif name.lower() not in _OF_SPARK:
                spelled = _SPELLED.get(_plain(name), name)  # The option belongs to another use.
                problems.append(f"option {spelled} is not known here; there are {', '.join(use.value)}")
        needed = ("root",) if use in (Use.READ, Use.ANY_READ) else ("root", "queue")
        problems += [f'option {name} is missing; say .option("{name}", …)' for name in needed if name not in found]
        if "message_id" in found and "queue" not in found:
            problems.append('option messageId needs the queue of the message; say .option("queue", …)')
        problems += option_problems(found.get("on_bad_row", "fail"), found.get("bad_rows"))
        if problems:
            raise InvalidOptions(problems)
        return cls(root_of(found.pop("root")), storage=storage, **found)

    @classmethod
    def of(cls, queue: Queue) -> SourceOptions:
        """Returns options to open the queue elsewhere. Raises QueueClientError if the queue has its own clock."""
        if not isinstance(queue.clock, SystemClock):
            raise QueueClientError("streams go by the system's clock: open the root without clock")
        root, storage = place_of(queue)
        return cls(root, queue.name, queue.region, storage)

    def spelled(self) -> dict[str, str]:
        """Returns root, region, queue and storage options under the names that the data source uses."""
        place = {"root": self.root, "region": self.region, "queue": self.queue or ""}
        return place | {f"{_STORAGE}{name}": value for name, value in self.storage.items()}

    def condition(self) -> pc.Expression:
        """Returns the filter that a batch read applies to the messages."""
        found = pc.field("region") == self.region if self.queue is None else names_are(self.queue, self.region)
        if self.state:
            found &= pc.field("state").isin(pa.array(self.state))
        if self.message_id is not None:
            found &= pc.field("message_id") == self.message_id
        offsets, instants = (self.from_offset, self.before_offset), (self.sent_from, self.sent_before)
        for name, (first, end) in (("log_offset", offsets), ("sent_at", instants)):
            if first is not None:
                found &= pc.field(name) >= first
            if end is not None:
                found &= pc.field(name) < end
        return found

    def open_root(self, spark: SparkSession | None = None) -> LakeQueue:
        """Opens the root. Without ``spark``, the root has no Spark session."""
        return LakeQueue(self.root, spark=spark, region=self.region, storage_options=dict(self.storage) or None)

    def open_queue(self, spark: SparkSession | None = None) -> Queue:
        """Opens the queue. Raises QueueDoesNotExist, QueueClientError, or InvalidOptions for a wrong timeout."""
        assert self.queue is not None
        try:
            queue = self.open_root(spark).queue(self.queue)
        except QueueServiceError as error:
            raise type(error)(f"queue {self.queue}: {error.message}") from error
        if self.visibility_timeout is not None:
            try:
                check_visibility_timeout(settings(queue), self.visibility_timeout)
            except QueueServiceError as error:
                raise InvalidOptions([f"option visibilityTimeout: {error.message}"]) from error
        return queue


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
