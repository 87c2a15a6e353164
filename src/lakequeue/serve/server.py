"""Running the application: sockets, TLS, limits and the graceful stop."""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType

import uvicorn

from lakequeue.serve.app import Application

HEADERS = 64 * 1024
"""Bytes that the head of a request may have."""
CONNECTIONS = 1_000
STOP_SECONDS = 30
IDLE = 75
"""Seconds that a connection is kept without a request: longer than SDKs keep theirs, so that they close it."""


class Server(uvicorn.Server):
    """Runs an application; a signal ends it after the requests that are under way, a second one at once."""

    def __init__(self, application: Application, host: str, port: int) -> None:
        self._application = application
        super().__init__(
            uvicorn.Config(
                application.asgi,
                host=host,
                port=port,
                http="h11",  # the one that bounds the head of a request
                h11_max_incomplete_event_size=HEADERS,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=STOP_SECONDS,
                lifespan="on",
                access_log=False,  # there is one of the application's own
                log_config=None,
                timeout_keep_alive=IDLE,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # threads may wait for storage that never answers; a kill leaves nothing half-done in the tables
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.endpoint.stop()
        await super().shutdown(sockets)
        self._captured_signals.clear()  # uvicorn would raise them once more, though they were obeyed
