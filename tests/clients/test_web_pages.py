"""Pages of strangers in a browser on the same machine: whatever they make it ask, no queue changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lakequeue import LakeQueue
from lakequeue.serve.app import Application
from serve.serving import serving, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.clients

ACTIONS = [
    *("Action=DeleteQueue", "Action=PurgeQueue", "Action=ReceiveMessage", "Action=TagQueue&Tag.Key=a&Tag.Value=b"),
    "Action=SendMessage&MessageBody=forged",
]
PART = """
<link rel=prefetch href="{at}/link/orders?{action}">
<img src="{at}/img/orders?{action}">
<iframe src="{at}/iframe/orders?{action}"></iframe>
<script src="{at}/script/orders?{action}"></script>
<form method=post action="{at}/form/orders?{action}" target=posted><input name=Version value=2012-11-05></form>
<script>
document.forms[document.forms.length - 1].submit();
fetch("{at}/get/orders?{action}", {{mode: "no-cors"}});
fetch("{at}/post/orders?{action}", {{mode: "no-cors", method: "POST"}});
navigator.sendBeacon("{at}/beacon/orders?{action}");
</script>
"""
WAYS = ("prefetch", "link", "img", "iframe", "script", "get", "post", "beacon")


@contextmanager
def page(content: str) -> Iterator[str]:
    """A page of another site; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=partial(server.serve_forever, 0.05), daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


class Recorder:
    """What reaches the server: how the browser describes each request."""

    def __init__(self, app: ASGIApp) -> None:
        self.seen: list[tuple[str, Headers]] = []
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.seen.append((f"{scope['path']}?{scope['query_string'].decode()}", Headers(scope=scope)))
        await self._app(scope, receive, send)

    def arrived(self, *ways: str) -> bool:
        return {f"/{way}/orders?{action}" for action in ACTIONS for way in ways} <= {url for url, _ in self.seen}


@pytest.mark.parametrize("agent", [None, "an agent of its own"])
def test_pages_of_strangers_change_nothing(
    browser: Browser,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    agent: str | None,
):
    lake = LakeQueue(str(tmp_path / "root"))
    queue = lake.create_queue("orders", profile="sqs")
    queue.send("kept")
    recorders: list[Recorder] = []

    def recorded(lake: LakeQueue) -> Application:
        application = Application(lake)
        recorders.append(Recorder(application.asgi))
        application.asgi = recorders[0]  # type: ignore[assignment]
        return application

    monkeypatch.setattr("serve.serving.Application", recorded)
    with serving(lake) as server:
        ahead = [f"{server.url}/prefetch/orders?{action}" for action in ACTIONS]
        rules = {"prefetch": [{"urls": ahead, "eagerness": "immediate"}]}
        parts = "".join(PART.format(at=server.url, action=action) for action in ACTIONS)
        head = f"<!doctype html><script type=speculationrules>{json.dumps(rules)}</script>"
        with page(f"{head}<iframe name=posted></iframe>{parts}") as address:
            context = browser.new_context(user_agent=agent)
            try:
                tab = context.new_page()
                tab.goto(address)
                wait_until(lambda: recorders[0].arrived(*WAYS), "all requests of the page")
                for action in ACTIONS:
                    tab.goto(f"{server.url}/address/orders?{action}")  # as from a link in a mail
            finally:
                context.close()
        assert recorders[0].arrived("address")
        described = {url.split("/")[1]: headers for url, headers in recorders[0].seen}
        assert described["address"]["sec-fetch-site"] == "none" and "sec-purpose" in described["prefetch"]
        assert (queue.counts().visible, queue.counts().in_flight, queue.tags()) == (1, 0, {})
