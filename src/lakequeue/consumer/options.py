"""The options of a consumer, and the checks of their values."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from lakequeue.consumer.handler import handler_problem
from lakequeue.consumer.outages import Outage
from lakequeue.entry_verbs import root_of, settings
from lakequeue.errors import InvalidOptions, QueueServiceError
from lakequeue.model.arguments import LONGEST_CONSUMER, check_visibility_timeout, check_wait
from lakequeue.model.clock import MICROS, Duration, duration_micros, seconds, to_micros
from lakequeue.model.messages import Message
from lakequeue.model.receipt_handles import LONGEST_RECEIPT
from lakequeue.queue import Queue
from lakequeue.renewal.policies import Renewal


@attrs.frozen
class RetryBackoff:
    """Delays of a failing message that grow with every receive: first, first × factor, first × factor² …

    Args:
        first: seconds after the first receive.
        factor: factor from each delay to the next; finite, at least 1.
        longest: maximum delay in seconds, up to twelve hours.
        jitter: random share of each delay, 0 to 1: with 0.2, a delay of 10 s becomes 8 to 10 s. So messages that
            failed together do not become visible together.

    Raises:
        InvalidOptions: an option is out of range. The text names all of them.
    """

    first: Duration = 1
    factor: float = 2
    longest: Duration = 900
    jitter: float = 0

    def __attrs_post_init__(self) -> None:
        problems = []
        for name in ("first", "longest"):
            value = getattr(self, name)
            if not _is_duration(value, LONGEST_RECEIPT):
                problems.append(f"{name}: must be 0 to {LONGEST_RECEIPT // MICROS} seconds, not {value!r}")
        if not (_is_plain_number(self.factor) and 1 <= self.factor < math.inf):
            problems.append(f"factor: must be a finite number of at least 1, not {self.factor!r}")
        if not (_is_plain_number(self.jitter) and 0 <= self.jitter <= 1):
            problems.append(f"jitter: must be a number of 0 to 1, not {self.jitter!r}")
        if problems:
            raise InvalidOptions(problems)

    def __call__(self, receive_count: int) -> Duration:
        """Returns the delay after a number of receives."""
        delay, longest = duration_micros(self.first), duration_micros(self.longest)
        for _ in range(receive_count - 1):
            if delay >= longest or self.factor == 1:
                break
            delay = round(min(delay * self.factor, longest))  # the product may be infinite
        delay = min(delay, longest)
        return seconds(delay - round(delay * self.jitter * random.random()))


RetryDelay: TypeAlias = "Duration | Callable[[int], Duration]"
"""Seconds, or a function from the number of receives to seconds, such as ``RetryBackoff``."""


def retry_delay_problem(given: object) -> str | None:
    """Returns why a value cannot be a retry delay; None if it can."""
    if given is None or callable(given):
        return None
    try:
        micros = duration_micros(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return f"must be seconds, a timedelta or a function from a receive count to seconds, not {given!r}"
    fits = 0 <= micros <= LONGEST_RECEIPT
    return None if fits else f"must be 0 to {LONGEST_RECEIPT // MICROS} seconds, not {given}"


MOST_PREFETCH = 10_000
MOST_BATCH = 10_000
MOST_WEIGHT = 1_000
LONGEST_BATCH_WAIT = 60


@attrs.frozen
class ConsumerOptions:
    """The options of a consumer. ``Consumer`` describes them.

    Raises:
        InvalidOptions: an option is out of range (HBN-17), or the handler is unsuitable. Names all problems.
    """

    queue: Queue
    handler: Any
    concurrency: int
    renewal: Renewal
    failed_at_once: bool | None
    """See ``retry_failed_at_once`` of ``Consumer``."""
    wait_time: Duration | None
    prefetch: int | None
    outage: Outage
    retry_delay: RetryDelay | None
    metrics_port: int | None
    name: str
    batch: int | None = None
    batch_wait: Duration | None = None
    weight: int = 1
    as_arrow: bool = False
    merge_schema: bool = False

    @property
    def delivers(self) -> bool:
        """True if the rows that the handler returns go into the queue's delivery table (TAB-29)."""
        return self.batch is not None and settings(self.queue).table is not None

    @property
    def size(self) -> int:
        """Maximum number of messages of a call."""
        return self.batch or 1

    @property
    def batch_wait_micros(self) -> int:
        return MICROS if self.batch_wait is None else duration_micros(self.batch_wait)

    @property
    def hands_back(self) -> bool:
        """True if failed messages become visible at once."""
        return self.renewal.failed_visible_at_once if self.failed_at_once is None else self.failed_at_once

    def shown(self, messages: list[Message]) -> Any:
        """Returns the messages of a batch as the handler gets them: a list, or an Arrow table."""
        if not self.as_arrow:
            return messages
        from lakequeue.consumer.arrow_batches import table_of  # imports the modules of leases

        return table_of(messages)

    def retry_micros(self, message: Message, now: int) -> int:
        """Returns a failed message's delay in microseconds, by ``retry_delay``, at most until its receipt ends.
        Raises the error of the function ``retry_delay``, or an error if the function returned no duration.
        """
        delay = self.retry_delay
        assert delay is not None and message.received_at is not None
        micros = max(0, duration_micros(delay(message.receive_count) if callable(delay) else delay))
        if not settings(self.queue).profile_rules.fractional_seconds:
            micros = -(-micros // MICROS) * MICROS
        left = to_micros(message.received_at) + LONGEST_RECEIPT - now
        return micros if micros <= left else max(0, left // MICROS * MICROS)

    def __attrs_post_init__(self) -> None:
        problems, renewal, failed_at_once, name = [], self.renewal, self.failed_at_once, self.name
        if (problem := handler_problem(self.handler, self.batch is not None)) is not None:
            problems.append(f"handler: {problem}")
        if (problem := concurrency_problem(self.concurrency)) is not None:
            problems.append(problem)
        members = ("receive_timeout", "failed_visible_at_once", "next_check", "extension")
        if isinstance(renewal, type) or not all(hasattr(renewal, member) for member in members):
            problems.append(f"renewal: must be a renewal policy, not {renewal!r}")
        elif renewal.receive_timeout is not None:
            try:
                check_visibility_timeout(settings(self.queue), renewal.receive_timeout)
            except QueueServiceError as error:
                problems.append(f"renewal: {error.message}")
        if failed_at_once not in (None, True, False):
            problems.append(f"retry_failed_at_once: must be True, False or None, not {failed_at_once!r}")
        try:
            check_wait(settings(self.queue), self.wait_time)
        except QueueServiceError as error:
            problems.append(f"wait_time: {error.message}")
        if not _is_number(self.prefetch, MOST_PREFETCH):
            whole = f"a whole number of 0 to {MOST_PREFETCH}"
            problems.append(f"prefetch: must be {whole}, or None, not {self.prefetch!r}")
        if self.batch is not None and not (_is_number(self.batch, MOST_BATCH) and self.batch >= 1):
            problems.append(f"batch: must be a whole number of 1 to {MOST_BATCH}, or None, not {self.batch!r}")
        if self.batch_wait is not None and self.batch is None:
            problems.append("batch_wait: goes with a batch")
        elif self.batch_wait is not None and not _is_duration(self.batch_wait, LONGEST_BATCH_WAIT * MICROS):
            problems.append(f"batch_wait: must be 0 to {LONGEST_BATCH_WAIT} seconds, not {self.batch_wait!r}")
        if not isinstance(self.as_arrow, bool) or (self.as_arrow and self.batch is None):
            problems.append(f"as_arrow: must be False, or True with a batch, not {self.as_arrow!r}")
        if not isinstance(self.merge_schema, bool) or (self.merge_schema and not self.delivers):
            wanted = "True with a batch of a queue that has a delivery table"
            problems.append(f"merge_schema: must be False, or {wanted}, not {self.merge_schema!r}")
        if self.delivers and (self.retry_delay is not None or failed_at_once is False):
            problems.append("retry_delay: failed messages of a delivery become visible at once")
        if not isinstance(self.outage, Outage):
            problems.append(f"outage: must be an Outage, not {self.outage!r}")
        if (problem := retry_delay_problem(self.retry_delay)) is not None:
            problems.append(f"retry_delay: {problem}")
        elif self.retry_delay is not None and failed_at_once is not None:
            problems.append("retry_delay: cannot go with retry_failed_at_once; give one of the two")
        if not _is_number(self.metrics_port, 65_535):
            problems.append(f"metrics_port: must be a whole number of 0 to 65535, not {self.metrics_port!r}")
        if not (isinstance(name, str) and 1 <= len(name) <= LONGEST_CONSUMER):
            problems.append(f"name: must be a text of 1 to {LONGEST_CONSUMER} characters, not {name!r}")
        if problems:
            raise InvalidOptions(problems)


def checked_queues(given: object, weights: object) -> list[tuple[Queue, int]]:
    """Returns the queues of a consumer, each with its weight. Raises InvalidOptions if there is no queue, a value
    is no queue or occurs twice, or the weights do not fit.
    """
    queues: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    wrong = [queue for queue in queues if not isinstance(queue, Queue)]
    problems = [f"queue: must be a Queue or a list of them, not {each!r}" for each in wrong]
    if not queues:
        problems.append("queue: must be a Queue or a list of at least one, not []")
    known = Counter((root_of(queue), queue.key, queue.name) for queue in queues if queue not in wrong)
    problems += [f"queue: {name} is there {count} times" for (*_, name), count in known.items() if count > 1]
    each: Any = [1] * len(queues) if weights is None else weights
    if (
        not isinstance(each, list | tuple)
        or len(each) != len(queues)
        or not all(_is_number(one, MOST_WEIGHT) and one for one in each)
    ):
        whole = f"a whole number of 1 to {MOST_WEIGHT} for each queue, of which there are {len(queues)}"
        problems.append(f"weights: must be {whole}, not {weights!r}")
    if problems:
        raise InvalidOptions(problems)
    return list(zip(queues, each, strict=True))


def concurrency_problem(number: object) -> str | None:
    """Returns why a number cannot be the maximum number of handlers; None if it can."""
    if type(number) is int and number >= 1:
        return None
    return f"concurrency: must be a whole number of at least 1, not {number!r}"


def _is_duration(value: Any, longest: int) -> bool:
    try:
        return 0 <= duration_micros(value) <= longest
    except (TypeError, ValueError):
        return False


def _is_plain_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_number(value: object, most: int) -> bool:
    return value is None or (type(value) is int and 0 <= value <= most)
