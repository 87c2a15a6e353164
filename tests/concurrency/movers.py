"""Processes that move messages between queues."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import attrs

from concurrency.faults import WORKER
from lakequeue import Queue
from lakequeue.shard.commands import Outgoing


@attrs.define
class Movers:
    """The processes; each restart has its own name."""

    root: Path
    """What processes share beside the queues is beside it; with a ``uri`` that is all it is for."""
    uri: str | None = None
    """The root, if it is on an object store, which the environment's variables reach."""
    running: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    lives: int = 0

    @property
    def stop_file(self) -> Path:
        return self.root.parent / "stop"

    def start(self) -> None:
        self.lives += 1
        with open(self.root.parent / f"{self.lives}.stderr", "wb") as errors:
            arguments = [sys.executable, str(WORKER), "move", self.uri or str(self.root), f"life {self.lives}"]
            self.running.append(subprocess.Popen([*arguments, str(self.stop_file)], stderr=errors))

    def kill(self, chance: random.Random) -> None:
        worker = self.running.pop(chance.randrange(len(self.running)))
        assert worker.poll() is None, self.errors()
        worker.kill()
        worker.wait()

    def errors(self) -> str:
        return "".join(path.read_text(errors="replace")[-2_000:] for path in self.root.parent.glob("*.stderr"))


def unfinished(queue: Queue) -> list[Outgoing]:
    moves = [shard.query(lambda machine: machine.outgoing()) for shard in queue._runtime.shards]
    return [move for move in moves if move is not None]
