"""The options of the data source, checked before anything is read or written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import settings
from lakequeue.errors import InvalidOptions, QueueClientError, QueueServiceError
from lakequeue.frame_verbs import OnBadRow, option_problems, place_of, root_of
from lakequeue.model.arguments import check_visibility_timeout
from lakequeue.model.clock import MICROS, SystemClock, parse_instant
from lakequeue.model.receipt_handles import LONGEST_RECEIPT
from lakequeue.model.states import MessageState
from lakequeue.queue import Queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORAGE = "storage."
_PLACE = ("root", "queue", "region", f"{_STORAGE}NAME")
_CHOICE = ("state", "fromOffset", "beforeOffset", "sentFrom", "sentBefore")
_ROWS = ("orderBy", "onBadRow", "badRows")
_LEASE = ("maxMessages", "visibilityTimeout", "leaseSeconds")
_OF_SPARK = {"checkpointlocation", "queryname"}
"""Options of Spark's own that it passes on to a stream's sink."""
LONGEST = LONGEST_RECEIPT / MICROS
DEFAULT_MAX_MESSAGES = 100_000

_Default = TypeVar("_Default")
_Value = TypeVar("_Value")


class Use(Enum):
    """What the data source is made for, with the options that it takes."""

    READ = (*_PLACE, *_CHOICE)
    STREAM_READ = (*_PLACE, *_LEASE)
    WRITE = (*_PLACE, "sendId", *_ROWS)
    STREAM_WRITE = (*_PLACE, *_ROWS)
    ANY_READ = (*_PLACE, *_CHOICE, *_LEASE)


_SPELLED = {name.lower(): name for use in Use for name in use.value}


@attrs.frozen
class Options:
    """What the user said by ``option``. A copy opens the same queue elsewhere: ``root`` is absolute."""

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
    states: Sequence[str] = ()
    """Those of the messages to read; empty: all."""
    from_offset: int | None = None
    before_offset: int | None = None
    sent_from: datetime | None = None
    sent_before: datetime | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str], use: Use) -> Options:
        """Checks the options for a use. Spark knows them in small letters only; ``_`` between words is allowed.

        Raises:
            InvalidOptions: options are unknown, missing or out of range; names all, with what is allowed.
        """
        found = _Found(given, use)
        root = found.text("root", required=True)
        options: dict[str, Any] = {"root": root and root_of(root), "storage": found.storage}
        options["queue"] = found.text("queue", required=use not in (Use.READ, Use.ANY_READ))
        options["region"] = found.text("region") or "local"
        options["send_id"] = found.text("sendId")
        options["order_by"] = found.text("orderBy")
        options["on_bad_row"] = found.text("onBadRow") or "fail"
        options["bad_rows"] = found.text("badRows")
        found.problems += option_problems(options["on_bad_row"], options["bad_rows"])
        options["max_messages"] = found.whole("maxMessages", DEFAULT_MAX_MESSAGES, 1)
        options["visibility_timeout"] = found.seconds("visibilityTimeout", None)
        options["lease_seconds"] = found.seconds("leaseSeconds", LONGEST, least=0)
        options["states"] = found.states("state")
        options["from_offset"] = found.whole("fromOffset", None, 0)
        options["before_offset"] = found.whole("beforeOffset", None, 0)
        options["sent_from"] = found.instant("sentFrom")
        options["sent_before"] = found.instant("sentBefore")
        found.check()
        return cls(**options)

    @classmethod
    def of(cls, queue: Queue) -> Options:
        """What another process needs to open the same queue.

        Raises:
            QueueClientError: the queue has a clock of its own, which cannot travel.
        """
        if not isinstance(queue.clock, SystemClock):
            raise QueueClientError("streams go by the system's clock: open the root without clock")
        root, storage = place_of(queue)
        return cls(root, queue.name, queue.region, storage)

    def spelled(self) -> dict[str, str]:
        """The place of the queue as Spark takes options."""
        place = {"root": self.root, "region": self.region, "queue": self.queue or ""}
        return place | {f"{_STORAGE}{name}": value for name, value in self.storage.items()}

    def open_root(self, spark: SparkSession | None = None) -> LakeQueue:
        """The root, by default without a Spark session."""
        return LakeQueue(self.root, spark=spark, region=self.region, storage_options=dict(self.storage) or None)

    def open_queue(self, spark: SparkSession | None = None) -> Queue:
        """The queue that the options name.

        Raises:
            QueueDoesNotExist: the region has no such queue; the message names it.
            InvalidOptions: the queue does not allow the visibility timeout.
            QueueClientError: there is no root, or it cannot be reached.
        """
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


class _Found:
    """The given options, and what is wrong with them."""

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        names = {_plain(name): name for name in use.value if not name.startswith(_STORAGE)}
        self.storage: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self.problems: list[str] = []
        for name, value in given.items():
            if name.lower().startswith(_STORAGE):
                self.storage[name[len(_STORAGE) :]] = value
            elif _plain(name) in names:
                self._values[_plain(name)] = value
            elif name.lower() not in _OF_SPARK:
                spelled = _SPELLED.get(_plain(name), name)  # one of another use
                self.problems.append(f"option {spelled} is not known here; there are {', '.join(use.value)}")

    def text(self, name: str, required: bool = False) -> str | None:
        value = self._values.get(_plain(name))
        if required and not value:
            self.problems.append(f'option {name} is missing; say .option("{name}", …)')
        return value or None

    def whole(self, name: str, default: _Default, least: int) -> int | _Default:
        def parse(value: str) -> int | None:
            return int(value) if value.isascii() and value.isdecimal() and int(value) >= least else None

        return self._parsed(name, default, parse, f"a whole number of at least {least}")

    def states(self, name: str) -> tuple[str, ...]:
        # a view shows no purged message, and moved ones as deleted
        known = [each.value for each in MessageState if each not in (MessageState.PURGED, MessageState.MOVED)]

        def parse(value: str) -> tuple[str, ...] | None:
            states = tuple(part.strip() for part in value.split(",") if part.strip())
            return states if set(states) <= set(known) else None

        return self._parsed(name, (), parse, f"some of {', '.join(known)}, separated by commas")

    def instant(self, name: str) -> datetime | None:
        def parse(value: str) -> datetime | None:
            instant = parse_instant(value)
            return None if instant.tzinfo is None else instant

        return self._parsed(name, None, parse, "an instant with its zone, as 2026-01-31T12:00:00Z")

    def seconds(self, name: str, default: _Default, least: float = 1 / MICROS) -> float | _Default:
        def parse(value: str) -> float | None:
            return float(value) if least <= float(value) <= LONGEST else None

        from_ = f"at least {least:g}" if least == 0 else "more than 0"
        return self._parsed(name, default, parse, f"seconds, {from_} and at most {LONGEST:g}")

    def _parsed(
        self, name: str, default: _Default, parse: Callable[[str], _Value | None], wanted: str
    ) -> _Value | _Default:
        value = self._values.get(_plain(name))
        if value is None:
            return default
        try:
            found = parse(value)
        except ValueError:
            found = None
        if found is None:
            self.problems.append(f"option {name} is {value}, it must be {wanted}")
            return default
        return found

    def check(self) -> None:
        if self.problems:
            raise InvalidOptions(self.problems)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
