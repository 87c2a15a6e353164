"""Calls a function for several shards or queues concurrently."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from lakequeue.model.thread_pools import ThreadPool

CONCURRENT = 8
"""Maximum number of concurrent calls, and of results that wait to be read."""

_T = TypeVar("_T")
_U = TypeVar("_U")


def concurrently(call: Callable[[_T], _U], items: Sequence[_T]) -> Iterator[_U]:
    """Yields the result of ``call`` for each item, in order. Up to ``CONCURRENT`` calls run at a time."""
    if len(items) < 2:
        yield from map(call, items)
        return
    with ThreadPool(min(len(items), CONCURRENT)) as pool:
        ahead: deque[Future[_U]] = deque()
        for item in items:
            if len(ahead) == CONCURRENT:
                yield ahead.popleft().result()
            ahead.append(pool.submit(call, item))
        while ahead:
            yield ahead.popleft().result()
