"""Arrow's threads hold no object of Python: a process that ended while one did would be aborted."""

from __future__ import annotations

import builtins
import fcntl
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from lakequeue.errors import DamagedTable
from lakequeue.storage import folder
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import LocalFolder, RemoteFolder

ROWS = pa.table({"number": range(10_000), "body": [f"body {number}" for number in range(10_000)]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A handle on the directory alone: there is no log."""
    table = object.__new__(Table)
    table.folder, table.written = LocalFolder(str(tmp_path)), {}
    return table


def both_reads(table: Table, size: int) -> None:
    file = LiveFile("a.parquet", "a.parquet", size, len(ROWS), {}, {}, {}, {})
    assert table.read([file]) == [ROWS]
    assert table.read_rows(file, 4_500, 5_499, ROWS.column_names) == ROWS.slice(4_500, 1_000)


def test_a_local_file_is_opened_by_arrow(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet", row_group_size=1_000)
    monkeypatch.setattr(builtins, "open", lambda *_: pytest.fail("opened by Python"))
    both_reads(table, (tmp_path / "a.parquet").stat().st_size)


def test_a_remote_file_is_read_by_the_calling_thread(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    content, store = pa.BufferOutputStream(), MemoryStore()
    pq.write_table(ROWS, content, row_group_size=1_000)
    data = content.getvalue().to_pybytes()
    obstore.put(store, "a.parquet", data)
    table.folder = RemoteFolder("memory:///lake", lambda kind: store)
    threads: set[int] = set()
    get_range = obstore.get_range

    def recorded(*arguments: Any, **named: Any) -> Any:
        threads.add(threading.get_ident())
        return get_range(*arguments, **named)

    monkeypatch.setattr(obstore, "get_range", recorded)
    monkeypatch.setattr(folder, "WHOLE", 0)
    both_reads(table, len(data))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("placed", [False, True], ids=["before it was placed", "after it was placed"])
@pytest.mark.parametrize("verb", ["create", "replace"])
def test_the_draft_of_a_stopped_process_may_be_removed_by_a_compactor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, placed: bool
) -> None:
    """The caller gets no error: the file exists once, and no draft is left."""
    call = {"create": "link", "replace": "replace"}[verb]
    place, drafts = getattr(os, call), []

    def while_stopped(draft: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        drafts.append(draft)
        if len(drafts) == 1 and not placed:
            os.unlink(draft, dir_fd=src_dir_fd)
        place(draft, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if len(drafts) == 1 and verb == "create":
            os.unlink(draft, dir_fd=src_dir_fd)

    monkeypatch.setattr(os, call, while_stopped)
    getattr(LocalFolder(str(tmp_path)), verb)("a.json", b"{}")
    assert len(drafts) == (1 if placed else 2)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.json", b"{}")]


def test_a_file_that_was_not_written_in_full_leaves_nothing_on_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), LocalFolder(str(tmp_path)).writer("a.parquet") as file:
        file.write(b"a part")
        raise OSError("full")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["create", "replace"])
def test_a_folder_that_is_gone_is_an_error(tmp_path: Path, verb: str) -> None:
    options = {"new_folder": False} if verb == "create" else {}
    with pytest.raises(FileNotFoundError):
        getattr(LocalFolder(str(tmp_path)), verb)("gone/a.json", b"{}", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.spec("DUR-1")
def test_on_macos_a_sync_also_empties_the_cache_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There `fsync` leaves the data in that cache, and the command for it has a number of its own."""
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    spec = importlib.util.spec_from_file_location("folder_on_macos", folder.__file__)
    assert spec is not None and spec.loader is not None
    on_macos = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(on_macos)
    synced: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("fsync"))
    monkeypatch.setattr(
        fcntl,
        "fcntl",
        lambda descriptor, command: synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), command)),
    )
    on_macos.LocalFolder(str(tmp_path)).write("a", b"data")
    assert synced == [(str(tmp_path / "a"), 51), (str(tmp_path), 51)]


@pytest.mark.spec("DUR-70")
@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ".."])
def test_a_name_that_nobody_parsed_leads_no_further_than_its_directory(tmp_path: Path, name: str) -> None:
    store = MemoryStore()
    for below in (
        LocalFolder(f"{tmp_path}/table"),
        RemoteFolder("memory:///lake/table", lambda kind: store, "table"),
    ):
        for reach in (
            lambda: below / name,  # noqa: B023
            lambda: below.read(name),  # noqa: B023
            lambda: below.open(name, 1),  # noqa: B023
            lambda: below.create(name, b""),  # noqa: B023
            lambda: below.write(name, b""),  # noqa: B023
            lambda: below.remove([name]),  # noqa: B023
            lambda: below.move("a", name),  # noqa: B023
            lambda: next(below.files(name)),  # noqa: B023
        ):
            with pytest.raises(DamagedTable, match="leads out of its directory"):
                reach()


def test_a_pipe_in_place_of_a_file_that_others_wrote_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.parquet")
    LocalFolder(str(tmp_path)).sync(["a.parquet"])
