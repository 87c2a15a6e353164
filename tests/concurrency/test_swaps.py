"""A root is swapped for a backup, or put back in place, again and again under real processes (DUR-85, DUR-86)."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from deltalake import DeltaTable

from concurrency.harness import apart, in_place
from concurrency.processes import Processes, events_of
from insides import messages_of
from lakequeue import LakeQueue
from lakequeue.model.clock import SystemClock
from serve.serving import ServerProcess

WORKER = Path(__file__).with_name("restore_worker.py")
ALL = ["send", "consume", "consume", "compact", "client"]


@attrs.define
class Place:
    """A root from a restore to the next one."""

    begun: float
    """When the restore was complete."""
    ended: float = float("inf")
    """When the next restore begins; before the messages are counted if that one is in place."""
    stored: set[str] = attrs.field(factory=set)
    """Ids of its messages at the end."""


@attrs.define
class Restores(Processes):
    """A root, its backup, and processes that outlive each restore."""

    places: list[Place] = attrs.field(factory=lambda: [Place(time.monotonic())])
    findings: list[Any] = attrs.field(factory=list)

    @property
    def backup(self) -> Path:
        return self.root.with_name("backup")

    def begin_all(self, roles: list[str], url: str) -> None:
        for number, role in enumerate(roles):
            name = f"{role}-{number}"
            place = url if role == "client" else self.root
            self.begin(name, WORKER, role, place, self.diary(name), self.stop_file)
        self.go_on()

    def swap(self) -> None:
        ready, old = self.root.with_name("ready"), self.root.with_name("old")
        shutil.copytree(self.backup, ready)
        self.places[-1].ended = time.monotonic()
        self.root.rename(old)
        ready.rename(self.root)
        self.places.append(Place(time.monotonic()))
        self.go_on()
        self.count(self.places[-2], old)
        shutil.rmtree(old)

    def put_back(self) -> None:
        self.places[-1].ended = time.monotonic()
        self.count(self.places[-1], self.root)
        if shutil.which("rsync"):
            call = ["rsync", "--archive", "--delete", f"{self.backup}/", self.root]
            # 24: a process removed a file meanwhile
            assert subprocess.run(call, check=False).returncode in (0, 24)
        else:
            in_place(self.backup, self.root)
        self.places.append(Place(time.monotonic()))
        self.go_on()

    def go_on(self) -> None:
        """Waits until each process has answered a call that began after the restore."""
        for name in self.running:
            self.wait_until(lambda name=name: self._went_on(name), f"{name} after restore {len(self.places)}")  # type: ignore[misc]

    def _went_on(self, name: str) -> bool:
        with self.diary(name).open("ab+") as diary:
            diary.seek(max(0, diary.tell() - 4096))
            last = map(json.loads, diary.read().decode().splitlines()[1:-1])
        return any("error" not in call and call["begun"] > self.places[-1].begun for call in last)

    def count(self, place: Place, root: Path) -> None:
        """Notes which messages a root has, and what is wrong with it."""
        [lake] = apart(root, SystemClock(), 1)
        self.findings += lake.check()
        place.stored = ids_in(lake)

    def calls(self, *roles: str) -> Iterator[dict[str, Any]]:
        for path in self.root.parent.glob("*.jsonl"):
            if path.stem.rpartition("-")[0] in roles:
                yield from events_of(path)

    def lost(self, how: Callable[[Restores], None]) -> list[dict[str, Any]]:
        """Acknowledged sends whose message is in no root that their call may have met.

        A call during a restore may have met the root before it and the root after it.
        """
        consumed = {each for call in self.calls("consume") for each in call["ids"]}
        since = [0.0, *(each.ended for each in self.places)]
        until = [*(each.begun for each in self.places[1:]), float("inf")]
        lost = []
        for call in self.calls("send", "client"):
            spans = zip(self.places, since, until, strict=False)
            met = [each for each, begun, ended in spans if call["begun"] <= ended and call["ended"] >= begun]
            if how is Restores.put_back and len(met) != 1:
                continue  # it was sent during the restore
            there = consumed.union(*(each.stored for each in met))
            lost += [] if there.issuperset(call["ids"]) else [call]
        return lost

    def most_errors(self) -> int:
        """The most calls of a process that failed after one restore; between two renames there is no root."""
        most = 0
        for calls in self.events():
            failed = [call for call in calls if "error" in call]
            for before, place in pairwise(self.places):
                since = [call for call in failed if before.ended <= call["ended"] < place.ended]
                most = max(
                    most, sum(call["begun"] < before.ended or call["ended"] > place.begun for call in since)
                )
        return most


def ids_in(lake: LakeQueue) -> set[str]:
    """Ids of all messages that the log of a queue has."""
    table = DeltaTable(messages_of(lake.queue("orders")))
    return set(table.to_pyarrow_table(columns=["message_id"])["message_id"].to_pylist())


LONG = [pytest.mark.long, pytest.mark.timeout(7200)]


@pytest.mark.spec("DUR-85", "DUR-86")
@pytest.mark.parametrize(
    ("how", "roles", "count"),
    [
        (Restores.swap, ["send"], 3),
        (Restores.put_back, ["send"], 3),
        pytest.param(Restores.swap, ALL, 2, marks=pytest.mark.slow),
        pytest.param(Restores.swap, ["send"], 200, marks=LONG),
        pytest.param(Restores.put_back, ["send"], 20, marks=LONG),
        pytest.param(Restores.swap, ALL, 50, marks=LONG),
    ],
)
def test_processes_outlive_restores(
    tmp_path: Path, how: Callable[[Restores], None], roles: list[str], count: int
) -> None:
    """No acknowledged message is lost, no process is silent, and each has at most one error for a restore."""
    processes = Restores(tmp_path / "root")
    [lake] = apart(processes.root, SystemClock(), 1)
    for number in range(20):
        lake.create_queue("orders").send(f"kept {number}")
    shutil.copytree(processes.root, processes.backup)
    with ExitStack() as server:
        served = server.enter_context(ServerProcess(processes.root)) if "client" in roles else None
        try:
            processes.begin_all(roles, served.url if served else "")
            for _ in range(count):
                time.sleep(0.2)
                how(processes)
            processes.stop()
        finally:
            processes.end()
    processes.count(processes.places[-1], processes.root)
    assert processes.findings == []
    assert processes.lost(how) == []
    assert processes.most_errors() <= 1, [
        call for calls in processes.events() for call in calls if "error" in call
    ]
    assert sum(len(call["ids"]) for call in processes.calls("send", "client")) > count
