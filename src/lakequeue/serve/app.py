"""The ASGI application. The SQS endpoint, the console, health and metrics share one port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import check_catalog
from lakequeue.errors import LakeQueueError
from lakequeue.model.redrive_policies import ACCOUNT
from lakequeue.serve.auth import BASIC_CHALLENGE, Authenticator, BasicAuthentication, NoAuthentication
from lakequeue.serve.combining import SingleFlight
from lakequeue.serve.console.routes import PATH, Console
from lakequeue.serve.errors import RequestError
from lakequeue.serve.instrumentation import Instrumentation
from lakequeue.serve.limits import MAX_BODY_BYTES, RequestBodies
from lakequeue.serve.logs import AccessLog
from lakequeue.serve.metrics import Metrics
from lakequeue.serve.middleware import RequestChecks
from lakequeue.serve.queue_metrics import QUEUES
from lakequeue.serve.sqs.actions import MAX_SHARDS, Actions
from lakequeue.serve.sqs.endpoint import SqsEndpoint
from lakequeue.serve.sqs.queue_attributes import Encryption

THREADS = 256
"""Maximum number of requests that run at the same time. Most of them only wait for a commit."""
ADOPT_INTERVAL = 10.0
"""Seconds between two searches for message move tasks that dead servers left unfinished."""
CATALOG_TIMEOUT = 5.0
"""Maximum seconds that ``/health`` waits for the catalog of the root."""

_Handler = Callable[[Request], Awaitable[Response]]
_log = logging.getLogger("lakequeue.serve")


class Application:
    """The ASGI application of one root.

    Args:
        access: authenticates requests; None for no authentication.
        max_body_bytes: maximum number of bytes of a request body.
        allowed_hosts: host names to allow besides this machine's names. If ``allowed_hosts`` is empty and
            ``access`` is given, every host name is allowed.
        account: 12 digits, for the URLs and ARNs of queues. Without ``access``, also the sender of messages.
        metrics_queues: maximum number of queues that have metrics of their own.
        max_shards: maximum number of shards that a client can give a queue.
        public_url: scheme and host in the URLs of queues; None to take both from each request.
        command_prefix: beginning of the commands that the console shows; None for ``lakequeue --root ROOT``.

    Attributes:
        pages: Starlette's routes, for every request that is not a plain SQS request.
    """

    def __init__(
        self,
        lake: LakeQueue,
        access: Authenticator | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        allowed_hosts: Collection[str] = (),
        account: str = ACCOUNT,
        metrics_queues: int = QUEUES,
        max_shards: int = MAX_SHARDS,
        public_url: str | None = None,
        encryption: Encryption = Encryption(),  # noqa: B008
        command_prefix: str | None = None,
    ) -> None:
        self.has_keys = access is not None
        authenticator = access or NoAuthentication()
        bodies = RequestBodies(max_body_bytes)
        self.actions = Actions(lake, account, account if access is None else None, max_shards, encryption)
        self.endpoint = SqsEndpoint(self.actions, authenticator, bodies, public_url)
        basic = BasicAuthentication(authenticator)
        self.console = Console(self.actions, basic, bodies, command_prefix)
        any_host = access is not None and not allowed_hosts  # the host name is part of the signature
        metrics = Metrics(lake, lambda: self.endpoint.waiting, metrics_queues)
        health = HealthCheck(lake, lambda: self.endpoint.receives.stopping)
        self.pages = Starlette(
            routes=[
                Route("/health", health.answer),
                Route("/metrics", _requires_list_queues(basic, metrics.answer)),
                *self.console.routes,
                _AnyPath(self._answer),
            ],
            lifespan=self._lifespan,
        )
        checked = RequestChecks(self._route, None if any_host else allowed_hosts)
        self.asgi = Instrumentation(checked, lake.clock, (metrics, AccessLog(), self.console.damage))

    def stop(self) -> None:
        """Ends all waits of long polls and all searches by SQL conditions. Called before the server stops."""
        self.endpoint.receives.stop()
        self.console.conditions.interrupts.stop()

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        direct = scope["type"] == "http" and scope["method"] == "POST" and not scope["path"].startswith(PATH)
        await (self._answer if direct else self.pages)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="request")
        asyncio.get_running_loop().set_default_executor(threads)
        background = [asyncio.create_task(self._adopt_tasks()), asyncio.create_task(self.console.record_depths())]
        try:
            yield
        finally:
            for task in background:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(self.actions.tasks.stop)

    async def _adopt_tasks(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.actions.tasks.adopt)
            except Exception as error:  # storage may be back at the next check
                _log.warning("cannot check for message move tasks: %s", error)
            await asyncio.sleep(ADOPT_INTERVAL)


class HealthCheck:
    """Answers ``/health``: 200 if the catalog of the root can be read, else 503 with the reason."""

    def __init__(self, lake: LakeQueue, stopping: Callable[[], bool], timeout: float = CATALOG_TIMEOUT) -> None:
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


def _requires_list_queues(basic: BasicAuthentication, answer: _Handler) -> _Handler:
    """Wraps the handler of a page that names queues. Answers 403 to keys without the permission ListQueues."""

    async def checked(http: Request) -> Response:
        try:
            address = http.client.host if http.client else ""
            caller = basic.caller(address, http.headers.get("authorization", ""))
        except RequestError as error:
            return PlainTextResponse(error.message, error.status, BASIC_CHALLENGE if error.status == 401 else None)
        if not caller.may("ListQueues", None):
            return PlainTextResponse("The key does not allow ListQueues.", 403)
        return await answer(http)

    return checked


class _AnyPath(BaseRoute):
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
