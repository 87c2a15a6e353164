"""Fixtures of tests that see lakequeue from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import lakequeue
from acceptance.commands import PROGRAM, Run, Start
from lakequeue import LakeQueue, Queue
from lakequeue.cli import app


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Where a root may be made."""
    return str(tmp_path / "root")


@pytest.fixture
def lake(root: str) -> LakeQueue:
    return LakeQueue(root)


@pytest.fixture
def orders(lake: LakeQueue) -> Queue:
    return lake.create_queue("orders", rewind_range=3_600)


@pytest.fixture
def run(root: str) -> Run:
    """Runs a command on the root, in this process."""

    def command(*args: object, input: str | bytes | None = None, **env: str | None) -> Result:
        return CliRunner(env={"LAKEQUEUE_ROOT": root} | env).invoke(app, [*map(str, args)], input=input)

    return command


@pytest.fixture
def start(root: str, request: pytest.FixtureRequest) -> Start:
    """Starts a command on the root as a process of its own, which ends with the test at the latest."""

    def process(
        *args: str,
        program: str = PROGRAM,
        env: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
        **streams: Any,
    ) -> Any:
        package = str(Path(lakequeue.__file__).parents[1])
        started = subprocess.Popen(
            [*before, sys.executable, "-c", program, *args],
            env=os.environ | {"PYTHONPATH": package, "LAKEQUEUE_ROOT": root, "TERM": "xterm"} | (env or {}),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | streams,
        )
        request.addfinalizer(started.communicate)
        request.addfinalizer(started.kill)
        return started

    return process
