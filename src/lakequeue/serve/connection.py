"""Client connections: time limits for slow clients, and a maximum number."""

from __future__ import annotations

import asyncio
import re
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_END_OF_HEAD = re.compile(rb"\n\r?\n")


class Connection(H11Protocol):
    """uvicorn's HTTP protocol; closes connections that are too slow or too many.

    Attributes:
        head_seconds: time limit for the head of a request, from its first byte or the start of the connection.
        answer_seconds: time limit for reading a buffered answer.
    """

    head_seconds = 10.0
    answer_seconds = 60.0
    _no_head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio sets this only on listeners with a protocol number; without it the body of each answer waits
        # 40 ms for the client to acknowledge the head
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) >= limit:
            self.logger.warning("A connection is refused: %d are open already.", limit - 1)
            self.transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting_for_head()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting_for_head()

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE and _has_bare_line_feed(self.conn.trailing_data[0]):
            # h11 accepts it as the end of a line; a proxy in front of this server may not
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
        else:
            super().handle_events()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait until the client has read
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_reader()

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


def _has_bare_line_feed(data: bytes) -> bool:
    """Whether a line of the head at the start of the data ends without a carriage return."""
    end = _END_OF_HEAD.search(data)
    return _BARE_LINE_FEED.search(data, 0, end.end() if end else len(data)) is not None
