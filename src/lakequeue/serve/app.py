"""The server's application: the SQS endpoint and what stands beside it on the same port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from lakequeue.client import LakeQueue
from lakequeue.serve.auth import Access, Open, by_password
from lakequeue.serve.console.routes import Console
from lakequeue.serve.health import Health
from lakequeue.serve.limits import LARGEST_BODY, Bodies
from lakequeue.serve.measuring import AccessLog, Watch
from lakequeue.serve.metrics import Metrics
from lakequeue.serve.middleware import Guard
from lakequeue.serve.sqs.actions import Actions
from lakequeue.serve.sqs.endpoint import Endpoint

THREADS = 256
"""Requests that may wait for their commit at a time; they meet in the group commit."""
LOOK_FOR_TASKS = 10.0
"""Seconds between two looks for message move tasks whose server has died."""

_Answer = Callable[[Request], Awaitable[Response]]
_log = logging.getLogger("lakequeue.serve")


class Application:
    """The ASGI application of one root.

    Args:
        access: who is let in; None lets in everybody who is on this machine.
        largest_body: bytes of a request at most.
        allowed_hosts: names under which it may be asked beside those of this machine; none given, and with
            `access`, all.

    Attributes:
        asgi: what a server runs.
        endpoint: answers SQS clients.
    """

    def __init__(
        self,
        lake: LakeQueue,
        access: Access | None = None,
        largest_body: int = LARGEST_BODY,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self.actions = Actions(lake)
        bodies = Bodies(largest_body)
        self.endpoint = Endpoint(self.actions, access or Open(), bodies)
        self.console = Console(self.actions, access or Open(), bodies)
        any_host = access is not None and not allowed_hosts  # whoever asks signs with the name
        metrics = Metrics(lake, lambda: self.endpoint.waiting)
        health = Health(lake, lambda: self.endpoint.stopping)
        self.asgi = Starlette(
            routes=[
                Route("/health", health.answer),
                Route("/metrics", _for_who_may_list(access or Open(), metrics.answer)),
                *self.console.routes,
                _Everything(self.endpoint),
            ],
            middleware=[
                Middleware(Watch, lake.clock, (metrics, AccessLog())),
                Middleware(Guard, hosts=None if any_host else allowed_hosts),
            ],
            lifespan=self._lifespan,
        )

    def stop(self) -> None:
        """Ends what requests wait for, long polls and conditions; to be called before the server stops."""
        self.endpoint.stop()
        self.console.conditions.stop()

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
            try:
                await asyncio.to_thread(self.actions.tasks.adopt)
            except Exception as error:  # storage that fails now may be there at the next look
                _log.warning("no look for message move tasks: %s", error)
            await asyncio.sleep(LOOK_FOR_TASKS)


def _for_who_may_list(access: Access, answer: _Answer) -> _Answer:
    """What tells the names of queues, for those whose key may know them."""

    async def asked(http: Request) -> Response:
        caller = by_password(access, http.headers.get("authorization", ""))
        if caller is None:
            headers = {"WWW-Authenticate": 'Basic realm="lakequeue", charset="UTF-8"'}
            return PlainTextResponse("An access key id and its secret are needed.", 401, headers)
        if not caller.may("ListQueues", None):
            return PlainTextResponse("The key does not allow ListQueues.", 403)
        return await answer(http)

    return asked


class _Everything(BaseRoute):
    """Sends all else to the endpoint, paths with a line's end too, which a pattern does not match."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
