"""Symbolic links below a root lead nowhere, because any writer of the root could choose their targets."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

from conformance.damage import file_contents
from insides import forget
from lakequeue import LakeQueue, Queue
from lakequeue.errors import LakeQueueError
from lakequeue.storage import layout, no_links
from lakequeue.storage.delta_log import signed
from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.folder import LocalFolder
from lakequeue.testing import ManualClock


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    (folder / "0/messages/_delta_log").mkdir(parents=True)
    for name in ("letter", "0/messages/a.parquet", "0/messages/_delta_log/00000000000000000000.json"):
        (folder / name).write_text("mine")
    return folder


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Queue:
    queue = LakeQueue(str(tmp_path / "root"), clock=clock, engine="point").create_queue("orders", rewind_range=60)
    queue.send_arrow(pa.table({"body": ["a", "b", "c"]}))
    queue.delete(queue.receive(1)[0].receipt_handle)
    return queue


def each_verb(root: str, clock: ManualClock, target: Path) -> None:
    """Verbs that people run on a root. Each reports damage in one line."""
    lake = LakeQueue(root, clock=clock, engine="point")
    for verb in (
        lake.check,
        lambda: lake.repair(apply=True),
        lambda: lake.queue("orders").send("x"),
        lambda: lake.queue("orders").receive(10),
        lambda: lake.queue("orders").peek(),
        lambda: [view.to_table() for view in lake.arrow_views().values()],
        lambda: lake.queue("orders").purge(),
        lambda: lake.copy(LakeQueue(str(target), engine="point")),
        lake.compact,
        lambda: lake.delete_queue("orders"),
        lake.compact,
    ):
        try:
            verb()
        except LakeQueueError as error:
            assert "\n" not in str(error)
        clock.advance(3_600 * 24 * 30)


@pytest.mark.spec("DUR-72")
@pytest.mark.parametrize(
    "place", ["key", "shard", "messages", "receipts", "messages/_delta_log", "receipts/_delta_log"]
)
def test_a_directory_that_leads_elsewhere_is_left_alone(
    tmp_path: Path, queue: Queue, victim: Path, clock: ManualClock, place: str
) -> None:
    root, before = str(tmp_path / "root"), file_contents(victim)
    tables = Path(layout.tables_path(root, queue.key))
    path = {"key": tables, "shard": tables / "0"}.get(place, tables / "0" / place)
    path.rename(tmp_path / "away")
    path.symlink_to({"key": victim, "shard": victim / "0"}.get(place, victim / "0/messages"))
    each_verb(root, clock, tmp_path / "copy")
    assert file_contents(victim) == before


@pytest.mark.spec("DUR-72")
@pytest.mark.parametrize("kind", ["data", "entry", "lock", "pins"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_file_that_leads_elsewhere_is_left_alone(
    tmp_path: Path, queue: Queue, victim: Path, clock: ManualClock, kind: str, dangling: bool
) -> None:
    root, before = str(tmp_path / "root"), file_contents(victim)
    messages = Path(layout.messages_path(root, queue.key, 0))
    paths = {
        "data": next(messages.rglob("*.parquet")),
        "entry": messages / "_delta_log/00000000000000000001.json",
        "lock": messages / "_commit.lock",
        "pins": messages / "_pinned",
    }
    paths[kind].unlink(missing_ok=True)
    paths[kind].symlink_to(victim / ("none" if dangling else "letter"))
    each_verb(root, clock, tmp_path / "copy")
    assert file_contents(victim) == before


@pytest.mark.spec("DUR-70", "DUR-72")
@pytest.mark.parametrize("way", ["absolute path", "path upwards", "encoded path", "link", "link above"])
def test_no_receive_reads_a_file_of_another_queue(tmp_path: Path, clock: ManualClock, way: str) -> None:
    """Whoever wrote the root could read it through a program that may read more."""
    lake = LakeQueue(str(tmp_path / "root"), clock=clock, engine="point")
    queue, other = lake.create_queue("orders"), lake.create_queue("secrets")
    queue.send("mine")
    other.send("hers")
    [[messages, data], [theirs, secret]] = (
        [path, next(path.rglob("*.parquet"))]
        for path in (Path(layout.messages_path(lake.root, each.key, 0)) for each in (queue, other))
    )
    upwards = os.path.relpath(secret, messages)
    if named := {"absolute path": str(secret), "path upwards": upwards, "encoded path": quote(upwards, "")}.get(
        way
    ):
        entry = messages / "_delta_log/00000000000000000001.json"
        entry.write_bytes(
            signed(entry.read_bytes().replace(str(data.relative_to(messages)).encode(), named.encode()))
        )
    else:
        linked, target = (data, secret) if way == "link" else (messages, theirs)
        linked.rename(tmp_path / "away")
        linked.symlink_to(target)
    forget()
    with pytest.raises(LakeQueueError, match="is damaged|is missing"):
        LakeQueue(lake.root, clock=clock, engine="point").queue("orders").receive(10)


@pytest.mark.spec("DUR-72")
def test_an_entry_that_is_a_pipe_hangs_nobody(tmp_path: Path, queue: Queue, clock: ManualClock) -> None:
    entry = Path(
        layout.messages_path(str(tmp_path / "root"), queue.key, 0), "_delta_log/00000000000000000001.json"
    )
    entry.unlink()
    os.mkfifo(entry)
    each_verb(str(tmp_path / "root"), clock, tmp_path / "copy")


@pytest.mark.spec("DUR-72")
def test_a_removal_meets_no_link_that_was_put_there_since(tmp_path: Path, victim: Path) -> None:
    before = file_contents(victim)
    (tmp_path / "q/key").mkdir(parents=True)
    (tmp_path / "q/key/inside").symlink_to(victim)
    (tmp_path / "q/other").symlink_to(victim)
    no_links.rmtree(str(tmp_path), "q/other")
    no_links.rmtree(str(tmp_path), "q/other/0")
    for name in ("q/other/letter", "q/key/inside/letter"):
        with pytest.raises((NotADirectoryError, FileNotFoundError, OSError)):
            no_links.unlink(str(tmp_path), name)
    no_links.rmtree(str(tmp_path), "q/key")
    assert file_contents(victim) == before and not (tmp_path / "q/key").exists()


@pytest.mark.spec("DUR-72")
def test_a_link_above_the_root_is_its_owners_affair(tmp_path: Path) -> None:
    (tmp_path / "q/places/now").mkdir(parents=True)
    (tmp_path / "q/current").symlink_to(tmp_path / "q/places/now")
    queue = LakeQueue(str(tmp_path / "q/current/root"), engine="point").create_queue("orders")
    queue.send("a")
    assert [message.body for message in queue.receive()] == ["a"]
    root = str(tmp_path / "q/current")
    real = str(tmp_path / "q/places/now")
    for below in ("queues", "q/key/0/messages"):
        Path(root, below).mkdir(parents=True, exist_ok=True)
        folder = no_links.open_table(f"{root}/{below}")
        assert os.path.samestat(os.fstat(folder), os.stat(f"{real}/{below}"))
        os.close(folder)


@pytest.mark.spec("DUR-72")
@pytest.mark.parametrize("swapped", ["q", "q/key", "q/key/0/messages", "q/key/0/messages/_delta_log"])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_write_meets_no_link_that_was_put_there_since(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, swapped: str, pinned: bool
) -> None:
    """The looks before the write have found plain directories."""
    root, table = tmp_path / "swapped", "q/key/0/messages"
    (root / table / "_delta_log").mkdir(parents=True)
    (root / table / "_delta_log/new").write_text("a")
    for below in ("key/0/messages/_delta_log", "0/messages/_delta_log", "_delta_log"):
        (victim / below).mkdir(parents=True, exist_ok=True)
    before = file_contents(victim)
    folder = LocalFolder(str(root / table), table)
    with ExitStack() as opened:
        if pinned and swapped.endswith("_delta_log"):
            folder = opened.enter_context(folder.pinned())
        monkeypatch.setattr(no_links, "crooked", lambda *_: None)
        (root / swapped).rename(tmp_path / "away")
        (root / swapped).symlink_to(victim, target_is_directory=True)
        for name in ("_delta_log/new", "_delta_log/newer", "_delta_log/letter", "_delta_log/made/new"):
            for write in (folder.create, folder.replace, folder.offer, folder.write):
                with pytest.raises(OSError):
                    write(name, b"b")
            with pytest.raises(OSError), folder.writer(name):
                pass
            with pytest.raises(OSError):
                folder.move(name, f"{name}.moved")
        if not swapped.endswith("_delta_log"):
            with pytest.raises(FileNotFoundError), folder.pinned():
                pass
    assert file_contents(victim) == before


@pytest.mark.spec("DUR-72")
@pytest.mark.parametrize("swapped", ["q", "q/key", "q/key/0/messages"])
def test_a_lock_meets_no_link_that_was_put_there_since(tmp_path: Path, victim: Path, swapped: str) -> None:
    root, table = tmp_path / "swapped", "q/key/0/messages"
    (root / table).mkdir(parents=True)
    for below in ("key/0/messages", "0/messages", ""):
        (victim / below).mkdir(parents=True, exist_ok=True)
    before = file_contents(victim)
    (root / swapped).rename(tmp_path / "away")
    (root / swapped).symlink_to(victim, target_is_directory=True)
    for name in ("lock", "letter"):
        path = str(root / table / name)
        for act in (lambda: FileLock(path).take(exclusive=True), lambda: no_links.stamp(path, create=True)):  # noqa: B023
            with pytest.raises(OSError):
                act()
    assert file_contents(victim) == before


@pytest.mark.spec("DUR-72")
def test_a_file_is_written_through_no_link(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_links, "crooked", lambda *_: None)
    (tmp_path / "table").mkdir()
    (tmp_path / "table/file").symlink_to(victim / "letter")
    before = file_contents(victim)
    with pytest.raises(OSError):
        LocalFolder(str(tmp_path / "table")).write("file", b"b")
    LocalFolder(str(tmp_path / "table")).replace("file", b"b")  # takes the place of the link
    assert file_contents(victim) == before and (tmp_path / "table/file").read_bytes() == b"b"
