"""The AWS SDK for Rust."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clients.running_tools import output
from clients.walked import WALKED, each_part, parts
from serve.serving import ServerProcess

PROJECT = Path(__file__).with_name("rust")

PATIENCE = 840
"""Seconds; a busy machine compiles for minutes, but only once."""

pytestmark = [pytest.mark.clients, pytest.mark.timeout(PATIENCE + 60)]


@pytest.fixture(scope="module")
def walked(served: ServerProcess, request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    """What the walkthrough prints; it is compiled in a directory that outlives the run, which saves a minute."""
    project = request.config.cache.mkdir("rust-walkthrough")
    shutil.copytree(PROJECT, project, dirs_exist_ok=True)
    output(["cargo", "build", "-q"], project, PATIENCE)
    return parts(output(["cargo", "run", "-q", "--", served.url], project))


@each_part
def test_the_walkthrough(walked: dict[str, dict[str, str]], part: str) -> None:
    assert walked[part] == WALKED[part]
