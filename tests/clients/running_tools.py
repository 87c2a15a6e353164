"""Running other people's programs; one that is missing, or that fails, fails its test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PATIENCE = 280
"""Seconds; the first run downloads what the program needs."""


def output(command: Sequence[str | Path], where: Path, patience: float = PATIENCE, **environment: str) -> str:
    """What a program writes to its standard output.

    Args:
        patience: seconds.
        environment: all of it, if any is given.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=where,
        env=environment or None,
        capture_output=True,
        text=True,
        timeout=patience,
    )
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def pairs(told: str) -> list[tuple[str, str]]:
    """The lines of name and value, `name=value`, among what a program prints."""
    told = re.sub(r"\x1b\[\d*m", "", told)  # Maven resets colours that it does not use
    split = [line.partition("=") for line in told.splitlines()]
    return [(name, value) for name, _, value in split if value]


def environment_with(where: Path, *packages: str) -> tuple[Path, dict[str, str]]:
    """The Python of a new environment below `where` with some packages, and the variables to run it with."""
    output([sys.executable, "-m", "venv", "venv"], where)
    python = where / "venv" / "bin" / "python"
    # the paths of this environment are not for that one
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output([python, "-m", "pip", "install", "-q", *packages], where, **variables)
    return python, variables
