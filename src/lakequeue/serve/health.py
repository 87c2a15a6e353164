"""``/health``: whether the server can do its work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import check_catalog
from lakequeue.errors import LakeQueueError
from lakequeue.serve.groups import SingleFlight

TIMEOUT = 5.0
"""Seconds to wait for the catalog."""

_log = logging.getLogger("lakequeue.serve")


class Health:
    """Answers 200 while the catalog of the root can be read, else 503 with the reason."""

    def __init__(self, lake: LakeQueue, stopping: Callable[[], bool], timeout: float = TIMEOUT) -> None:
        self._stopping = stopping
        self._timeout = timeout
        self._check = SingleFlight(lambda: check_catalog(lake))

    async def answer(self, http: Request) -> Response:
        reason = await self._reason()
        if reason is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "failing", "reason": reason}, 503)

    async def _reason(self) -> str | None:
        if self._stopping():
            return "The server is stopping."
        try:
            await asyncio.wait_for(self._check.result(), self._timeout)
        except asyncio.TimeoutError:
            return f"The storage of the queues did not answer within {self._timeout:g} s."
        except LakeQueueError as error:  # clients must not see internals of the server
            _log.warning("the catalog cannot be read: %s", error)
            return "The storage of the queues cannot be read."
        return None
