"""Fixtures of the server's tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakequeue.testing import ManualClock
from serve.running import Running, serving, sqs


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
def clock() -> ManualClock:
    """The time of the server `timed`."""
    return ManualClock()


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Running]:
    """A server whose time stands still until a test advances it."""
    with serving(tmp_path_factory.mktemp("timed") / "root", clock) as running:
        yield running


_names = itertools.count()


@pytest.fixture
def create(client: Any) -> Callable[..., str]:
    """Makes a queue with a name of its own, FIFO if an attribute says so; its URL."""

    def create(**attributes: str) -> str:
        name = f"q{next(_names)}" + (".fifo" if attributes.get("FifoQueue") == "true" else "")
        url: str = client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    return create
