"""The console's harness: an application in this thread, as a browser meets it, and who may do what there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

import attrs
import httpx
from deltalake import DeltaTable

from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.serve.app import Application
from lakequeue.serve.auth import Caller, NoAuthentication
from lakequeue.testing import ManualClock

ASKED = {"X-Lakequeue-Console": "1"}


@attrs.define
class Browser:
    """Requests of one after the other to an application in this thread."""

    client: httpx.AsyncClient
    loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.new_event_loop)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.loop.run_until_complete(self.client.request(method, path, **more))

    get = partialmethod(request, "GET")
    post = partialmethod(request, "POST")
    options = partialmethod(request, "OPTIONS")


@attrs.define
class Console:
    """The console of a root, as a browser meets it."""

    lake: LakeQueue
    http: Browser

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        response = self.http.get(f"/console/api/{path}", params=parameters)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def post(self, path: str, **members: Any) -> dict[str, Any]:
        response = self.sent(path, members)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def sent(self, path: str, members: Any) -> httpx.Response:
        return self.http.post(f"/console/api/{path}", json=members, headers=ASKED)

    def bodies(self, queue: str, part: str = "messages", **filters: Any) -> list[str]:
        return [message["body"] for message in self.get(f"queues/{queue}/{part}", **filters)["messages"]]


@contextmanager
def visited(lake: LakeQueue, auth: httpx.Auth | None = None, **more: Any) -> Iterator[Browser]:
    with visiting(Application(lake, **more), auth) as browser:
        yield browser


@contextmanager
def visiting(application: Application, auth: httpx.Auth | None = None) -> Iterator[Browser]:
    transport = httpx.ASGITransport(application.asgi)
    client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9324", auth=auth)
    browser = Browser(client)
    yield browser
    browser.loop.run_until_complete(browser.loop.shutdown_default_executor())
    browser.loop.close()


def versions(lake: LakeQueue) -> dict[str, int]:
    logs = Path(lake.root).rglob("_delta_log")
    return {str(log): DeltaTable(log.parent).version() for log in logs}


def with_letters(lake: LakeQueue, *names: str) -> Queue:
    """A dead-letter queue with two messages of each queue."""
    letters = lake.create_queue("letters")
    for name in names:
        policy = {"deadLetterTargetArn": "letters", "maxReceiveCount": 1}
        source = lake.create_queue(name, visibility_timeout=0, redrive_policy=policy)
        source.send_batch([SendEntry(f"{name} {number}") for number in range(2)])
        source.receive(10)
        source.receive(10)
    return letters


def rewindable(lake: LakeQueue, clock: ManualClock, count: int) -> Queue:
    """A queue of which all messages were deleted, sent a second apart."""
    queue = lake.create_queue("orders", rewind_range=3600)
    for number in range(count):
        queue.send(f"order {number}")
        clock.advance(1)
    queue.delete_batch([message.receipt_handle for message in queue.receive(count)])
    return queue


@attrs.frozen
class Limited:
    """Somebody with a list of permitted actions."""

    name: str
    allowed: frozenset[str]

    @property
    def key(self) -> str:
        return self.name

    def may(self, action: str, queue: str | None) -> bool:
        return action in self.allowed and not (queue or "").startswith("secret")

    def may_on_any_queue(self, action: str) -> bool:
        return action in self.allowed


@attrs.frozen
class Keys(NoAuthentication):
    """Knows one key."""

    allowed: frozenset[str] = frozenset()

    def check_password(self, key_id: str, secret: str) -> Caller | None:
        known = (key_id, secret) == ("AKIA1", "pass:wörd")
        return Limited("reader", self.allowed) if known else None


def keyed(lake: LakeQueue, *allowed: str) -> AbstractContextManager[Browser]:
    return visited(lake, httpx.BasicAuth("AKIA1", "pass:wörd"), access=Keys(frozenset(allowed)))
