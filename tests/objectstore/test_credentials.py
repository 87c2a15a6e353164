"""Credentials that expire while a handle lives: the environment's are renewed, static ones are told to be old."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import pytest
from benchmarks.object_store import Environ, environment

from lakequeue import LakeQueue, QueueClientError
from objectstore import servers

LIFE = 2.0
"""Seconds that credentials are valid. Both libraries renew them five minutes before their end, so these are
renewed for each request, or nearly so: they keep a renewal for a tenth of a second."""


@attrs.define
class Issuer:
    """A service of credentials as containers have it, and the server's judgement of them."""

    ends: dict[str, float] = attrs.field(factory=dict)
    """When each session token expires, by the system's clock."""
    asked_with: set[str] = attrs.field(factory=set)

    def issue(self) -> bytes:
        token, end = f"token{len(self.ends)}", time.time() + LIFE
        self.ends[token] = end
        expiration = datetime.fromtimestamp(end, timezone.utc).isoformat(timespec="milliseconds")
        keys = {"AccessKeyId": "k", "SecretAccessKey": "s", "Token": token}
        return json.dumps({**keys, "Expiration": expiration.replace("+00:00", "Z")}).encode()

    def judge(self, environ: Environ) -> tuple[str, str, str] | None:
        token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
        self.asked_with.add(token)
        if token not in self.ends:
            return "403 Forbidden", "InvalidAccessKeyId", "unknown"
        return ("400 Bad Request", "ExpiredToken", "too late") if self.ends[token] < time.time() else None


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    """Issues credentials to this process, for a bucket that takes no others."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = self.headers["Authorization"] == "from the file"
            answer = issuer.issue() if right else b"{}"
            self.send_response(200 if right else 401)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("from the file")
    with servers.served() as (url, store):
        store.refusal = issuer.judge
        given = environment(url) | {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{endpoint.server_port}/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
        }
        for name, value in given.items():
            if "_KEY" not in name:
                monkeypatch.setenv(name, value)
        yield issuer
    endpoint.shutdown()


@pytest.mark.objectstore
def test_credentials_of_the_environment_are_renewed_while_a_consumer_runs(issuer: Issuer) -> None:
    queue = LakeQueue("s3://lake/a", engine="point").create_queue("orders")
    first = max(issuer.ends.values())
    for number in range(3):
        time.sleep(LIFE * 0.75)
        queue.send(str(number))
        [message] = queue.receive()
        queue.delete(message.receipt_handle)
    assert time.time() > first + LIFE
    assert len(issuer.asked_with) >= 3  # in each round
    assert not queue.counts().visible


def test_the_error_for_expired_static_credentials_says_that_they_are_old(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = json.loads(issuer.issue())
    static = {"AWS_ACCESS_KEY_ID": keys["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"]}
    lq = LakeQueue("s3://lake/a", engine="point", storage_options=static | {"AWS_SESSION_TOKEN": keys["Token"]})
    queue = lq.create_queue("orders")
    issuer.ends[keys["Token"]] = 0
    began = time.monotonic()
    for call in (lambda: queue.send("a"), queue.receive, queue.counts, lq.list_queues):
        with pytest.raises(
            QueueClientError, match=r"credentials have expired \(ExpiredToken.*set new ones"
        ) as caught:
            call()
        assert not caught.value.outcome_unknown and keys["Token"] not in str(caught.value)
    assert time.monotonic() - began < 5
