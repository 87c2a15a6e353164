"""One connection of a client: time limits, and a strict reading of heads."""

from __future__ import annotations

import asyncio
import re
import socket
from operator import itemgetter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_UNREAD_BYTES = 128 * 2**20
"""Bytes of all answers that clients are slow to read."""
WRITE_BUFFER_BYTES = 64 * 1024
"""Bytes of an answer from which a connection waits for its client."""
UNREAD = "unread"
"""Where the state of a request has the number of bytes of its answer that the connection was not given yet."""
RECEIVES = "receives"
"""Where the state of a request says that its answer brings messages."""
HALF_CLOSED = "half closed"
"""Where it says that its client sends no more."""

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_END_OF_HEAD = re.compile(rb"\n\r?\n")


class Connection(H11Protocol):
    """uvicorn's HTTP protocol; closes connections that are too slow.

    Attributes:
        head_seconds: time limit for the head of a request, from its first byte or the start of the connection.
        answer_seconds: time limit for reading a buffered answer.
        unverified_seconds: time limit for the next request while none was verified.
        lost: set when the connection has ended.
    """

    head_seconds = 10.0
    answer_seconds = 60.0
    unverified_seconds = 5
    _no_head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _verified = False
    _scanned = 0
    """Bytes of an incomplete head that need not be scanned again."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.lost = asyncio.Event()

    @property
    def verified(self) -> bool:
        """Whether the caller of a request was authenticated; where there are no keys, everybody is."""
        if not self._verified and self.scope is not None:
            call = self.scope["state"].get("call")
            self._verified = call is not None and call.caller is not None
        return self._verified

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio sets this only on listeners with a protocol number; without it the body of each answer waits
        # 40 ms for the client to acknowledge the head
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)  # TLS would take eight times as much
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting_for_head()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting_for_head()

    def eof_received(self) -> bool:  # type: ignore[override]
        """An SQS client that sends no more gets its answer, but no messages: it may be gone."""
        cycle, secure = self.cycle, self.transport.get_extra_info("ssl_object") is not None
        if secure or cycle is None or cycle.response_complete or cycle.more_body:
            return False
        if self.scope["path"].startswith("/console") or self.scope["state"].get(RECEIVES):
            return False
        self.scope["state"][HALF_CLOSED] = True
        cycle.keep_alive = False
        return True

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE:
            data = self.conn.trailing_data[0]
            if _has_bare_line_feed(data, self._scanned):
                # h11 accepts it as the end of a line; a proxy in front of this server may not
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
                return
            self._scanned = max(0, len(data) - len(b"\r\n\r"))
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._scanned = 0

    def on_response_complete(self) -> None:
        idle = self.config.timeout_keep_alive
        self.timeout_keep_alive = idle if self.verified else min(idle, self.unverified_seconds)
        super().on_response_complete()

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
            if total > MAX_UNREAD_BYTES:  # those go whose clients have read nothing for longest
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


def _has_bare_line_feed(data: bytes, start: int) -> bool:
    """Whether a line of the head at the start of the data ends without a carriage return, from an index on."""
    end = _END_OF_HEAD.search(data, start)
    return _BARE_LINE_FEED.search(data, start, end.end() if end else len(data)) is not None
