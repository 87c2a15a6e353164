"""Writes one structured log record per call of a verb. The logger is ``lakequeue.verbs``, and the level is DEBUG.

Fields: verb, queue, shards (in which the call committed), messages, commits, lost_races, seconds, and error (class
or None). If calls share a commit, the commit counts for the call whose thread runs the commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

import attrs

from lakequeue.errors import DamagedTable, QueueClientError, QueueDoesNotExist
from lakequeue.storage.engines.commit_failures import is_storage_failure
from lakequeue.storage.store_failures import first_line

_log = logging.getLogger("lakequeue.verbs")


@attrs.define
class CallCounters:
    messages: int = 0
    commits: int = 0
    lost_races: int = 0
    shards: set[int] = attrs.field(factory=set)


_current: ContextVar[CallCounters | None] = ContextVar("lakequeue call", default=None)


@contextmanager
def logged(verb: str, queue: str) -> Iterator[CallCounters]:
    """Logs one record when the block ends, unless another logged call contains the block."""
    call = CallCounters()
    if _current.get() is not None or not _log.isEnabledFor(logging.DEBUG):
        yield call
        return
    token, started, error = _current.set(call), time.monotonic(), None
    try:
        yield call
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        # a coroutine whose loop has ended is closed in another context, which has no call
        with suppress(ValueError):
            _current.reset(token)
        fields = {
            "verb": verb,
            "queue": queue,
            "shards": sorted(call.shards),
            "messages": call.messages,
            "commits": call.commits,
            "lost_races": call.lost_races,
            "seconds": time.monotonic() - started,
            "error": error,
        }
        _log.debug("%s %s", verb, queue, extra=fields)


def committed(shard: int, lost_races: int) -> None:
    """Counts a commit, and races that were lost before the commit, for the call that runs in this thread."""
    call = _current.get()
    if call is not None:
        call.commits += 1
        call.lost_races += lost_races
        call.shards.add(shard)


def gave_up(lost_races: int) -> None:
    """Counts the lost races of the call that runs in this thread, after the call gave up without a commit."""
    call = _current.get()
    if call is not None:
        call.lost_races += lost_races


EVENTS = (
    *("sent", "sent_bytes", "received", "received_bytes", "empty_receives"),
    *("deleted", "extended", "dead_lettered"),
)
"""Names of a queue's totals. A total counts messages, bytes of message bodies, or receives that found nothing."""
WITHOUT_ERROR = "dead_lettered_without_error"
"""Name of a further total: the part of ``dead_lettered`` whose last receive ended without a handler's error."""


class Tallies:
    """Totals since the process started, keyed by queue. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_queue: dict[str, Counter[str]] = {}

    def add(self, queue: str, **amounts: int) -> None:
        """Adds ``amounts`` to the totals of a queue. Each name is in ``EVENTS``, or ``WITHOUT_ERROR``."""
        with self._lock:
            self._by_queue.setdefault(queue, Counter()).update(amounts)

    def of(self, queue: str) -> Counter[str]:
        """Returns the totals of a queue. The total is 0 for an event that did not happen."""
        with self._lock:
            return Counter(self._by_queue.get(queue))

    def all(self) -> dict[str, Counter[str]]:
        with self._lock:
            return {queue: Counter(amounts) for queue, amounts in self._by_queue.items()}


class Steps:
    """Counts the commits of a call. Error messages use ``call`` as the name of the call."""

    def __init__(self, call: str) -> None:
        self._call = call
        self._done = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Runs a commit. On failure, raises QueueClientError (``outcome_unknown``) if an earlier commit landed."""
        try:
            yield
        except QueueDoesNotExist:
            raise
        except Exception as error:
            self._fail(error)
            raise
        self.done()

    def done(self) -> None:
        self._done += 1

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Runs reads between two commits. If storage fails, raises the same error as ``step``."""
        try:
            yield
        except Exception as error:
            known = not error.outcome_unknown if isinstance(error, QueueClientError) else is_storage_failure(error)
            if known:
                self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        if self._done and isinstance(error, DamagedTable):
            raise error.unknown() from error
        if self._done:
            raise QueueClientError(
                f"{self._call} was done in part, then it failed: {first_line(error)}. Repeating it is safe",
                outcome_unknown=True,
            ) from error
