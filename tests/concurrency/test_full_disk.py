"""A disk that is full: sends say so, purges and compactions make room."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakequeue import LakeQueue, QueueClientError
from lakequeue.storage import layout
from lakequeue.storage.reserve import PLENTY, RESERVED


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 32 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={2 * PLENTY}", "lakequeue", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("needs root, to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Writes until nothing fits."""
    path = disk / "others"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return path


@pytest.mark.spec("DUR-64")
@pytest.mark.parametrize("way", ["purge", "compact", "delete"])
def test_what_frees_space_goes_on_when_the_disk_is_full(disk: Path, way: str) -> None:
    lq = LakeQueue(str(disk / "root"))
    queue = lq.create_queue("orders")
    queue.send("a")
    lq.compact()
    reserve = disk / "root" / layout.RESERVE
    assert reserve.stat().st_size == RESERVED
    others = fill(disk)
    with pytest.raises(QueueClientError, match="(?i)no space left"):
        queue.send("b" * 100_000)
    assert reserve.exists()
    if way == "purge":
        queue.purge()
        assert queue.counts().visible == 0
    elif way == "delete":
        lq.delete_queue("orders")
        assert lq.list_queues() == []
    else:
        assert [summary.failures for summary in lq.compact()] == [[], []]
        assert queue.counts().visible == 1
    assert not reserve.exists()
    others.unlink()
    lq.create_queue("letters")
    lq.compact()
    assert reserve.exists()
