"""Accepts connections, and limits their number in total and per address."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence

import attrs

from lakequeue.serve.connection import Connection

ACCEPTED_AT_ONCE = 64
"""Maximum number of connections that are accepted in one round of the event loop."""
OTHER_DESCRIPTORS = 512
"""Number of file descriptors that are kept free for tables, storage and worker processes."""
RETRY_SECONDS = 1.0
"""Seconds to wait after the system could not accept a connection."""
REPORT_SECONDS = 60.0
"""Minimum seconds between two log lines about closed connections."""

_log = logging.getLogger("lakequeue.serve")


@attrs.frozen(eq=False)
class _Client:
    address: str
    connection: Connection


class Listener:
    """Accepts connections. asyncio is not used, because it shows a connection only after its TLS handshake.

    At a limit, closes a connection without a verified request: the oldest idle one, or the oldest if none is idle.
    The client of the closed connection gets a 503 if the handshake is complete and enough file descriptors are
    free.

    Args:
        connect: makes the protocol of a connection.
        limit: maximum number of connections.
        strangers: maximum number of connections without a verified request from one address.
        proxies: addresses to which ``strangers`` does not apply.
    """

    handshake_seconds = 5.0

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], Connection],
        limit: int,
        strangers: int,
        tls: ssl.SSLContext | None = None,
        proxies: Container[str] = (),
    ) -> None:
        self._socket = listening
        self._connect = connect
        self._limit = limit
        self._most_strangers = strangers
        self._tls = tls
        self._proxies = proxies
        self._loop = asyncio.get_running_loop()
        self._clients: dict[asyncio.Task[None], _Client] = {}  # the oldest first
        self._at: Counter[str] = Counter()
        self._leaving: set[asyncio.Task[None]] = set()
        """Connections that get a 503. They do not count towards the limit of connections."""
        self._most_leaving = _spare_descriptors(limit)
        self._closed = 0
        self._report_after = 0.0
        self._retry: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._listen()

    def stop(self) -> None:
        """Stops accepting connections, and ends connections with an unfinished handshake."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for task, client in self._clients.items():
            if client.connection.transport is None:
                task.cancel()

    def _listen(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, (address, *_) = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory
                self._report(f"cannot accept connections: {error}")
                self._loop.remove_reader(self._socket)
                self._retry = self._loop.call_later(RETRY_SECONDS, self._listen)
                return
            if self._make_room(address):
                client = _Client(address, self._connect())
                accepted.setblocking(False)
                task = self._loop.create_task(self._serve(accepted, client))
                task.add_done_callback(self._forget)
                self._clients[task] = client
                self._at[address] += 1
            else:
                accepted.close()

    def _make_room(self, address: str) -> bool:
        """Closes a connection if a limit is reached. Returns True if there is room for a new connection."""
        if self._at[address] >= self._most_strangers and address not in self._proxies:
            neighbours = [task for task in self._strangers() if self._clients[task].address == address]
            if len(neighbours) >= self._most_strangers:
                return self._close(self._first(neighbours))
        if len(self._clients) < self._limit:
            return True
        strangers = list(self._strangers())
        if not strangers:
            self._report(f"a connection is refused: {self._limit} are open")
            return False
        return self._close(self._first(strangers))

    def _first(self, tasks: Sequence[asyncio.Task[None]]) -> asyncio.Task[None]:
        return next((task for task in tasks if not self._clients[task].connection.is_asked), tasks[0])

    def _strangers(self) -> Iterator[asyncio.Task[None]]:
        return (task for task, client in self._clients.items() if client.connection.holder is None)

    def _close(self, task: asyncio.Task[None]) -> bool:
        connection = self._clients[task].connection
        self._forget(task)
        shaken = self._tls is None or connection.transport is not None
        if shaken and len(self._leaving) < self._most_leaving and connection.turn_away():
            self._leaving.add(task)
        else:
            task.cancel()
        self._report("a connection without a verified request is closed to make room")
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        client = self._clients.pop(task, None)
        if client is not None:
            self._at[client.address] -= 1
            if not self._at[client.address]:
                del self._at[client.address]

    async def _serve(self, accepted: socket.socket, client: _Client) -> None:
        limits = {"ssl_handshake_timeout": self.handshake_seconds} if self._tls else {}
        try:
            await self._loop.connect_accepted_socket(lambda: client.connection, accepted, ssl=self._tls, **limits)
            await client.connection.lost.wait()
        except OSError:
            pass  # the handshake failed or timed out
        finally:
            client.connection.end()

    def _report(self, what: str) -> None:
        self._closed += 1
        if self._loop.time() >= self._report_after:
            _log.warning("%s; %d of such since the last report", what, self._closed)
            self._closed, self._report_after = 0, self._loop.time() + REPORT_SECONDS


def _spare_descriptors(connections: int) -> int:
    """Returns how many of ``connections`` can get a 503 with the file descriptors that are left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        connections
        if soft == resource.RLIM_INFINITY
        else max(0, min(connections, soft - OTHER_DESCRIPTORS - connections))
    )


def descriptors_for(connections: int) -> int:
    """Raises the soft limit on file descriptors. Returns how many of ``connections`` the limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + OTHER_DESCRIPTORS  # as many again for connections that get a 503
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(connections, max(soft - OTHER_DESCRIPTORS, soft // 2))
