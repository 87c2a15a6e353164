"""A steady flow of small sends from another process: ``python flow.py ROOT QUEUE`` until its input ends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from time import perf_counter

from lakequeue import LakeQueue, Queue

PAUSE = 0.05
"""Seconds between two sends."""


class Flow:
    """Runs the process during the block. ``times`` then has the seconds of each send."""

    def __init__(self, root: str, queue: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, root, queue], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.times: list[float] = []

    def __enter__(self) -> Flow:
        assert self._process.stdout is not None
        self._process.stdout.readline()  # Printed after the first send.
        return self

    def __exit__(self, *_: object) -> None:
        self.times = json.loads(self._process.communicate()[0])


def _send_until_input_ends(queue: Queue) -> None:
    ended = threading.Event()
    queue.send("first")
    print("sending", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    times = []
    while not times or not ended.wait(PAUSE):
        start = perf_counter()
        queue.send("x" * 100)
        times.append(perf_counter() - start)
    print(json.dumps(times))


if __name__ == "__main__":
    _send_until_input_ends(LakeQueue(sys.argv[1]).queue(sys.argv[2]))
