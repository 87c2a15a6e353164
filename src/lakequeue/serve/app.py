"""The server's application: the SQS endpoint and what stands beside it on the same port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakequeue.serve.access import Access, Open
from lakequeue.serve.actions import Actions
from lakequeue.serve.endpoint import LARGEST_BODY, Endpoint
from lakequeue.serve.guard import Guard
from lakequeue.service import LakeQueue

METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
"""Methods that are answered in the words of SQS, though all but POST by a refusal."""
THREADS = 256
"""Requests that may wait for their commit at a time; they meet in the group commit."""
LOOK_FOR_TASKS = 10.0
"""Seconds between two looks for message move tasks whose server has died."""


class Application:
    """The ASGI application of one root.

    Args:
        access: who is let in; None lets in everybody who is on this machine.
        largest_body: bytes of a request at most.
        allowed_hosts: names under which it may be asked beside those of this machine; none given, and with
            `access`, all.

    Attributes:
        asgi: what a server runs.
        endpoint: answers SQS clients; its `stop` is called before the server stops.
    """

    def __init__(
        self,
        lake: LakeQueue,
        access: Access | None = None,
        largest_body: int = LARGEST_BODY,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self.actions = Actions(lake)
        self.endpoint = Endpoint(self.actions, access or Open(), largest_body)
        any_host = access is not None and not allowed_hosts  # whoever asks signs with the name
        self.asgi = Starlette(
            routes=[Route("/{path:path}", self._sqs, methods=METHODS)],
            middleware=[Middleware(Guard, hosts=None if any_host else allowed_hosts)],
            lifespan=self._lifespan,
        )

    async def _sqs(self, request: Request) -> Response:
        return await self.endpoint(request)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="request")
        asyncio.get_running_loop().set_default_executor(threads)
        looking = asyncio.create_task(self._look_for_tasks())
        try:
            yield
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            await asyncio.to_thread(self.actions.tasks.stop)

    async def _look_for_tasks(self) -> None:
        while True:
            with suppress(Exception):  # storage that fails now may be there at the next look
                await asyncio.to_thread(self.actions.tasks.adopt)
            await asyncio.sleep(LOOK_FOR_TASKS)
