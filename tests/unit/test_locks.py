"""The commit lock of local tables, between threads and between processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakequeue.errors import QueueClientError
from lakequeue.storage.engines import locks
from lakequeue.storage.engines.file_lock import FileLock
from lakequeue.storage.engines.locks import committing

OTHER = """
import fcntl, sys
file = open(sys.argv[1] + "/_commit.lock", "a+")
kind = fcntl.LOCK_EX if sys.argv[2] == "exclusive" else fcntl.LOCK_SH
try:
    fcntl.flock(file, kind | fcntl.LOCK_NB)
    print("True", flush=True)
    if sys.argv[3:]:
        sys.stdin.read()
except BlockingIOError:
    print("False", flush=True)
"""
"""Takes the lock in a process without lakequeue."""

FORKING = """
import os, sys
from lakequeue.storage.engines.locks import committing
with committing(sys.argv[1], exclusive=True):
    if not os.fork():
        os.write(1, b"forked\\n")
    sys.stdin.read()
"""
"""Forks while it holds the lock; its child lives until the input ends."""


def another_process_gets(path: str | Path, kind: str) -> bool:
    done = subprocess.run([sys.executable, "-c", OTHER, path, kind], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


def another_thread_gets(path: str | Path, kind: str) -> bool:
    got = []

    def try_to() -> None:
        try:
            with committing(str(path), exclusive=kind == "exclusive", patience=0):
                got.append(True)
        except QueueClientError:
            got.append(False)

    thread = threading.Thread(target=try_to)
    thread.start()
    thread.join()
    return got[0]


@contextmanager
def process(script: str, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has printed its first line."""
    running = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert running.stdout is not None and running.stdout.readline() != b"False\n"
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.spec("DLT-1")
def test_a_thread_that_shares_the_lock_waits_for_the_thread_that_has_it_alone(tmp_path: Path) -> None:
    path, got = str(tmp_path), threading.Event()

    def share() -> None:
        with committing(path, exclusive=False):
            got.set()

    thread = threading.Thread(target=share, daemon=True)
    with committing(path, exclusive=True):
        thread.start()
        assert not got.wait(0.2)
    assert got.wait(60)
    thread.join()
    assert another_thread_gets(path, "exclusive")


@pytest.mark.spec("DLT-1")
def test_a_thread_that_leaves_does_not_give_up_what_another_thread_still_shares(tmp_path: Path) -> None:
    path, leave = str(tmp_path), threading.Event()
    inside = threading.Event()

    def share() -> None:
        with committing(path, exclusive=False):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=share, daemon=True)
    thread.start()
    assert inside.wait(60)
    with committing(path, exclusive=False):
        assert another_thread_gets(path, "shared")
    assert not another_thread_gets(path, "exclusive")
    leave.set()
    thread.join()
    assert another_thread_gets(path, "exclusive")


@pytest.mark.spec("DLT-1")
def test_a_thread_that_has_the_lock_alone_takes_it_again_without_giving_it_up(tmp_path: Path) -> None:
    path = str(tmp_path)
    with committing(path, exclusive=True):
        with committing(path, exclusive=False):
            pass
        with committing(path, exclusive=True):
            pass
        assert not another_process_gets(path, "shared")
    assert another_process_gets(path, "exclusive")


def test_a_thread_that_shares_the_lock_cannot_have_it_alone(tmp_path: Path) -> None:
    with (
        committing(str(tmp_path), exclusive=False),
        pytest.raises(locks.LockHeld),
        committing(str(tmp_path), exclusive=True),
    ):
        pass
    assert another_process_gets(tmp_path, "exclusive")


@pytest.mark.spec("DUR-20")
@pytest.mark.parametrize("exclusive", [True, False])
def test_a_process_that_copies_the_table_keeps_its_lock(tmp_path: Path, exclusive: bool) -> None:
    table = tmp_path / "table"
    table.mkdir()
    with committing(str(table), exclusive=exclusive):
        shutil.copytree(table, tmp_path / "copy")
        assert not another_thread_gets(table, "exclusive")
        assert not another_process_gets(table, "exclusive")


@pytest.mark.spec("DUR-20")
def test_threads_exclude_each_other_by_two_paths_to_a_file(tmp_path: Path) -> None:
    table, second = tmp_path / "table", tmp_path / "second"
    table.mkdir()
    second.mkdir()
    (table / "_commit.lock").touch()
    (second / "_commit.lock").hardlink_to(table / "_commit.lock")
    with committing(str(table), exclusive=True):
        assert not another_thread_gets(second, "shared")
    assert another_thread_gets(second, "shared")


@pytest.mark.spec("DUR-20")
def test_a_lock_goes_with_the_process_that_held_it_although_its_child_lives_on(tmp_path: Path) -> None:
    with process(FORKING, tmp_path) as holder:
        assert not another_thread_gets(tmp_path, "shared")
        holder.kill()
        holder.wait()
        assert another_thread_gets(tmp_path, "exclusive")


@pytest.mark.spec("DUR-20")
@pytest.mark.parametrize(
    ("held", "wanted", "gets"),
    [
        ("shared", "shared", True),
        ("shared", "exclusive", False),
        ("exclusive", "shared", False),
        ("exclusive", "exclusive", False),
    ],
)
def test_processes_exclude_each_other(tmp_path: Path, held: str, wanted: str, gets: bool) -> None:
    with committing(str(tmp_path), exclusive=held == "exclusive"):
        assert another_process_gets(tmp_path, wanted) == gets
    with process(OTHER, tmp_path, held, "stay"):
        assert another_thread_gets(tmp_path, wanted) == gets


@pytest.mark.spec("DUR-22")
def test_no_lock_is_made_in_a_directory_that_has_gone(tmp_path: Path) -> None:
    gone = tmp_path / "root" / "table"
    with pytest.raises(FileNotFoundError), committing(str(gone), exclusive=False):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.spec("DUR-22")
def test_a_lock_on_a_moved_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "table" / "lock"
    path.parent.mkdir()
    holder, waiter = FileLock(str(path)), FileLock(str(path))
    assert holder.take(exclusive=True) and not waiter.take(exclusive=True)
    path.parent.rename(tmp_path / "away")
    path.parent.mkdir()
    holder.release()
    assert not waiter.take(exclusive=True)
    assert waiter.take(exclusive=True) and path.exists()
    waiter.release()
