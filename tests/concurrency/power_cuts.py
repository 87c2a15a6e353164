"""A disk whose power can be cut: a file system in a loop device, shut down without flushing its journal."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SHUTDOWN = 0x8004587D
"""``EXT4_IOC_SHUTDOWN``."""
_NO_FLUSH = 2
"""``EXT4_GOING_FLAGS_NOLOGFLUSH``: what is not on the device yet is lost."""
MEBIBYTES = 256


class Disk:
    """A mounted file system."""

    def __init__(self, folder: Path) -> None:
        self._image, self.path = folder / "disk.img", folder / "disk"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(MEBIBYTES * 2**20)
        self._run("mkfs.ext4", "-q", str(self._image))
        self._mount()

    def cut_power(self) -> None:
        """Loses what was not synced; until ``restore`` every write fails."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Mounts it again, as after a restart; no process may have its files open."""
        self.unmount()
        self._mount()

    def unmount(self) -> None:
        self._run("umount", str(self.path))

    def _mount(self) -> None:
        self._run("mount", "-o", "loop", str(self._image), str(self.path))

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """A new disk; skips the test where this user cannot mount one."""
    if os.geteuid() or not shutil.which("mkfs.ext4"):
        pytest.skip("a power cut needs root and mkfs.ext4")
    try:
        made = Disk(folder)
    except OSError as error:
        pytest.skip(f"a power cut needs loop devices: {error}")
    try:
        yield made
    finally:
        made.unmount()
