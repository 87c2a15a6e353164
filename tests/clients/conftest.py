"""The server of the tests with clients that need more than Python's test extra."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve.running import ServerProcess, server_process


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`lakequeue serve` in a process of its own, for all tests of a module."""
    with server_process(tmp_path_factory.mktemp("served") / "root") as server:
        yield server
    assert "Traceback" not in server.errors.read_text()
