"""Running the application: sockets, TLS, limits and the graceful stop."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from ipaddress import ip_address
from pathlib import Path
from types import FrameType

import attrs
import uvicorn

from lakequeue.errors import InvalidOptions
from lakequeue.serve.app import Application
from lakequeue.serve.connection import Connection
from lakequeue.serve.middleware import LARGEST_HEAD

CONNECTIONS = 1_000
STOP_SECONDS = 30
IDLE = 75
"""Seconds that a connection is kept without a request: longer than SDKs keep theirs, so that they close it."""


@attrs.frozen
class Certificate:
    """Files in PEM for TLS.

    Attributes:
        cert: the certificate, and those that it depends on.
        key: its private key, without a password.
    """

    cert: Path
    key: Path

    def check(self) -> None:
        """Makes sure that the files can be used.

        Raises:
            InvalidOptions: they are no certificate and key, or do not belong together.
            OSError: one cannot be read.
        """
        for path in (self.cert, self.key):
            path.open("rb").close()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key, password="")
        except ssl.SSLError as error:
            reason = (error.reason or "NOT_PEM").replace("_", " ").lower()
            raise InvalidOptions(
                [f"{self.cert} and {self.key} are no certificate and its private key without a password: {reason}"]
            ) from None


class Server(uvicorn.Server):
    """Runs an application; a signal ends it after the requests that are under way, a second one at once.

    Args:
        certificate: None speaks HTTP without TLS.
        connections: that may be open at a time; a further one is closed at once.
    """

    def __init__(
        self,
        application: Application,
        host: str,
        port: int,
        certificate: Certificate | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        self._application = application
        self._sockets: list[socket.socket] | None = None
        super().__init__(
            uvicorn.Config(
                application.asgi,
                host=host,
                port=port,
                http=Connection,
                ws="none",
                h11_max_incomplete_event_size=LARGEST_HEAD,
                limit_concurrency=connections + 1,  # uvicorn refuses at it, not above it
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=STOP_SECONDS,
                ssl_certfile=certificate.cert if certificate else None,
                ssl_keyfile=certificate.key if certificate else None,
                lifespan="on",
                access_log=False,  # there is one of the application's own
                log_config=None,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
            )
        )

    def bind(self) -> str:
        """Takes the port; the URL at which the server will answer.

        Raises:
            OSError: it is taken, or the address is not one of this machine.
        """
        config = self.config
        self._sockets = [listening(config.host, config.port)]
        address, port = self._sockets[0].getsockname()[:2]
        return f"{'https' if config.is_ssl else 'http'}://{f'[{address}]' if ':' in address else address}:{port}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or self._sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # threads may wait for storage that never answers; a kill leaves nothing half-done in the tables
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.stop()
        await super().shutdown(sockets)
        self._captured_signals.clear()  # uvicorn would raise them once more, though they were obeyed


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address, the first one of a name.

    Raises:
        OSError: the port is taken, or the address is not one of this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror.partition(" (while")[0] if error.strerror else str(error)
        raise OSError(f"cannot listen at {host}, port {port}: {reason}") from None


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
