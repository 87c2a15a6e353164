"""Interrupts requests when their client disconnects or the server stops. Limits requests with a condition."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from lakequeue.conditions.sandbox import Interrupted
from lakequeue.model.clock import Interrupt
from lakequeue.serve.errors import RequestError

MAX_PER_CALLER = 2
"""Maximum number of requests with a condition that one caller may have at the same time."""
MAX_IN_TOTAL = 16
"""Maximum number of requests with a condition at the same time, because each of them occupies a thread."""

_Result = TypeVar("_Result")


class Interrupts:
    """Keeps an event for each current request. The event is set if the client disconnects or the server stops."""

    def __init__(self) -> None:
        self.running: set[Interrupt] = set()
        self.stopping = False

    def stop(self) -> None:
        """Interrupts all current requests, and all requests that come later."""
        self.stopping = True
        for interrupt in list(self.running):
            interrupt.set()

    @asynccontextmanager
    async def of(self, http: Request) -> AsyncIterator[tuple[Interrupt, asyncio.Task[None]]]:
        """Yields an event that interrupts the request, and a task that ends when the client disconnects."""
        interrupt = Interrupt()
        self.running.add(interrupt)
        disconnected = asyncio.create_task(_wait_for_disconnect(http))
        disconnected.add_done_callback(lambda _: interrupt.set())
        if self.stopping:
            interrupt.set()
        try:
            yield interrupt, disconnected
        finally:
            self.running.discard(interrupt)
            disconnected.cancel()


class ConditionRunner:
    """Limits the concurrent requests with a condition. Interrupts a request whose client has disconnected."""

    def __init__(self) -> None:
        self._by_caller: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_PER_CALLER)
        )
        self._all = asyncio.Semaphore(MAX_IN_TOTAL)
        self.interrupts = Interrupts()

    async def run(self, http: Request, caller: str, work: Callable[[Interrupt], _Result]) -> _Result:
        """Runs ``work`` in a thread. Raises ClientDisconnect, or RequestError if the server stops."""
        async with self.interrupts.of(http) as (interrupt, disconnected):
            try:
                async with _acquired(self._by_caller[caller], disconnected), _acquired(self._all, disconnected):
                    return await asyncio.to_thread(work, interrupt)
            except Interrupted:
                if disconnected.done():
                    raise ClientDisconnect from None
                raise RequestError("ServiceUnavailable", "The server is stopping.", 503, False) from None


async def _wait_for_disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def _acquired(semaphore: asyncio.Semaphore, disconnected: asyncio.Task[None]) -> AsyncIterator[None]:
    """Holds a semaphore during the block. Raises ClientDisconnect if the client disconnects while waiting."""
    waiting = asyncio.create_task(semaphore.acquire())
    await asyncio.wait({waiting, disconnected}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        raise ClientDisconnect
    try:
        yield
    finally:
        semaphore.release()
