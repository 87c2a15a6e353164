"""The AWS SDK for Go, version 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.running_tools import output
from clients.walked import WALKED, each_part, parts
from serve.serving import ServerProcess

PROJECT = Path(__file__).with_name("go")

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def walked(served: ServerProcess) -> dict[str, dict[str, str]]:
    """What the walkthrough prints; Go keeps what it compiles in a cache of its own."""
    return parts(output(["go", "run", ".", served.url], PROJECT))


@each_part
def test_the_walkthrough(walked: dict[str, dict[str, str]], part: str) -> None:
    assert walked[part] == WALKED[part]
