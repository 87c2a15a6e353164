"""A disk that is full: sends say so, purges and compactions make room."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakequeue import LakeQueue, Queue, QueueClientError, SendEntry
from lakequeue.operations import compact
from lakequeue.operations.doctor import doctor
from lakequeue.operations.shortage import shortage
from lakequeue.storage import layout, reserve
from lakequeue.storage.reserve import PLENTY, RESERVED, RESERVED_FILES
from small_disk import mounted, take_bytes, take_inodes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as place:
        yield place


def reserved_bytes(root: Path) -> bool:
    path = root / layout.RESERVE
    return path.exists() and path.stat().st_size == RESERVED


def reserved_inodes(root: Path) -> bool:
    path = root / layout.RESERVE_FILES
    return path.exists() and len(list(path.iterdir())) == RESERVED_FILES


def goes_on(way: str, lq: LakeQueue, queue: Queue, messages: int) -> None:
    """What frees space works; a compaction leaves the messages that there are."""
    if way == "purge":
        queue.purge()
        assert queue.counts().visible == 0
    elif way == "delete":
        lq.delete_queue("orders")
        assert lq.list_queues() == []
    else:
        assert [summary.failures for summary in lq.compact()] == [[], []]
        assert queue.counts().visible == messages


@pytest.mark.spec("DUR-64")
@pytest.mark.parametrize("way", ["purge", "compact", "delete"])
@pytest.mark.parametrize(
    ("short", "take", "reserved"),
    [("bytes", take_bytes, reserved_bytes), ("inodes", take_inodes, reserved_inodes)],
    ids=["bytes", "inodes"],
)
def test_what_frees_space_goes_on_when_the_disk_is_full(
    disk: Path, way: str, short: str, take: Callable[[Path], None], reserved: Callable[[Path], bool]
) -> None:
    root, others = disk / "root", disk / "others"
    lq = LakeQueue(str(root))
    queue = lq.create_queue("orders")
    for number in range(5):
        queue.send(str(number))
    assert reserved(root)
    others.mkdir()
    take(others)
    for call in (lambda: queue.send("b" * 100_000), lambda: lq.create_queue("bills")):
        with pytest.raises(
            QueueClientError,
            match="(?i)no space left.*; `lakequeue doctor` says what fills the disk, and how to free space",
        ):
            call()
    assert reserved(root) and not [each for each in doctor(lq._runtime).warnings if "reserved" in each]
    short_of = shortage(lq._runtime)
    assert short_of is not None and "enlarge the disk" not in short_of.hint
    goes_on(way, lq, queue, 5)
    assert not reserved(root)
    take(others)
    short_of = shortage(lq._runtime)
    assert short_of is not None and short_of.hint.startswith("first enlarge the disk")
    assert [each for each in doctor(lq._runtime).warnings if f"no {short} are reserved" in each]
    shutil.rmtree(others)
    lq.create_queue("letters")
    lq.compact()
    assert reserved(root)


@pytest.mark.spec("DUR-65")
def test_an_emptied_queue_gives_its_space_back_at_once(disk: Path) -> None:
    lq = LakeQueue(str(disk / "root"))
    queue = lq.create_queue("orders")
    with pytest.raises(QueueClientError, match="(?i)no space left"):
        while True:
            queue.send_batch([SendEntry(os.urandom(100_000).hex()) for _ in range(5)]).raise_for_failures()
    queue.purge()
    assert [summary.failures for summary in lq.compact()] == [[], []]
    free = shutil.disk_usage(disk).free
    assert free < PLENTY, "readers may need what was purged"
    assert [summary.failures for summary in lq.compact(now=0)] == [[], []]
    assert shutil.disk_usage(disk).free > 6 * PLENTY
    assert queue.send("a") and [message.body for message in queue.receive()] == ["a"]


@pytest.mark.spec("DUR-64")
def test_a_compaction_of_a_full_disk_removes_files_before_it_writes_new_ones(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = disk / "root"
    lq = LakeQueue(str(root))
    queue = lq.create_queue("orders")
    for _ in range(20):
        queue.send_batch([SendEntry(os.urandom(100_000).hex())])
    queue.purge()
    lq.compact()
    take_bytes(disk)
    free, compacted = list[int](), compact._compact_shard

    def compact_shard(*given: Any) -> None:
        free.append(shutil.disk_usage(disk).free)
        compacted(*given)

    monkeypatch.setattr(compact, "_compact_shard", compact_shard)
    assert [summary.failures for summary in lq.compact(now=0)] == [[], []]
    assert free[0] > RESERVED + 20 * 200_000


def test_a_reserve_that_does_not_fit_or_is_too_short_does_not_stay(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = disk / "root"
    LakeQueue(str(root)).create_queue("orders")
    (root / layout.RESERVE).unlink()
    take_bytes(disk)
    monkeypatch.setattr(reserve, "PLENTY", -1)
    reserve.take(str(root))
    assert not (root / layout.RESERVE).exists()
    (disk / "file").unlink()
    (root / layout.RESERVE).write_bytes(bytes(9))
    assert [each for each in reserve.missing(str(root)) if "no bytes" in each]
    reserve.take(str(root))
    assert reserved_bytes(root)


def test_a_reserve_is_taken_again_after_a_call_that_fails(disk: Path) -> None:
    root = disk / "root"
    LakeQueue(str(root)).create_queue("orders")
    take_bytes(disk)
    with pytest.raises(ValueError, match="other"), reserve.reserve(str(root)):
        (disk / "file").unlink()
        raise ValueError("other")
    assert reserved_bytes(root)
