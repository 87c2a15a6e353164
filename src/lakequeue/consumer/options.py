"""The options of a consumer, checked."""

from __future__ import annotations

import attrs

from lakequeue.consumer.handler import Handler, handler_problem
from lakequeue.consumer.outages import Outage
from lakequeue.consumer.retries import RetryDelay, retry_delay_problem
from lakequeue.entry_verbs import settings
from lakequeue.errors import InvalidOptions, QueueServiceError
from lakequeue.model.arguments import LONGEST_CONSUMER, check_visibility_timeout, check_wait
from lakequeue.model.clock import Duration
from lakequeue.queue import Queue
from lakequeue.renewal.policies import Renewal

MOST_PREFETCH = 10_000


@attrs.frozen
class ConsumerOptions:
    """What a consumer was made with; ``Consumer`` says what each option means.

    Raises:
        InvalidOptions: names every option that is out of range (HBN-17), and a handler that cannot be one.
    """

    queue: Queue
    handler: Handler
    concurrency: int
    renewal: Renewal
    failed_at_once: bool | None
    """``make_failed_messages_visible_immediately``."""
    wait_time: Duration | None
    prefetch: int | None
    outage: Outage
    retry_delay: RetryDelay | None
    metrics_port: int | None
    name: str | None

    @property
    def hands_back(self) -> bool:
        """Whether failed messages become visible at once."""
        return self.renewal.failed_visible_at_once if self.failed_at_once is None else self.failed_at_once

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.queue, Queue):
            raise InvalidOptions([f"queue: must be a Queue, not {self.queue!r}"])
        problems, renewal, failed_at_once, name = [], self.renewal, self.failed_at_once, self.name
        if (problem := handler_problem(self.handler)) is not None:
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
            problems.append(
                f"make_failed_messages_visible_immediately: must be True, False or None, not {failed_at_once!r}"
            )
        try:
            check_wait(settings(self.queue), self.wait_time)
        except QueueServiceError as error:
            problems.append(f"wait_time: {error.message}")
        if not _is_number(self.prefetch, MOST_PREFETCH):
            whole = f"a whole number of 0 to {MOST_PREFETCH}"
            problems.append(f"prefetch: must be {whole}, or None, not {self.prefetch!r}")
        if not isinstance(self.outage, Outage):
            problems.append(f"outage: must be an Outage, not {self.outage!r}")
        if (problem := retry_delay_problem(self.retry_delay)) is not None:
            problems.append(f"retry_delay: {problem}")
        elif self.retry_delay is not None and failed_at_once is not None:
            problems.append(
                "retry_delay: cannot go with make_failed_messages_visible_immediately; give one of the two"
            )
        if not _is_number(self.metrics_port, 65_535):
            problems.append(f"metrics_port: must be a whole number of 0 to 65535, not {self.metrics_port!r}")
        if name is not None and not (isinstance(name, str) and 1 <= len(name) <= LONGEST_CONSUMER):
            problems.append(f"name: must be a text of 1 to {LONGEST_CONSUMER} characters, not {name!r}")
        if problems:
            raise InvalidOptions(problems)


def concurrency_problem(number: object) -> str | None:
    """Why a number cannot be that of handlers at a time; None if it can."""
    if type(number) is int and number >= 1:
        return None
    return f"concurrency: must be a whole number of at least 1, not {number!r}"


def _is_number(value: object, most: int) -> bool:
    return value is None or (type(value) is int and 0 <= value <= most)
