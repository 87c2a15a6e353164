"""Routes of the console under ``/console``. The page is public; its JSON API needs HTTP Basic.

A change is a POST of JSON with a special header. Pages of other sites cannot make a browser send that header.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakequeue.errors import QueueDoesNotExist
from lakequeue.model.clock import Interrupt
from lakequeue.serve.auth import BASIC_CHALLENGE, BasicAuthentication, Caller, access_denied
from lakequeue.serve.cancellation import ConditionRunner
from lakequeue.serve.connection import hold
from lakequeue.serve.console.api import Answer, ConsoleApi
from lakequeue.serve.console.attention import PAUSE
from lakequeue.serve.console.parameters import Parameters, field_of
from lakequeue.serve.console.runbooks import runbook
from lakequeue.serve.errors import RequestError, malformed, new_id, reported
from lakequeue.serve.instrumentation import ApiCall
from lakequeue.serve.limits import MAX_OTHER_BODY_BYTES, RequestBodies
from lakequeue.serve.sqs.actions import Actions

PATH = "/console"
STATIC = Path(__file__).parent / "static"
HEADER = "x-lakequeue-console"
"""Header that every change must have, with any value. Pages of other sites cannot send this header."""
RECORD_INTERVAL = 60.0
"""Seconds between two recordings of the depths of all queues, which sparklines show."""
MAX_CONCURRENT = 16
"""Maximum number of console requests at the same time. Requests with a condition have a limit of their own."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_FILTERS = frozenset({"id", "ids", "state", "text", "where", "error", "no_error", "source"})
_Handler = Callable[[Caller, str, Parameters], Answer]


