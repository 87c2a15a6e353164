"""``/health``: whether the server can do its work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lakequeue.client import LakeQueue
from lakequeue.errors import LakeQueueError

SECONDS = 5.0
"""What storage has to answer a look at the catalog."""

_Answer = TypeVar("_Answer")
_log = logging.getLogger("lakequeue.serve")


class Shared(Generic[_Answer]):
    """A question that blocks, asked once for all who want the answer meanwhile, in a thread of its own.

    Requests that wait for storage cannot keep it waiting, and however many ask, there is one thread.
    """

    def __init__(self, question: Callable[[], _Answer]) -> None:
        self._question = question
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._asked: asyncio.Future[_Answer] | None = None

    async def answer(self) -> _Answer:
        """The answer, or what asking raised."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.get_running_loop().run_in_executor(self._thread, self._question)
            self._asked.add_done_callback(lambda asked: asked.exception())  # there may be nobody left to hear it
        return await asyncio.shield(self._asked)


class Health:
    """Answers 200 while the catalog of the root can be read, else 503 with the reason."""

    def __init__(self, lake: LakeQueue, stopping: Callable[[], bool], seconds: float = SECONDS) -> None:
        self._stopping = stopping
        self._seconds = seconds
        self._catalog = Shared(lake.runtime.check)

    async def answer(self, http: Request) -> Response:
        reason = await self._reason()
        if reason is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "failing", "reason": reason}, 503)

    async def _reason(self) -> str | None:
        if self._stopping():
            return "The server is stopping."
        try:
            await asyncio.wait_for(self._catalog.answer(), self._seconds)
        except asyncio.TimeoutError:
            return f"The storage of the queues did not answer within {self._seconds:g} s."
        except LakeQueueError as error:  # what it says is of the server's inside
            _log.warning("the catalog cannot be read: %s", error)
            return "The storage of the queues cannot be read."
        return None
