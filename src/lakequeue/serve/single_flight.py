"""One blocking call for all requests that wait for its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class SingleFlight(Generic[_Result]):
    """Runs a blocking call in a thread of its own; callers that come while it runs share its result.

    However many requests ask, one thread runs, and requests that wait for storage cannot take it.
    """

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call = call
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="single-flight")
        self._running: asyncio.Future[_Result] | None = None

    async def result(self) -> _Result:
        """The result of the call; raises what the call raises."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().run_in_executor(self._thread, self._call)
            self._running.add_done_callback(lambda done: done.exception())  # asyncio warns of unread errors
        return await asyncio.shield(self._running)
