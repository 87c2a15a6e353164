"""An S3 server for tests and benchmarks: moto behind a lock, with a delay, a count of requests, and faults.

``python object_store.py`` serves one bucket, ``lake``, in memory, and prints its port. moto does not make
conditional PUTs atomic, so it gets one request at a time. Delays run concurrently.
"""

from __future__ import annotations

import io
import json
import logging
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.request import Request, urlopen

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "lake"
CONTROL = "/__control__"
"""GET: number of requests by method and kind, or faults by kind if the query is ``faults``.

POST: sets the delay in seconds and resets the count. ``faults`` (chance of each kind), ``seed``, ``late`` and
``slow`` (seconds) are arguments of ``Counted.fail``.
"""
FAULTS = ("refuse", "slow", "cut", "stall", "late", "tear", "lose", "conflict")
"""Kinds of faults.

503 before the work; a pause before it; the connection closed before it; a pause before it longer than clients
wait; such a pause after it; the connection closed in the middle of the answer; before any of the answer; 409 to a
request that creates an object, as S3 answers during another such request.
"""
_CONFLICT = "409 Conflict", "ConditionalRequestConflict", "A conflicting conditional operation is in progress."
_SLOW_DOWN = "503 Slow Down", "SlowDown", "Please reduce your request rate."

Environ = dict[str, Any]
Start = Callable[..., Any]
Store = Callable[[Environ, Start], Iterable[bytes]]


def environment(url: str) -> dict[str, str]:
    """Returns environment variables that direct clients to the server."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_REGION": "us-east-1",
    }


class Counted:
    """WSGI application that counts and delays requests to a store, and makes some of them fail."""

    def __init__(self) -> None:
        self._store: Store = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.delay = 0.0
        self.faults: Counter[str] = Counter()
        """Number of faults by kind."""
        self.refusal: Callable[[Environ], tuple[str, str, str] | None] = lambda environ: None
        """Returns status, code and message of a refused request, or None."""
        self.choose: Callable[[Environ], str | None]
        """Returns the fault of a request, or None. Replaced by ``fail``."""
        self.fail({})

    def fail(
        self, chances: Mapping[str, float], *, seed: int | None = None, slow: float = 0.3, late: float = 8.0
    ) -> None:
        """Makes requests fail from now on, and resets the count of faults.

        Args:
            chances: for each kind of ``FAULTS`` its share of all requests; no request has two faults.
            seed: seed of the choice of requests.
            slow: seconds of the pause before the work.
            late: seconds of the pauses that are longer than clients wait.
        """
        if unknown := chances.keys() - set(FAULTS):
            raise ValueError(f"unknown faults: {sorted(unknown)}")
        with self._lock:
            self._chances, self._draw = dict(chances), random.Random(seed)
            self.choose = self._chosen
            self._slow, self._late = slow, late
            self.faults.clear()

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] == CONTROL:
            return self._control(environ, start)
        time.sleep(self.delay)
        environ["wsgi.input"] = io.BytesIO(_body(environ))  # Read before the lock is taken.
        with self._lock:
            self.requests[_kind(environ)] += 1
            fault = self.choose(environ)
            refusal = _SLOW_DOWN if fault == "refuse" else self.refusal(environ)
            if fault == "conflict" and "HTTP_IF_NONE_MATCH" in environ:
                refusal = _CONFLICT
        if refusal is not None:
            return _refused(start, *refusal)
        if fault == "cut":
            start("200 OK", [])
            return _closed(environ)
        if fault in ("slow", "stall"):
            time.sleep(self._slow if fault == "slow" else self._late)
        with self._lock:
            answer = b"".join(self._store(environ, start))
        if fault == "late":
            time.sleep(self._late)
        if fault == "lose":
            return _closed(environ)
        if fault == "tear":
            return _torn(environ, answer)
        return [answer]

    def _chosen(self, _: Environ) -> str | None:
        draw = self._draw.random()
        for kind, chance in self._chances.items():
            draw -= chance
            if draw < 0:
                self.faults[kind] += 1
                return kind
        return None

    def _control(self, environ: Environ, start: Start) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            asked = json.loads(_body(environ))
            self.delay = asked.pop("delay", self.delay)
            if "faults" in asked:
                self.fail(asked.pop("faults"), **asked)
            self.requests.clear()
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(dict(self.faults if environ["QUERY_STRING"] == "faults" else self.requests)).encode()]


def _refused(start: Start, status: str, code: str, message: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()]


def _closed(environ: Environ, *sent: bytes) -> Iterable[bytes]:
    """Closes the connection after the given bytes. The client gets nothing that WSGI writes later."""
    connection = environ["werkzeug.socket"]
    for part in sent:
        connection.sendall(part)
    connection.shutdown(socket.SHUT_RDWR)
    return [b""]


def _torn(environ: Environ, answer: bytes) -> Iterable[bytes]:
    """Sends the first half of an answer, or of its headers if it has no body, and closes the connection."""
    if not answer:
        yield from _closed(environ, b"HTTP/1.1 200 OK\r\nContent-")
        return
    yield answer[: len(answer) // 2]
    _closed(environ)
    yield answer[len(answer) // 2 :]


def _body(environ: Environ) -> bytes:
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return body


def _kind(environ: Environ) -> str:
    method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
    if method == "GET" and ("list-type" in query or environ["PATH_INFO"].strip("/") == BUCKET):
        return "LIST"
    return method


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Otherwise one request in thirty waits 40 ms twice, for acknowledgements.

    def log_request(self, *_: object) -> None:
        pass


def serve() -> tuple[Any, Counted]:
    """Starts serving in a thread. Returns the server (``server_port``, ``shutdown``) and the application."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    application = Counted()
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urlopen(Request(f"http://127.0.0.1:{server.server_port}/{BUCKET}", method="PUT")).read()
    return server, application


if __name__ == "__main__":
    running, _ = serve()
    print(running.server_port, flush=True)
    threading.Event().wait()
