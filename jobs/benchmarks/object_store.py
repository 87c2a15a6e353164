"""An S3 server for tests and benchmarks: moto behind a lock, with a delay and a count of requests.

``python object_store.py`` serves one bucket, ``lake``, in memory, and prints its port. moto does not make
conditional PUTs atomic, so it gets one request at a time; delays run concurrently.
"""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from urllib.request import Request, urlopen

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "lake"
CONTROL = "/__control__"
"""GET: number of requests by method and kind. POST: sets the delay in seconds and resets the count."""

Environ = dict[str, Any]
Start = Callable[..., Any]


def environment(url: str) -> dict[str, str]:
    """Environment variables that direct clients to the server."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_REGION": "us-east-1",
    }


class Counted:
    """WSGI application: counts and delays requests to moto."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.delay = 0.0

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] == CONTROL:
            return self._control(environ, start)
        time.sleep(self.delay)
        environ["wsgi.input"] = io.BytesIO(_body(environ))  # not to wait for it with the lock held
        with self._lock:
            self.requests[_kind(environ)] += 1
            return list(self._moto(environ, start))

    def _control(self, environ: Environ, start: Start) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            self.delay = json.loads(_body(environ)).get("delay", self.delay)
            self.requests.clear()
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(dict(self.requests)).encode()]


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

    def log_request(self, *_: object) -> None:
        pass


def serve() -> tuple[Any, Counted]:
    """Starts serving in a thread; the server (``server_port``, ``shutdown``) and the application."""
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
