"""Requests with a condition, which may take long: a few at a time, and no longer than somebody waits for them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from lakequeue.conditions.sandbox import Interrupted
from lakequeue.model.interrupts import Interrupt
from lakequeue.serve.faults import WireError

EACH = 2
"""Requests of one caller at a time; so many that one caller cannot have all workers."""
ALL = 16
"""Requests of all callers at a time; each takes a thread."""

_Answer = TypeVar("_Answer")


class Conditions:
    """Has requests wait for their turn, and ends those that nobody waits for."""

    def __init__(self) -> None:
        self._own: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(EACH))
        self._all = asyncio.Semaphore(ALL)
        self._running: set[Interrupt] = set()
        self._stopping = False

    def stop(self) -> None:
        """Ends all of them, those to come too."""
        self._stopping = True
        for interrupt in list(self._running):
            interrupt.set()

    async def run(self, http: Request, caller: str, work: Callable[[Interrupt], _Answer]) -> _Answer:
        """Does the work of a request in a thread, and sets its interrupt when it is to end.

        Raises:
            ClientDisconnect: the client has hung up.
            WireError: the server is stopping.
        """
        interrupt = Interrupt()
        self._running.add(interrupt)
        gone = asyncio.create_task(hang_up(http))
        gone.add_done_callback(lambda _: interrupt.set())
        if self._stopping:
            interrupt.set()
        try:
            async with _turn(self._own[caller], gone), _turn(self._all, gone):
                return await asyncio.to_thread(work, interrupt)
        except Interrupted:
            if gone.done():
                raise ClientDisconnect from None
            raise WireError("ServiceUnavailable", "The server is stopping.", 503, False) from None
        finally:
            self._running.discard(interrupt)
            gone.cancel()


async def hang_up(http: Request) -> None:
    """Returns once the client has gone, or got its answer."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def _turn(turns: asyncio.Semaphore, gone: asyncio.Task[None]) -> AsyncIterator[None]:
    """Waits for a turn, but not longer than the client does."""
    waiting = asyncio.create_task(turns.acquire())
    await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        raise ClientDisconnect
    try:
        yield
    finally:
        turns.release()
