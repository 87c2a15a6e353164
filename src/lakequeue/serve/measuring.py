"""What requests were about and what they cost: measured once, for the access log and the metrics alike."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime
from time import perf_counter
from typing import Any, Protocol

import attrs
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakequeue.model.clock import Clock
from lakequeue.serve.sqs.endpoint import Exchange

LONGEST = 200
"""Characters of a value that came with a request, in the log."""

_access = logging.getLogger("lakequeue.access")


@attrs.define
class Seen:
    """A request that has come to its end.

    Attributes:
        exchange: what it asked of SQS; None if it asked for something else, as ``/health``.
        status: of the answer; None if there was none.
        seconds: from the arrival of its head to the last byte of the answer, as given to the socket.
    """

    at: datetime
    client: str
    method: str
    path: str
    exchange: Exchange | None = None
    status: int | None = None
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class Watcher(Protocol):
    """Is told of every request."""

    def begun(self) -> None:
        """One has begun."""
        ...

    def ended(self, seen: Seen) -> None:
        """It has ended, however it did."""
        ...


class Watch:
    """ASGI middleware that tells watchers of the requests that pass through."""

    def __init__(self, app: ASGIApp, clock: Clock, watchers: tuple[Watcher, ...]) -> None:
        self._app = app
        self._clock = clock
        self._watchers = watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        seen = Seen(
            self._clock.now(),
            f"{client[0]}:{client[1]}" if client else "-",
            scope["method"],
            scope.get("raw_path", b"").decode("latin-1"),
        )

        async def received() -> Message:
            message = await receive()
            seen.bytes_in += len(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            seen.status = message.get("status", seen.status)
            seen.bytes_out += len(message.get("body", b""))
            await send(message)

        self._tell(lambda watcher: watcher.begun())
        started = perf_counter()
        try:
            await self._app(scope, received, sent)
        finally:
            seen.seconds = perf_counter() - started
            seen.exchange = scope.get("state", {}).get("exchange")
            self._tell(lambda watcher: watcher.ended(seen))

    def _tell(self, event: Callable[[Watcher], None]) -> None:
        for watcher in self._watchers:
            event(watcher)


class AccessLog:
    """Writes a line of JSON for each request to the logger ``lakequeue.access``, at level INFO.

    What came with the request is escaped, in ASCII, and cut; bodies, query strings and headers are left out.
    """

    def begun(self) -> None:
        pass

    def ended(self, seen: Seen) -> None:
        if _access.isEnabledFor(logging.INFO):
            _access.info("%s", json.dumps(_line(seen)))


def _line(seen: Seen) -> dict[str, Any]:
    exchange = seen.exchange or Exchange()
    return {
        "at": seen.at.isoformat(timespec="milliseconds"),
        "request_id": exchange.request_id or None,
        "client": seen.client,
        "request": _cut(f"{seen.method} {seen.path}"),
        "caller": _cut(exchange.caller),
        "action": exchange.action,
        "queue": _cut(exchange.queue),
        "status": seen.status,
        "code": exchange.code,
        "milliseconds": round(seen.seconds * 1_000, 1),
        "bytes_in": seen.bytes_in,
        "bytes_out": seen.bytes_out,
    }


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