class Console:
    """The routes of the console, and the recording of depths.

    Attributes:
        routes: the console's routes. They must come before the route of the SQS endpoint.
        damage: damage that requests found, including requests of SQS clients.
    """

    def __init__(
        self, actions: Actions, basic: BasicAuthentication, bodies: RequestBodies, prefix: str | None = None
    ) -> None:
        api = ConsoleApi(actions, prefix)
        self.depths, self.damage = api.depths, api.damage
        self.conditions = ConditionRunner()
        self._bodies = bodies
        self._concurrent = asyncio.Semaphore(MAX_CONCURRENT)
        one = "/api/queues/{queue}"
        app = Starlette(
            routes=[
                self._get("/api/queues", "ListQueues", api.queues),
                self._post("/api/queues", "CreateQueue", api.create),
                self._get("/api/attention", "ListQueues", api.attention),
                self._get("/api/workers", "GetQueueAttributes", api.workers),
                self._get("/api/schedules", "GetQueueAttributes", api.schedules),
                self._post("/api/schedules", "SendMessage", api.change_schedule),
                self._get(one, "GetQueueAttributes", api.queue),
                self._post(f"{one}/attributes", "SetQueueAttributes", api.set_attributes),
                self._post(f"{one}/tags", "TagQueue", partial(api.run, "TagQueue")),
                self._post(f"{one}/untag", "UntagQueue", partial(api.run, "UntagQueue")),
                self._post(f"{one}/delete", "DeleteQueue", api.delete),
                self._get(f"{one}/shards", "GetQueueAttributes", api.shards),
                self._get(f"{one}/groups", "ReceiveMessage", api.groups),
                self._get(f"{one}/consumers", "GetQueueAttributes", api.consumers),
                self._get(f"{one}/errors", "ReceiveMessage", api.errors, _FILTERS),
                self._get(f"{one}/points", "GetQueueAttributes", api.points),
                self._get(f"{one}/messages", "ReceiveMessage", api.messages, _FILTERS),
                self._get(f"{one}/messages/{{id}}", "ReceiveMessage", api.message, _FILTERS),
                self._post(f"{one}/messages/delete", "DeleteMessage", api.delete_messages),
                self._post(f"{one}/messages/visible", "ChangeMessageVisibility", api.make_visible),
                self._get(f"{one}/history", "ReceiveMessage", partial(api.messages, history=True), _FILTERS),
                self._get(f"{one}/history/{{id}}", "ReceiveMessage", partial(api.message, history=True), _FILTERS),
                self._get(f"{one}/rewind", "Rewind", api.preview_rewind),
                self._get(f"{one}/redrive", "StartMessageMoveTask", api.preview_redrive, _FILTERS),
                self._post(f"{one}/send", "SendMessage", api.send),
                self._post(f"{one}/purge", "PurgeQueue", api.purge),
                self._post(f"{one}/pause", PAUSE, api.pause),
                self._post(f"{one}/resume", PAUSE, api.resume),
                self._post(f"{one}/rewind", "Rewind", api.rewind),
                self._post(f"{one}/redrive", "StartMessageMoveTask", api.redrive, _FILTERS),
                Route("/runbooks/{name:path}", runbook),
                Mount("/", StaticFiles(directory=STATIC, html=True)),
            ],
            exception_handlers={HTTPException: _http_error},
        )
        self.routes: list[BaseRoute] = [
            _BrowserAtRoot(),
            Route(PATH, lambda http: RedirectResponse(f"{PATH}/", headers=HEADERS)),
            Mount(PATH, _Authentication(app, basic)),
        ]

    async def record_depths(self) -> None:
        """Records the depth of every queue once a minute, until the task is cancelled."""
        while True:
            await asyncio.sleep(RECORD_INTERVAL)
            with suppress(Exception):  # storage may be back in a minute
                for queue in await asyncio.to_thread(self.depths.queues):
                    await asyncio.to_thread(self.depths.read, queue)

    def _get(self, path: str, action: str, handler: _Handler, filters: Set[str] = frozenset()) -> Route:
        @asynccontextmanager
        async def members(http: Request) -> AsyncIterator[Mapping[str, Any]]:
            yield dict(http.query_params) | {
                name: value for name, value in http.path_params.items() if name == "id"
            }

        return Route(path, self._endpoint(action, handler, members, filters), methods=["GET"])

    def _post(self, path: str, action: str, handler: _Handler, filters: Set[str] = frozenset()) -> Route:
        max_bytes = None if action == "SendMessage" else MAX_OTHER_BODY_BYTES

        @asynccontextmanager
        async def members(http: Request) -> AsyncIterator[Mapping[str, Any]]:
            if HEADER not in http.headers:
                raise RequestError("AccessDeniedException", f"The request must have the header {HEADER}.", 403)
            if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise RequestError("UnsupportedMediaType", "The request must be application/json.", 415)
            async with self._bodies.read(http, max_bytes) as body:
                yield await asyncio.to_thread(_parse, body.content)

        return Route(path, self._endpoint(action, handler, members, filters), methods=["POST"])

    def _endpoint(
        self,
        action: str,
        handler: _Handler,
        read: Callable[[Request], AbstractAsyncContextManager[Mapping[str, Any]]],
        filters: Set[str],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(http: Request) -> Response:
            queue: str | None = http.path_params.get("queue")
            call: ApiCall = http.state.call
            call.action, call.queue = action, queue or "-"
            try:
                caller: Caller = http.state.caller
                # the body names the queue, or the answer has only queues that the caller may see
                named = queue is None and action != "ListQueues"
                may = caller.may_on_any_queue(action) if named else caller.may(action, queue)
                if not may:
                    raise access_denied(caller, action, queue)
                async with read(http) as members:

                    def handle(interrupt: Interrupt | None = None) -> Answer:
                        return handler(caller, queue or "", Parameters(members, interrupt))

                    if filters & members.keys():
                        result = await self.conditions.run(http, caller.name, handle)
                    else:
                        async with self._concurrent:
                            result = await asyncio.to_thread(handle)
            except ClientDisconnect:
                call.code = "ClientDisconnect"
                return Response(status_code=400)
            except Exception as error:
                return _error(error, call)
            return _json(result)

        return answer


def _parse(body: bytes) -> dict[str, Any]:
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        raise malformed("The body is not JSON.") from None
    if not isinstance(members, dict):
        raise malformed("The request must be an object.")
    return members


class _BrowserAtRoot(BaseRoute):
    """Redirects a browser from the path ``/`` to the console. Does not match requests of SQS clients."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
            return Match.NONE, {}
        http = Request(scope)
        browses = "text/html" in http.headers.get("accept", "") and "Action" not in http.query_params
        return (Match.FULL if browses else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = HEADERS | {"Cache-Control": "no-store", "Vary": "Accept"}
        await RedirectResponse(f"{PATH}/", 303, headers)(scope, receive, send)


class _Authentication:
    """Authenticates requests to the API, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, basic: BasicAuthentication) -> None:
        self._app = app
        self._basic = basic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # API responses are not cached; static files are, but the browser asks by their ETag each time
        api = "/api/" in scope["path"]
        caching = "no-store" if api else "no-cache"
        http = Request(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS | {"Cache-Control": caching})
                # the page asks the user itself, and a browser that sees this would, too
                if HEADER in http.headers:
                    del headers["www-authenticate"]
            await send(message)

        call = http.state.call = ApiCall(request_id=new_id(), by_console=True)
        answer: ASGIApp = self._app
        try:
            if api:
                address = http.client.host if http.client else ""
                caller = self._basic.caller(address, http.headers.get("authorization", ""))
                http.state.caller = caller
                call.caller = caller.name
                hold(http, caller.key)
        except RequestError as error:
            answer = _error(error, call)
        await answer(scope, receive, send_with_headers)


def _error(error: Exception, call: ApiCall) -> Response:
    response = reported(error, call)
    challenge = BASIC_CHALLENGE if response.status == 401 else None
    # such as a name that is meant; clients of SQS do not get it, nor anybody the root and names of other queues
    hint = None if isinstance(error, QueueDoesNotExist) else getattr(error, "hint", None)
    message = response.message if hint is None else f"{response.message.rstrip('.')}: {hint}"
    content: dict[str, Any] = {"code": call.code, "message": message}
    if (field := field_of(error)) is not None:
        content["field"] = field
    if response.status == 403 and call.caller != "-":
        content["caller"] = call.caller
    return _json(content, response.status, challenge)


async def _http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    call: ApiCall = http.state.call
    call.code = str(error.detail).replace(" ", "")
    content = {"code": call.code, "message": f"{http.method} {http.url.path}: {error.detail}."}
    return _json(content, error.status_code, error.headers)


def _json(answer: Answer, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # in ASCII, because parts of a request may be no valid Unicode
    return Response(json.dumps(answer, separators=(",", ":")), status, headers, "application/json")
