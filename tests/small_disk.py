"""A small file system for a test, and ways to fill it."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakequeue.storage.reserve import PLENTY


@contextmanager
def mounted(place: Path) -> Iterator[Path]:
    """A file system of its own, of 32 MiB."""
    place.mkdir()
    size = f"size={8 * PLENTY},nr_inodes=1500"
    mount = ["mount", "-t", "tmpfs", "-o", size, "lakequeue", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("needs root, to mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def take_bytes(others: Path) -> None:
    """Writes until nothing fits."""
    with (others / "file").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def take_inodes(others: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        for number in range(2000):
            (others / str(number)).touch()
