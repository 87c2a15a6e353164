"""The console: a page about the queues, and the small JSON API that it works with, under ``/console``.

The page comes with the package and asks nobody else for anything. Where the server has keys, whoever looks at it
says who they are by HTTP Basic, with a key id and its secret. What changes something is a POST of JSON with a
header of its own, which no other site can make a browser send.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakequeue.errors import QueueClientError, QueueServiceError
from lakequeue.model.interrupts import Interrupt
from lakequeue.serve.auth import Access, Caller, by_password, denied
from lakequeue.serve.conditions import Conditions
from lakequeue.serve.console.api import Answer, Desk, Given
from lakequeue.serve.faults import Fault, WireError, malformed
from lakequeue.serve.limits import LARGEST_OTHER, Bodies
from lakequeue.serve.sqs.actions import Actions
from lakequeue.serve.sqs.endpoint import Exchange

PATH = "/console"
STATIC = Path(__file__).parent / "static"
HEADER = "x-lakequeue-console"
"""What every request that changes something carries, whatever its value: a form of another site has no headers,
and a script of one may not set it."""
SECONDS = 60.0
"""Between two looks at every queue, for the sparklines."""
AT_ONCE = 16
"""Requests to the tables at a time, beside those with a condition; the other threads are for SQS clients."""
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

_FILTERS = frozenset({"id", "state", "text", "where"})
"""Members of a request for messages that make a condition."""
_log = logging.getLogger("lakequeue.serve")
_Deed = Callable[[Caller, str, Given], Answer]


class Console:
    """Routes of the console, and the looks that it takes by itself.

    Attributes:
        routes: to be asked before those of the endpoint.
        depths: what was seen of the queues.
        conditions: the requests that look for messages.
    """

    def __init__(self, actions: Actions, access: Access, bodies: Bodies) -> None:
        desk = Desk(actions)
        self.depths = desk.depths
        self.conditions = Conditions()
        self._bodies = bodies
        self._turns = asyncio.Semaphore(AT_ONCE)
        one = "/api/queues/{queue}"
        app = Starlette(
            routes=[
                self._get("/api/queues", "ListQueues", desk.queues),
                self._get(one, "GetQueueAttributes", desk.queue),
                self._get(f"{one}/points", "GetQueueAttributes", desk.points),
                self._get(f"{one}/messages", "ReceiveMessage", desk.messages, _FILTERS),
                self._get(f"{one}/messages/{{id}}", "ReceiveMessage", desk.message, _FILTERS),
                self._get(f"{one}/history", "ReceiveMessage", desk.history, _FILTERS),
                self._get(f"{one}/history/{{id}}", "ReceiveMessage", desk.past_message, _FILTERS),
                self._get(f"{one}/rewind", "Rewind", desk.would_rewind),
                self._get(f"{one}/redrive", "StartMessageMoveTask", desk.would_redrive, _FILTERS),
                self._post(f"{one}/send", "SendMessage", desk.send),
                self._post(f"{one}/purge", "PurgeQueue", desk.purge),
                self._post(f"{one}/rewind", "Rewind", desk.rewind),
                self._post(f"{one}/redrive", "StartMessageMoveTask", desk.redrive, _FILTERS),
                Mount("/", StaticFiles(directory=STATIC, html=True)),
            ],
            exception_handlers={HTTPException: _refused},
        )
        self.routes: list[BaseRoute] = [
            Route(PATH, lambda http: RedirectResponse(f"{PATH}/", headers=HEADERS)),
            Mount(PATH, _Door(app, access)),
        ]

    async def watch(self) -> None:
        """Looks at every queue once a minute, until it is cancelled."""
        while True:
            await asyncio.sleep(SECONDS)
            with suppress(Exception):  # storage that fails now may be there at the next look
                for queue in await asyncio.to_thread(self.depths.queues):
                    await asyncio.to_thread(self.depths.look, queue)

    def _get(self, path: str, action: str, deed: _Deed, filters: Set[str] = frozenset()) -> Route:
        @asynccontextmanager
        async def given(http: Request) -> AsyncIterator[Mapping[str, Any]]:
            yield dict(http.query_params) | {
                name: value for name, value in http.path_params.items() if name == "id"
            }

        return Route(path, self._answering(action, deed, given, filters), methods=["GET"])

    def _post(self, path: str, action: str, deed: _Deed, filters: Set[str] = frozenset()) -> Route:
        most = None if action == "SendMessage" else LARGEST_OTHER

        @asynccontextmanager
        async def given(http: Request) -> AsyncIterator[Mapping[str, Any]]:
            if HEADER not in http.headers:
                raise WireError("AccessDeniedException", f"The request must have the header {HEADER}.", 403)
            if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise WireError("UnsupportedMediaType", "The request must be application/json.", 415)
            async with self._bodies.read(http, most) as body:
                yield await asyncio.to_thread(_members, body.content)

        return Route(path, self._answering(action, deed, given, filters), methods=["POST"])

    def _answering(
        self,
        action: str,
        deed: _Deed,
        given: Callable[[Request], AbstractAsyncContextManager[Mapping[str, Any]]],
        filters: Set[str],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(http: Request) -> Response:
            queue: str | None = http.path_params.get("queue")
            exchange: Exchange = http.state.exchange
            exchange.action, exchange.queue = action, queue or "-"
            try:
                caller: Caller = http.state.caller
                if not caller.may(action, queue):
                    raise denied(caller, action, queue)
                async with given(http) as members:

                    def act(interrupt: Interrupt | None = None) -> Answer:
                        return deed(caller, queue or "", Given(members, interrupt))

                    if filters & members.keys():
                        result = await self.conditions.run(http, caller.name, act)
                    else:
                        async with self._turns:
                            result = await asyncio.to_thread(act)
            except ClientDisconnect:
                exchange.code = "ClientDisconnect"
                return Response(status_code=400)
            except Exception as error:
                return _refusal(error, exchange)
            return _told(result)

        return answer


def _members(body: bytes) -> dict[str, Any]:
    """What a request in JSON says."""
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        raise malformed("The body is not JSON.") from None
    if not isinstance(members, dict):
        raise malformed("The request must be an object.")
    return members


class _Door:
    """Lets in who has a key, and gives every answer the headers that keep it where it belongs."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # what changes with each answer is not kept; what comes with the package is asked for anew, by its tag
        kept = "no-store" if "/api/" in scope["path"] else "no-cache"

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS | {"Cache-Control": kept})
            await send(message)

        http = Request(scope)
        exchange = http.state.exchange = Exchange(request_id=str(uuid.uuid4()))
        answer: ASGIApp = self._app
        try:
            caller = http.state.caller = self._caller(http)
            exchange.caller = caller.name
        except WireError as error:
            answer = _refusal(error, exchange)
        await answer(scope, receive, sent)

    def _caller(self, http: Request) -> Caller:
        caller = by_password(self._access, http.headers.get("authorization", ""))
        if caller is None:
            raise WireError("AccessDeniedException", "The console asks for an access key id and its secret.", 401)
        return caller


def _refusal(error: Exception, exchange: Exchange) -> Response:
    """An error as the page shows it."""
    fault = Fault.of(error)
    code = error.code if isinstance(error, QueueServiceError) else fault.code
    exchange.code, exchange.request_id = code, fault.request_id
    if isinstance(error, QueueClientError):
        _log.error("storage failed in %s: %s", exchange.action, error.message)
    elif not isinstance(error, (QueueServiceError, WireError)):
        _log.exception("%s failed in the console", exchange.action)
    asking = {"WWW-Authenticate": 'Basic realm="lakequeue", charset="UTF-8"'} if fault.status == 401 else None
    return _told({"code": code, "message": fault.message}, fault.status, asking)


async def _refused(http: Request, error: Exception) -> Response:
    """What routes and static files refuse: unknown paths, other methods."""
    assert isinstance(error, HTTPException)
    exchange: Exchange = http.state.exchange
    exchange.code = str(error.detail).replace(" ", "")
    content = {"code": exchange.code, "message": f"{http.method} {http.url.path}: {error.detail}."}
    return _told(content, error.status_code, error.headers)


def _told(answer: Answer, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # in ASCII: what a request brought may be no Unicode text
    return Response(json.dumps(answer, separators=(",", ":")), status, headers, "application/json")
