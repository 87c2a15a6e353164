"""The HTTP server, with its socket, TLS and graceful shutdown."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import FrameType

import attrs
import uvicorn

from lakequeue.errors import InvalidOptions, cannot_listen
from lakequeue.serve.app import Application
from lakequeue.serve.connection import Connection
from lakequeue.serve.listener import Listener, descriptors_for
from lakequeue.serve.shares import Shares

MAX_CONNECTIONS = 2_000
ADDRESS_SHARE = 4
"""Divisor. On a server with keys, an address may use a quarter of all connections for unverified requests."""
SHUTDOWN_SECONDS = 30
LARGE_BLOCK = 128 * 1024
"""Number of bytes. The system gets back freed blocks of memory that have at least this size."""
KEEP_ALIVE_SECONDS = 75
"""Seconds for which an idle connection is kept. SDKs close idle connections earlier."""


_CIPHERS = "ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"


@attrs.frozen
class Certificate:
    """A TLS certificate with its chain, and its private key without a password. Both are PEM files."""

    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Returns a context for TLS 1.2 or later. Raises OSError, or InvalidOptions for a wrong or exposed key."""
        for path in (self.cert, self.key):
            path.open("rb").close()
        if self.key.stat().st_mode & stat.S_IRWXO:
            raise InvalidOptions([f"{self.key}: every user may read or write it (chmod 600)"])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Debian's Python uses the machine's OpenSSL settings, which allow more
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        try:
            context.load_cert_chain(self.cert, self.key, password="")
        except ssl.SSLError as error:
            reason = (error.reason or "NOT_PEM").replace("_", " ").lower()
            raise InvalidOptions(
                [f"{self.cert} and {self.key} must be a certificate and its key without a password: {reason}"]
            ) from None
        return context


class Server(uvicorn.Server):
    """Runs an application. A first signal stops it after the current requests; a second signal stops it at once.

    Args:
        certificate: the TLS certificate; None for HTTP without TLS.
        connections: maximum number of open connections. The limits of the system may lower this number.
        proxies: addresses and networks whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` headers are trusted.
    """

    def __init__(
        self,
        application: Application,
        host: str,
        port: int,
        certificate: Certificate | None = None,
        connections: int = MAX_CONNECTIONS,
        proxies: Sequence[str] = (),
    ) -> None:
        self._application = application
        self._tls = certificate.context() if certificate else None
        self._connections = connections
        self._proxies = Networks(proxies)
        self._socket: socket.socket | None = None
        super().__init__(
            uvicorn.Config(
                application.asgi,
                host=host,
                port=port,
                http=Connection,
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                lifespan="on",
                access_log=False,  # the application writes its own
                log_config=None,
                log_level="warning",
                server_header=False,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=[*proxies],
            )
        )

    def bind(self) -> str:
        """Binds the port, and returns the server's URL. Raises OSError if port or address is unavailable."""
        self._socket = listen(self.config.host, self.config.port)
        address, port = self._socket.getsockname()[:2]
        return f"{'https' if self._tls else 'http'}://{f'[{address}]' if ':' in address else address}:{port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        _return_large_blocks()
        await super().startup(sockets=[])  # uvicorn itself listens to no socket
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        limit = descriptors_for(self._connections)
        shares = Shares(limit, self._proxies)
        connect = partial(Connection, self.config, self.server_state, self.lifespan.state, shares=shares)
        # without keys, the first request on a connection verifies it
        strangers = max(1, limit // ADDRESS_SHARE) if self._application.has_keys else limit
        self._listener = Listener(self._socket, connect, limit, strangers, self._tls, self._proxies)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # threads may wait for storage that never answers; killing them leaves the tables consistent
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
            os._exit(128 + sig)  # the first process of a container outlives its own signal
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._listener.stop()
        self._application.stop()
        await super().shutdown(sockets)
        self._captured_signals.clear()  # otherwise uvicorn raises the signals again


def _return_large_blocks() -> None:
    """Makes the C library return large blocks of freed memory to the system, instead of keeping them."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, LARGE_BLOCK)  # M_MMAP_THRESHOLD, which otherwise grows to 32 MiB
        libc.mallopt(-8, 2)  # M_ARENA_MAX


class Networks:
    """A set of IP addresses and networks, parsed from texts. Raises InvalidOptions for a text that is neither."""

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            self._networks = [ip_network(text) for text in texts]
        except ValueError as error:
            raise InvalidOptions([f"a trusted proxy is an address or a network: {error}"]) from None

    def __contains__(self, address: object) -> bool:
        return any(ip_address(str(address)) in network for network in self._networks)


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket on a host's first address. Raises OSError if address or port is unavailable."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise cannot_listen(host, port, error) from None


def is_loopback(host: str) -> bool:
    """Returns True if only this machine can reach the address or name ``host``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
