"""The options of a consumer, and the checks of their values."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from lakequeue.consumer.handler import Outcome, handler_problem
from lakequeue.consumer.outages import Outage
from lakequeue.entry_verbs import claim_interval, root_of, settings
from lakequeue.errors import InvalidOptions, MissingPackage, QueueServiceError
from lakequeue.model.arguments import LONGEST_CONSUMER, check_visibility_timeout, check_wait
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, Duration, duration_micros, seconds, to_micros
from lakequeue.model.messages import Message
from lakequeue.model.option_checks import Check, duration, fits, number, or_none, problems_of, whole_number
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
        jitter: random share taken off each delay, 0 to 1. With 0.2, a delay of 10 s becomes 8 to 10 s, and
            messages that failed together become visible at different times.

    Raises:
        InvalidOptions: an option is out of range. The text names all of them.
    """

    first: Duration = 1
    factor: float = 2
    longest: Duration = 900
    jitter: float = 0

    def __attrs_post_init__(self) -> None:
        problems = problems_of(
            self,
            first=duration(0, LONGEST_RECEIPT),
            longest=duration(0, LONGEST_RECEIPT),
            factor=number("a finite number of at least 1", lambda factor: 1 <= factor < math.inf),
            jitter=number("a number of 0 to 1", lambda jitter: 0 <= jitter <= 1),
        )
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


_log = logging.getLogger("lakequeue")
_FAILED_ALONE = RetryBackoff(longest=30)
"""Delay of a message of a delivery that failed alone, unless the consumer has options for failed messages."""
RetryDelay: TypeAlias = "Duration | Callable[[int], Duration]"
"""Seconds, or a function from the number of receives to seconds, such as ``RetryBackoff``."""

