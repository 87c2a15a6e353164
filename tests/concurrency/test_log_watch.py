"""On a disk of this machine a send in another process wakes a receive that waits."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lakequeue import LakeQueue
from lakequeue.operations import receive
from lakequeue.runtime.waiters import LogWatch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify")

SENDER = """
import sys, lakequeue
queue = lakequeue.LakeQueue(sys.argv[1]).queue("orders")
sys.stdin.readline()
queue.send("from elsewhere")
"""


@pytest.mark.spec("LPL-6")
def test_a_send_of_another_process_wakes_a_receive_that_looks_once_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "SHORTEST_POLL", 3_600_000_000)
    root = str(tmp_path / "root")
    queue = LakeQueue(root, poll_interval=3_600).create_queue("orders")
    found: list[str] = []
    receiver = threading.Thread(target=lambda: found.extend(one.body for one in queue.receive(wait_time=20)))
    with subprocess.Popen([sys.executable, "-c", SENDER, root], stdin=subprocess.PIPE, text=True) as sender:
        receiver.start()
        time.sleep(1)  # it waits; without a sign it looks once more, at its end
        began = time.monotonic()
        sender.communicate("\n", timeout=20)
        receiver.join(20)
    assert found == ["from elsewhere"] and time.monotonic() - began < 12


@pytest.mark.spec("LPL-6")
def test_a_watch_tells_what_comes_while_somebody_waits(tmp_path: Path) -> None:
    watch, woken = LogWatch(), threading.Event()
    with watch.waking([str(tmp_path)], woken.set):
        (tmp_path / "1").touch()
        assert woken.wait(10)
    woken.clear()
    (tmp_path / "2").touch()
    with watch.waking([str(tmp_path), str(tmp_path / "gone")], woken.set):
        assert not woken.wait(0.2)
        (tmp_path / "3").touch()
        assert woken.wait(10)
