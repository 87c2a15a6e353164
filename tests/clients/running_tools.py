"""Running other people's programs; one that is missing, or that fails, fails its test."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

PATIENCE = 280
"""Seconds; the first run downloads what the program needs."""


def output(command: Sequence[str | Path], where: Path, **environment: str) -> str:
    """What a program writes to its standard output.

    Args:
        environment: all of it, if any is given.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=where,
        env=environment or None,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout}{done.stderr}"
    return done.stdout
