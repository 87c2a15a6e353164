"""One structured log record per call of a verb, from the logger ``lakequeue.verbs`` at level DEBUG.

Fields: verb, queue, shards (those that the call committed to), messages, commits, lost_races, seconds and
error (the class of the error that ended the call, or None). Concurrent calls share commits; a commit counts for
the call that made it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

import attrs

_log = logging.getLogger("lakequeue.verbs")


@attrs.define
class Call:
    """Counters of one call."""

    messages: int = 0
    commits: int = 0
    lost_races: int = 0
    shards: set[int] = attrs.field(factory=set)


_current: ContextVar[Call | None] = ContextVar("lakequeue call", default=None)


@contextmanager
def logged(verb: str, queue: str) -> Iterator[Call]:
    """Logs a record at the end of the block, unless the block is part of another call."""
    call = Call()
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
    """Counts a commit and its lost races for the call of this thread."""
    call = _current.get()
    if call is not None:
        call.commits += 1
        call.lost_races += lost_races
        call.shards.add(shard)


def gave_up(lost_races: int) -> None:
    """Counts lost races without a commit for the call of this thread."""
    call = _current.get()
    if call is not None:
        call.lost_races += lost_races
