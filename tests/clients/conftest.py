"""The server of the tests with clients that need more than Python's test extra."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from clients.browsing import ARGUMENTS, CHROMIUM, PATIENCE
from serve.serving import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`lakequeue serve` in a process of its own, for all tests of a module."""
    with ServerProcess(tmp_path_factory.mktemp("served") / "root") as server:
        yield server
    assert "Traceback" not in server.errors()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE * 1_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
