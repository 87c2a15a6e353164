"""An S3 server for tests and benchmarks: moto's, behind a lock, with delays, faults and a count of requests.

``python object_store.py --port 5555 --delay 0.02`` serves one bucket, ``lake``, in memory. moto alone does not
create objects atomically when a PUT is conditional; here it has one request at a time, but for the delays.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "lake"
CONTROL = "/__control__"
"""GET: the requests so far, by method and kind. POST: sets delay and faults, and begins the count anew."""

Environ = dict[str, Any]
Start = Callable[..., Any]


class Counted:
    """The application: waits, fails or answers as moto does."""

    def __init__(self, delay: float = 0.0) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.delay = delay
        self.faults: dict[str, float] = {}
        """Chance of each: ``refused`` (503), ``cut`` (no answer, nothing done), ``lost`` (no answer, done),
        ``slow`` (answered after ten seconds)."""
        self._chance = random.Random(0)

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] == CONTROL:
            return self._control(environ, start)
        time.sleep(self.delay)
        fault = self._fault()
        if fault == "refused":
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"]
        if fault == "cut":
            raise ConnectionError("cut")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = _Once(body)
        with self._lock:
            self.requests[_kind(environ)] += 1
            answer = list(self._moto(environ, start))
        if fault == "slow":
            time.sleep(10)
        if fault == "lost":
            raise ConnectionError("lost")
        return answer

    def _fault(self) -> str | None:
        draw = self._chance.random()
        for name, chance in self.faults.items():
            if draw < chance:
                return name
            draw -= chance
        return None

    def _control(self, environ: Environ, start: Start) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            given = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self.delay = given.get("delay", self.delay)
            self.faults = given.get("faults", self.faults)
            self.requests.clear()
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(dict(self.requests)).encode()]


class _Once:
    """A body that was read already."""

    def __init__(self, body: bytes) -> None:
        import io

        self._body = io.BytesIO(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)


def _kind(environ: Environ) -> str:
    method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
    if method == "GET" and ("list-type" in query or environ["PATH_INFO"].strip("/") == BUCKET):
        return "LIST"
    return method


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: object) -> None:
        pass


def serve(port: int = 0, delay: float = 0.0) -> tuple[Any, Counted]:
    """Starts serving in a thread; the server (``server_port``, ``shutdown``) and the application."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    application = Counted(delay)
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    import urllib.request

    put = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(put).read()
    return server, application


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    options = parser.parse_args()
    running, _ = serve(options.port, options.delay)
    print(running.server_port, flush=True)
    threading.Event().wait()
