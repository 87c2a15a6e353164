"""Fixtures of tests that see lakequeue from outside."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Where a root may be made."""
    return str(tmp_path / "root")
