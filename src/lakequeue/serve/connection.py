"""One connection of a client, with the patience that it gets."""

from __future__ import annotations

import asyncio
import re
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_END_OF_HEAD = re.compile(rb"\n\r?\n")


class Connection(H11Protocol):
    """HTTP as uvicorn speaks it, for clients that send or read too slowly and for too many of them.

    Attributes:
        head_seconds: time for the head of a request, from its first byte or the beginning of the connection.
        answer_seconds: time to read what waits to be sent.
    """

    head_seconds = 10.0
    answer_seconds = 60.0
    _no_head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does it only where the listener was made with a protocol number; else the body of each answer
        # waits 40 ms for the client to acknowledge its head
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        most = self.limit_concurrency
        if most is not None and len(self.connections) >= most:
            self.logger.warning("A connection is refused: there are %d already.", most - 1)
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
            # h11 takes it for the end of a line, and what stands before this server perhaps not
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
        else:
            super().handle_events()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing it would wait until the client has read
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
    """Whether the head that data begins with has a line that ends without a carriage return."""
    end = _END_OF_HEAD.search(data)
    return _BARE_LINE_FEED.search(data, 0, end.end() if end else len(data)) is not None
