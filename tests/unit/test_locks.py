"""The commit lock of local tables, between threads and between processes."""

import subprocess
import sys
import threading

import pytest

from lakequeue.storage.engines.locks import committing

PROBE = """
import sys
from fasteners import InterProcessReaderWriterLock
lock = InterProcessReaderWriterLock(sys.argv[1] + "/_commit.lock")
acquire = lock.acquire_write_lock if sys.argv[2] == "exclusive" else lock.acquire_read_lock
print(acquire(blocking=False))
"""


def another_process_gets(path, kind):
    done = subprocess.run([sys.executable, "-c", PROBE, path, kind], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


@pytest.mark.spec("DLT-1")
def test_a_thread_that_shares_the_lock_waits_for_the_thread_that_has_it_alone(tmp_path):
    path, got = str(tmp_path), threading.Event()

    def share():
        with committing(path, exclusive=False):
            got.set()

    thread = threading.Thread(target=share, daemon=True)
    with committing(path, exclusive=True):
        thread.start()
        assert not got.wait(0.2)
        assert not another_process_gets(path, "shared")
    assert got.wait(10)
    thread.join()
    assert another_process_gets(path, "exclusive")


@pytest.mark.spec("DLT-1")
def test_a_thread_that_leaves_does_not_give_up_what_another_thread_still_shares(tmp_path):
    path, leave = str(tmp_path), threading.Event()
    inside = threading.Event()

    def share():
        with committing(path, exclusive=False):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=share, daemon=True)
    thread.start()
    assert inside.wait(10)
    with committing(path, exclusive=False):
        assert another_process_gets(path, "shared")
    assert not another_process_gets(path, "exclusive")
    leave.set()
    thread.join()
    assert another_process_gets(path, "exclusive")


@pytest.mark.spec("DLT-1")
def test_a_thread_that_has_the_lock_alone_takes_it_again_without_giving_it_up(tmp_path):
    path = str(tmp_path)
    with committing(path, exclusive=True):
        with committing(path, exclusive=False):
            pass
        with committing(path, exclusive=True):
            pass
        assert not another_process_gets(path, "shared")
    assert another_process_gets(path, "exclusive")
