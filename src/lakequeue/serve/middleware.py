"""What stands before everything that is served on the port, for whichever path.

Against web pages that are open in a browser on the same machine: a request that a foreign page has caused is
refused, and without a file of keys also a name of the server that is not one of this machine, which a page could
have made point here (DNS rebinding). Against heads that are too large, and against errors that nobody has caught:
no stack trace goes to a client.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakequeue.serve.faults import Fault, WireError
from lakequeue.serve.sqs.endpoint import refusal, speaks_json

MOST_HEADERS = 100
LARGEST_HEAD = 64 * 1024
"""Bytes of the head of a request."""

_HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_log = logging.getLogger("lakequeue.serve")


class Guard:
    """Middleware around the whole application.

    Args:
        hosts: names under which the server may be asked beside those of this machine; None allows any, as where
            all requests are signed.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = ()) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        headers = Headers(scope=scope)
        try:
            _check_head(scope, headers)
            self._check_host(headers)
            _check_origin(headers)
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if not isinstance(error, WireError):
                _log.error("a request failed", exc_info=True)
            if not exchange.answered:  # else the server closes the connection: the answer is not whole
                answer = refusal(Fault.of(error), speaks_json(headers))
                await answer(scope, exchange.receive, exchange.send)

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if not given:
            return  # HTTP/1.0, which no browser speaks
        found = _HOST.fullmatch(given[0])
        if not found or len(given) > 1:
            raise WireError("InvalidHost", "The header Host must be a name or an address, and a port.")
        name = found[1].lower()
        if self._hosts is not None and name not in self._hosts and not _is_of_this_machine(name):
            raise WireError(
                "InvalidHost",
                f"This server is not to be asked as {name[:255]}; it can be allowed by --allowed-host.",
                403,
            )


class _Exchange:
    """The two directions of a request: closes its connection unless all of its body was read."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._receive, self._send = receive, send
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
            if self._unread:  # else the rest would have to be read, however long it is
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)


def _check_head(scope: Scope, headers: Headers) -> None:
    if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
        # where the body ends is a matter of opinion, and what follows might be smuggled in
        raise WireError("InvalidRequest", "Content-Length, Transfer-Encoding and HTTP/1.0 do not go together.")
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in headers.raw)
    if len(headers) > MOST_HEADERS or size > LARGEST_HEAD:
        raise WireError(
            "RequestHeaderFieldsTooLarge",
            f"A request may have {MOST_HEADERS} headers and a head of {LARGEST_HEAD} bytes at most.",
            431,
        )


def _check_origin(headers: Headers) -> None:
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    foreign = site not in ("same-origin", "none")  # another site, or another origin of the same one
    if foreign or (origin is not None and _authority(origin) != headers.get("host", "").lower()):
        raise WireError("AccessDeniedException", "Requests of other web sites are refused.", 403)


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_of_this_machine(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
