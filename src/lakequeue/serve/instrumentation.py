"""Measures every request once, for both the access log and the metrics."""

from __future__ import annotations

from datetime import datetime
from time import perf_counter
from typing import Protocol

import attrs
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakequeue.model.clock import Clock

MAX_ADDRESS_LENGTH = 64
"""Maximum number of characters that are kept of a client's address. Clients can forge longer addresses."""


@attrs.define
class ApiCall:
    """The action of a request, and its result.

    Attributes:
        action: the SQS action. For the console, the SQS action whose permission the caller needs.
        caller: name of the authenticated client; None if the client is not authenticated.
        code: ``OK``, or the name of the error, which is the same in every protocol.
        damaged: path of the damaged table that made the action fail; None if no damage was found.
    """

    action: str = "-"
    queue: str = "-"
    caller: str | None = None
    code: str = "OK"
    request_id: str = ""
    by_console: bool = False
    damaged: str | None = None


@attrs.define
class RequestRecord:
    """A finished request.

    Attributes:
        call: the action; None for requests without an action, such as ``/health``.
        status: HTTP status; None if no answer was sent.
        seconds: time from the arrival of the head until the last byte of the answer went to the socket.
    """

    at: datetime
    client: str
    method: str
    path: str
    call: ApiCall | None = None
    status: int | None = None
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class RequestObserver(Protocol):
    """An observer of requests. It is called when a request begins, and when the request ends."""

    def begun(self) -> None: ...

    def ended(self, record: RequestRecord) -> None:
        """Called when a request has ended, even if no answer was sent."""


class Instrumentation:
    """ASGI middleware that reports every request to observers."""

    def __init__(self, app: ASGIApp, clock: Clock, observers: tuple[RequestObserver, ...]) -> None:
        self._app = app
        self._clock = clock
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        if client:
            client = scope["client"] = client[0][:MAX_ADDRESS_LENGTH], client[1]
        record = RequestRecord(
            self._clock.now(),
            f"{client[0]}:{client[1]}" if client else "-",
            scope["method"],
            scope.get("raw_path", b"").decode("latin-1"),
        )

        async def counted_receive() -> Message:
            message = await receive()
            record.bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            record.status = message.get("status", record.status)
            record.bytes_out += len(message.get("body", b""))
            await send(message)

        for observer in self._observers:
            observer.begun()
        started = perf_counter()
        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            record.seconds = perf_counter() - started
            record.call = scope.get("state", {}).get("call")
            for observer in self._observers:
                observer.ended(record)
