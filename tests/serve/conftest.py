"""Fixtures of the server's tests."""

from __future__ import annotations

import functools
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from httpx._transports import default

from lakequeue import LakeQueue
from lakequeue.entry_verbs import prepare
from lakequeue.testing import ManualClock
from serve.consoles import Console, visited
from serve.promql import Known, served
from serve.serving import Running, serving, sqs


@pytest.fixture(autouse=True, scope="session")
def _authorities_are_read_once() -> Iterator[None]:
    """Clients that leave it to httpx whom they trust share a context; each read the same file, for 16 ms."""
    made = functools.cache(default.create_ssl_context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default, "create_ssl_context", made)
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of all tests of a module, in a thread: `.url`, `.root`, and `.lake` on the same root."""
    with serving(tmp_path_factory.mktemp("served") / "root") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    """A boto3 client of the server."""
    return sqs(server.url)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """What `/metrics` serves."""
    return served(tmp_path_factory.mktemp("watched") / "queues")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose time stands still until a test advances the clock of its lake."""
    with serving(tmp_path_factory.mktemp("timed") / "root", clock=ManualClock()) as running:
        yield running


@pytest.fixture
def lake(lq: LakeQueue) -> LakeQueue:
    """A root of one test, on a clock that stands still."""
    prepare(lq)
    return lq


@pytest.fixture
def console(lake: LakeQueue) -> Iterator[Console]:
    with visited(lake) as http:
        yield Console(lake, http)


@pytest.fixture
def accesses(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The lines of the access log, of all servers in this process."""
    caplog.set_level(logging.INFO, "lakequeue.access")
    return lambda: [json.loads(each.getMessage()) for each in caplog.records if each.name == "lakequeue.access"]


_names = itertools.count()


@pytest.fixture
def create(client: Any) -> Callable[..., str]:
    """Makes a queue with a name of its own, FIFO if an attribute says so; its URL."""

    def create(**attributes: str) -> str:
        name = f"q{next(_names)}" + (".fifo" if attributes.get("FifoQueue") == "true" else "")
        url: str = client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    return create
