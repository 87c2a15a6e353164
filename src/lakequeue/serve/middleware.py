"""Checks host, origin and head size of every request. Protects against web pages in a browser on this machine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakequeue.serve.connection import CYCLE, UNREAD, drop_if_gone
from lakequeue.serve.errors import RequestError, reported
from lakequeue.serve.instrumentation import ApiCall
from lakequeue.serve.sqs.endpoint import error_response, joined_headers

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024
PART_BYTES = 64 * 1024
"""Size in bytes of the parts in which an answer is passed to the connection."""

_HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_PAGE = re.compile(r"/|/health|/metrics|/console(/(?!api/).*)?\??")
"""Matches the paths that a browser may open from its address bar. These paths perform no action."""


class RequestChecks:
    """Refuses requests with a wrong host or origin, or a large head. If ``hosts`` is None, every host is right."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = ()) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = joined_headers(scope)
        exchange = _TrackedExchange(scope, headers, receive, send)
        try:
            _check_head(scope, headers)
            self._check_host(scope, headers)
            _check_origin(scope, headers)
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            response = reported(error, scope["state"].setdefault("call", ApiCall()))
            if not exchange.answered:  # otherwise the answer is incomplete, and the server closes the connection
                answer = error_response(response, headers)
                await answer(scope, exchange.receive, exchange.send)

    def _check_host(self, scope: Scope, headers: Mapping[str, str]) -> None:
        if "host" not in headers and scope["http_version"] == "1.0":
            return  # no browser sends it
        found = _HOST.fullmatch(headers.get("host", ""))
        if not found:
            raise RequestError("InvalidHost", "The header Host must be a name or an address, and a port.")
        name = found[1].lower()
        if self._hosts is not None and name not in self._hosts and not _is_local(name):
            raise RequestError(
                "InvalidHost",
                f"The host name {name[:255]} is not allowed; --allowed-host allows it.",
                403,
            )


class _TrackedExchange:
    """Passes on a request and its answer. Makes the server close a connection whose body was not read."""

    def __init__(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._state = scope.setdefault("state", {})
        self._unread = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self.answered = False

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answered = True
            if self._unread:  # otherwise the server must read the rest of the body, however long
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        body = message.get("body", b"")
        last = max(0, len(body) - 1) // PART_BYTES * PART_BYTES
        for start in range(0, last, PART_BYTES):  # in parts, so that the server waits for the client in between
            self._state[UNREAD] = len(body) - start
            part = {"type": "http.response.body", "body": body[start : start + PART_BYTES], "more_body": True}
            await self._pass_on(part)
            await asyncio.sleep(0)  # uvloop pauses writing for a slow client only at the end of a round
        if last:
            message["body"] = body[last:]
        self._state[UNREAD] = 0
        await self._pass_on(message)

    async def _pass_on(self, message: Message) -> None:
        drop_if_gone(self._state.get(CYCLE))
        await self._send(message)


def _check_head(scope: Scope, headers: Mapping[str, str]) -> None:
    coding = headers.get("transfer-encoding", "chunked")
    if coding.lower() != "chunked" or ("transfer-encoding" in headers and scope["http_version"] == "1.0"):
        # proxies disagree about where such a body ends, which allows request smuggling
        raise RequestError("InvalidRequest", "Transfer-Encoding must be chunked, and is not for HTTP/1.0.")
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if len(scope["headers"]) > MAX_HEADERS or size > MAX_HEAD_BYTES:
        raise RequestError(
            "RequestHeaderFieldsTooLarge",
            f"A request may have at most {MAX_HEADERS} headers and a head of {MAX_HEAD_BYTES} bytes.",
            431,
        )


def _check_origin(scope: Scope, headers: Mapping[str, str]) -> None:
    if "sec-purpose" in headers or "purpose" in headers:
        raise RequestError("AccessDeniedException", "Requests that a browser makes in advance are refused.", 403)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site == "none":  # no page caused it, but a link in a mail or chat may have
        query = "?" if scope["query_string"] else ""
        foreign = scope["method"] != "GET" or not _PAGE.fullmatch(scope["path"] + query)
    else:
        foreign = site != "same-origin"  # another site, or another origin of the same site
    if foreign or (origin is not None and _authority(origin) != headers.get("host", "").lower()):
        raise RequestError("AccessDeniedException", "Requests from other web sites are refused.", 403)


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


@lru_cache(1_000)
def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
