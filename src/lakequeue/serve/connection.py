"""One connection of a client, with time limits and strict parsing of request heads."""

from __future__ import annotations

import asyncio
import socket
from operator import itemgetter
from typing import Any

import httptools
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lakequeue.serve.shares import Holder, Shares

MAX_PARTIAL_BYTES = 64 * 1024
"""Maximum bytes that are buffered while a head, or a part of a body, has not arrived completely."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
"""The response to a client if there are too many connections."""
MAX_PIPELINED = 100
"""Maximum number of requests on a connection that wait for the answer to an earlier request."""
MAX_UNREAD_BYTES = 128 * 2**20
"""Maximum number of bytes, in all answers together, that slow clients have not read."""
WRITE_BUFFER_BYTES = 64 * 1024
"""Maximum unsent bytes of a connection. At this number, the connection waits until the client reads."""
UNREAD = "unread"
"""Key in the request state. Its value is the number of answer bytes that are not yet passed to the connection."""
RECEIVES = "receives"
"""Key in the request state. Its value is True if the answer may contain messages."""
HALF_CLOSED = "half closed"
"""Key in the request state. Its value is True if the client has closed its sending side."""
COMPLETE = "complete"
"""Key in the request state. Its value is True if the whole body has arrived."""
CYCLE = "cycle"
"""Key in the request state. Its value is uvicorn's cycle of request and response."""
CONNECTION = "connection"
"""Key in the request state. Its value is the ``Connection`` on which the request arrived."""


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP protocol with time limits for slow clients.

    Attributes:
        head_seconds: time limit for the head of a request, from its first byte or the start of the connection.
        answer_seconds: time limit for the client to read a buffered answer.
        unverified_seconds: time limit for the next request, as long as no request of the connection was verified.
        lost: event that is set when the connection has ended.
        leaving_seconds: time limit for the client to read a 503 answer.
        holder: key and address of the last verified request; None if no request was verified yet.
        turned_away: True if the connection answers every request with 503.
    """

    head_seconds = 10.0
    answer_seconds = 60.0
    unverified_seconds = 5
    leaving_seconds = 2.0
    turned_away = False
    _no_head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _in_head = True
    _partial = 0
    _refused = False

    def __init__(self, *given: Any, shares: Shares, **more: Any) -> None:
        super().__init__(*given, **more)
        self.lost = asyncio.Event()
        self.holder: Holder | None = None
        self._shares = shares

    def hold(self, holder: Holder | None) -> None:
        """Counts the connection towards the share of a holder. Raises RequestError if the share is used up."""
        self._shares.pass_on(self.holder, holder)
        self.holder = holder

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio sets this only on listeners with a protocol number. Without it, the body of each answer waits
        # 40 ms for the client to acknowledge the head.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)  # asyncio's default for TLS is eight times as large
        self._wait_for_head()
        if self.turned_away:
            self.turn_away()

    @property
    def is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def turn_away(self) -> bool:
        """Answers 503, and then ends the connection. Returns False if the connection cannot answer."""
        if self.transport is None:
            self.turned_away = True
            return True
        if self.transport.is_closing():
            return False
        if self.is_asked:
            if self.cycle.response_started:
                return False
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.turned_away = True
        self._stop_waiting_for_head()
        self._no_head = self.loop.call_later(self.leaving_seconds, self.transport.abort)
        self.transport.write(BUSY)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS
            self.transport.close()
        return True

    def end(self) -> None:
        """Ends the connection. Calls ``connection_lost`` itself, because uvloop may omit the call."""
        if self.transport is not None and not self.lost.is_set():
            self.transport.abort()
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost.is_set():
            return
        self._stop_waiting_for_head()
        self._stop_waiting_for_reader()
        self.hold(None)
        super().connection_lost(exc)
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        if self.turned_away:
            return
        self._unset_keepalive_if_required()
        self._partial += len(data)
        while data and not self._refused:
            try:
                self.parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse()
        if self._partial > MAX_PARTIAL_BYTES:
            self._refuse()
        if self._in_head or self.cycle.response_complete:
            self._wait_for_head()
        else:
            self._stop_waiting_for_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer of the body must not change the checked headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in ("1.0", "1.1") or self.parser.get_method() == b"CONNECT":
            raise ValueError("this server speaks HTTP/1.1, and is not a proxy")
        if len(self.pipeline) >= MAX_PIPELINED:  # here, because thousands more may have arrived
            raise ValueError("too many requests wait for an answer")
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.cycle.scope["state"] |= {CYCLE: self.cycle, CONNECTION: self}
        self._in_head, self._partial = False, 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._partial = 0

    def on_message_complete(self) -> None:
        if self._in_head:  # an offer to upgrade
            return
        super().on_message_complete()
        self._partial = 0
        self.cycle.scope["state"][COMPLETE] = True

    def _without_upgrade(self) -> bytes:
        """Removes the header Upgrade from a request's head, because with it the parser would skip the body."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self) -> None:
        """Sends 400 for an invalid request, after the answers to earlier requests. Ignores later requests."""
        if self._refused:
            return
        self._refused = True
        broken_body = self.cycle is not None and self.cycle.more_body
        if broken_body and self.pipeline:
            self.pipeline.popleft()
        elif broken_body or self.cycle is None or self.cycle.response_complete:
            self._send_refusal()

    def _send_refusal(self) -> None:
        self.logger.warning("Invalid HTTP request received.")
        self.send_400_response("Invalid HTTP request received.")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Called when the client closes its sending side. Returns True to keep the connection until a pending SQS
        request is answered.

        Returns False, which closes the connection, during a receive: the client may be gone, and the messages
        would stay hidden. Also returns False for TLS, the console, and pipelined or incomplete requests.
        """
        if self.turned_away:
            return False
        cycle, secure = self.cycle, self.transport.get_extra_info("ssl_object") is not None
        if secure or cycle is None or cycle.response_complete or cycle.more_body or self.pipeline:
            return False
        if cycle.scope["path"].startswith("/console") or cycle.scope["state"].get(RECEIVES):
            return False
        cycle.scope["state"][HALF_CLOSED] = True
        cycle.keep_alive = False
        return True

    def on_response_complete(self) -> None:
        idle = self.config.timeout_keep_alive
        self.timeout_keep_alive = idle if self.holder else min(idle, self.unverified_seconds)
        last = not self.pipeline
        super().on_response_complete()
        if self._refused and last and not self.transport.is_closing():
            self._send_refusal()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait until the client has read
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.answer_seconds, self.transport.abort)
        waiting = [
            (other._unread.when(), other._unread_bytes, other.transport)
            for other in self.connections
            if isinstance(other, Connection) and other._unread and not other.transport.is_closing()
        ]
        total = sum(unread for _, unread, _ in waiting)
        for _, unread, transport in sorted(waiting, key=itemgetter(0)):
            if total > MAX_UNREAD_BYTES:  # end connections whose clients have read nothing for longest
                total -= unread
                transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_reader()

    @property
    def _unread_bytes(self) -> int:
        unread: int = self.scope["state"].get(UNREAD, 0) if self.scope else 0
        return unread + self.transport.get_write_buffer_size()

    def _wait_for_head(self) -> None:
        if self._no_head is None and not self.transport.is_closing():
            self._no_head = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_waiting_for_head(self) -> None:
        if self._no_head is not None:
            self._no_head.cancel()
            self._no_head = None

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def hold(http: Request, key: str | None) -> None:
    """Counts a request's connection for its key and address. Raises RequestError if their share is used up."""
    connection: Connection | None = http.scope["state"].get(CONNECTION)
    if connection is not None:
        connection.hold(Holder(key, http.client.host if http.client else ""))


def drop_if_gone(cycle: RequestResponseCycle | None) -> None:
    """Makes uvicorn drop the answer to a client that has gone, because uvloop would raise an error."""
    if cycle is not None and cycle.transport.is_closing():
        cycle.disconnected = True