_SECONDS = duration(0, LONGEST_RECEIPT)
_DELAY = f"0 to {LONGEST_RECEIPT // MICROS} seconds, or a function from a receive count to seconds"
CONCURRENCY = whole_number(1)
MOST_WEIGHT = 1_000
_WEIGHT = whole_number(1, MOST_WEIGHT)


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
    retry_failed_at_once: bool | None
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
    claim_interval: Duration | None = None

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
    def claim_interval_micros(self) -> int:
        given = self.claim_interval
        return claim_interval(self.queue) if given is None else duration_micros(given)

    def shown(self, messages: list[Message]) -> Any:
        """Returns the messages of a batch as the handler gets them: a list, or an Arrow table."""
        if not self.as_arrow:
            return messages
        from lakequeue.frame_verbs import message_table  # imports the modules of leases

        return message_table(messages)

    def again_in(self, message: Message, outcome: Outcome, now: int) -> int | None:
        """Returns the microseconds until a message becomes visible; None if it stays hidden until its timeout."""
        delay, at_once = self.retry_delay, self.retry_failed_at_once
        if outcome is not Outcome.FAILED or message.last_receive:
            return 0  # last receives: for the move to the dead-letter queue, which nothing else waits for
        if delay is None and at_once is None and self.delivers:
            delay = _FAILED_ALONE
        if delay is None:
            return 0 if (self.renewal.failed_visible_at_once if at_once is None else at_once) else None
        try:
            micros = max(0, duration_micros(delay(message.receive_count) if callable(delay) else delay))
        except Exception:
            _log.exception("message %s: no retry delay, so it comes again at its timeout", message.message_id)
            return None
        if not settings(self.queue).profile_rules.fractional_seconds:
            micros = -(-micros // MICROS) * MICROS
        assert message.received_at is not None
        left = to_micros(message.received_at) + LONGEST_RECEIPT - now
        return micros if micros <= left else max(0, left // MICROS * MICROS)

    def __attrs_post_init__(self) -> None:
        batches, delivers, at_once = self.batch is not None, self.delivers, self.retry_failed_at_once
        table = settings(self.queue).table
        problems = problems_of(
            self,
            handler=lambda handler: handler_problem(handler, batches or table is not None),
            concurrency=CONCURRENCY,
            renewal=self._renewal_problem,
            retry_failed_at_once=fits("True, False or None", lambda given: given in (None, True, False)),
            wait_time=lambda wait: self._refusal(check_wait, wait),
            prefetch=or_none(whole_number(0, 10_000)),
            batch=or_none(whole_number(1, 10_000))
            if batches or table is None
            else lambda none: (
                f"{self.queue.name} delivers into the table {table}; give a batch, such as batch=1000, "
                "and a handler that takes two lists and returns rows"
            ),
            batch_wait=or_none(duration(0, 60 * MICROS) if batches else lambda wait: "goes with a batch"),
            claim_interval=or_none(
                (lambda wait: "with a delivery table, give batch_wait") if delivers else duration(0, 60 * MICROS)
            ),
            as_arrow=_switch("a batch", batches),
            merge_schema=_switch("a batch of a queue that has a delivery table", delivers),
            outage=fits("an Outage", lambda outage: isinstance(outage, Outage)),
            retry_delay=or_none(fits(_DELAY, lambda delay: callable(delay) or _SECONDS(delay) is None)),
            metrics_port=or_none(whole_number(0, 65_535)),
            name=fits(
                f"a text of 1 to {LONGEST_CONSUMER} characters",
                lambda name: isinstance(name, str) and 1 <= len(name) <= LONGEST_CONSUMER,
            ),
        )
        if delivers and at_once is False:
            problems.append("retry_failed_at_once: with a delivery table, give retry_delay")
        if self.retry_delay is not None and at_once is not None:
            problems.append("retry_delay: cannot go with retry_failed_at_once; give one of the two")
        if problems:
            raise InvalidOptions(problems)
        if delivers:
            MissingPackage.check("a consumer of a queue with a delivery table", "delta", "deltalake")

    def _renewal_problem(self, renewal: Any) -> str | None:
        members = ("receive_timeout", "failed_visible_at_once", "next_check", "extension")
        if isinstance(renewal, type) or not all(hasattr(renewal, member) for member in members):
            return f"must be a renewal policy, not {renewal!r}"
        timeout = renewal.receive_timeout
        return None if timeout is None else self._refusal(check_visibility_timeout, timeout)

    def _refusal(self, check: Callable[[QueueAttributes, Any], object], value: object) -> str | None:
        try:
            check(settings(self.queue), value)
        except QueueServiceError as error:
            return error.message
        return None


def _switch(needed: str, may_be_on: bool) -> Check:
    plain = fits("True or False", lambda value: isinstance(value, bool))
    return lambda value: f"goes with {needed}" if value is True and not may_be_on else plain(value)


def checked_queues(given: object, weights: object) -> list[tuple[Queue, int]]:
    """Returns each queue of a consumer with its weight. Raises InvalidOptions if a queue or weight is wrong."""
    queues: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    wrong = [queue for queue in queues if not isinstance(queue, Queue)]
    problems = [
        f"queue: must be a Queue or a list of them, not {each!r}" + "; give its .sync" * hasattr(each, "sync")
        for each in wrong
    ]
    if not queues:
        problems.append("queue: must be a Queue or a list of at least one, not []")
    known = Counter((root_of(queue), queue.key, queue.name) for queue in queues if queue not in wrong)
    problems += [f"queue: {name} is there {count} times" for (*_, name), count in known.items() if count > 1]
    each: Any = [1] * len(queues) if weights is None else weights
    if not isinstance(each, list | tuple) or len(each) != len(queues) or any(map(_WEIGHT, each)):
        whole = f"a whole number of 1 to {MOST_WEIGHT} for each queue, of which there are {len(queues)}"
        problems.append(f"weights: must be {whole}, not {weights!r}")
    if problems:
        raise InvalidOptions(problems)
    return list(zip(queues, each, strict=True))
