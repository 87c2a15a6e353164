"""The server's application: the SQS endpoint and what stands beside it on the same port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakequeue.serve.access import Access, Open
from lakequeue.serve.actions import Actions
from lakequeue.serve.console import Console
from lakequeue.serve.endpoint import LARGEST_BODY, Endpoint
from lakequeue.service import LakeQueue

THREADS = 256
"""Requests that may wait for their commit at a time; they meet in the group commit."""
LOOK_FOR_TASKS = 10.0
"""Seconds between two looks for message move tasks whose server has died."""


class Application:
    """The ASGI application of one root.

    Attributes:
        asgi: what a server runs.
        endpoint: answers SQS clients; its `stop` is called before the server stops.
    """

    def __init__(self, lake: LakeQueue, access: Access | None = None, largest_body: int = LARGEST_BODY) -> None:
        self.actions = Actions(lake)
        self.endpoint = Endpoint(self.actions, access or Open(), largest_body)
        self.console = Console(self.actions, access or Open(), self.endpoint)
        self.asgi = Starlette(
            routes=[
                *self.console.routes,
                Route("/{path:path}", self._sqs, methods=["GET", "POST", "PUT", "DELETE", "PATCH"]),
            ],
            lifespan=self._lifespan,
        )

    async def _sqs(self, request: Request) -> Response:
        return await self.endpoint(request)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="request")
        asyncio.get_running_loop().set_default_executor(threads)
        looking = asyncio.create_task(self._look_for_tasks())
        watching = asyncio.create_task(self.console.watch())
        try:
            yield
        finally:
            for task in (looking, watching):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(self.actions.tasks.stop)

    async def _look_for_tasks(self) -> None:
        while True:
            with suppress(Exception):  # storage that fails now may be there at the next look
                await asyncio.to_thread(self.actions.tasks.adopt)
            await asyncio.sleep(LOOK_FOR_TASKS)
