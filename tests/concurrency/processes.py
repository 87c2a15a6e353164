"""Processes that send, receive and delete at once, and the judgement of what they did."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.harness import application_id, check_log, spread
from concurrency.worker import tenant
from lakequeue import Queue
from lakequeue.storage import layout

WORKER = Path(__file__).with_name("worker.py")
TESTS = Path(__file__).parents[1]

SOAK_SECONDS = float(os.environ.get("LAKEQUEUE_SOAK_SECONDS", "600"))
TEN_MINUTES = [pytest.mark.long, pytest.mark.timeout(SOAK_SECONDS + 600)]


def soak(*values: object) -> Any:
    """A case of ``SOAK_SECONDS``, among the long tests."""
    return pytest.param(*values, marks=TEN_MINUTES, id="ten minutes")


@attrs.define
class Receipt:
    """One receipt in the diary of its holder; instants in microseconds."""

    body: str
    received_at: int
    until: int
    """Its earliest possible end; each change and delete counts from its start."""
    deleted_at: int | None = None
    """When a delete was acknowledged, if the receipt was certainly the latest at that time."""
    delete_begun: bool = False
    pending: list[Any] = attrs.field(factory=list)


@attrs.define
class Processes:
    """Processes of one test, by name: their diaries and what they say are beside their root."""

    root: Path
    """With a ``uri``, what is beside it is all it is for."""
    uri: str | None = attrs.field(default=None, kw_only=True)
    """The root, if it is on an object store, which the environment's variables reach."""
    running: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict, kw_only=True)
    killed: int = attrs.field(default=0, kw_only=True)
    stopped: int = attrs.field(default=0, kw_only=True)

    @property
    def place(self) -> str:
        return self.uri or str(self.root)

    @property
    def stop_file(self) -> Path:
        return self.root.parent / "stop"

    def diary(self, name: str) -> Path:
        return self.root.parent / f"{name}.jsonl"

    def begin(self, name: str, script: Path, *words: object) -> subprocess.Popen[bytes]:
        """Starts a script of this directory."""
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        with open(self.root.parent / f"{name}.stderr", "wb") as errors:
            self.running[name] = subprocess.Popen(
                [sys.executable, str(script), *map(str, words)],
                stderr=errors,
                env=os.environ | {"PYTHONPATH": paths},
                start_new_session=True,
            )
        return self.running[name]

    def end(self) -> None:
        """Kills what still runs."""
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        """Has all end by themselves, and well."""
        self.stop_file.touch()
        for name, process in self.running.items():
            assert process.wait(120) == 0, self.errors(name)
        self.running.clear()

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        assert process.poll() is None, self.errors(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.killed += 1

    def suspend(self, name: str, seconds: float) -> None:
        """Stops a process at any point, and continues it after a while."""
        os.killpg(self.running[name].pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(self.running[name].pid, signal.SIGCONT)
        self.stopped += 1

    def wait_until(self, reached: Callable[[], bool], what: str, patience: float = 120) -> None:
        deadline = time.monotonic() + patience
        while not reached():
            assert time.monotonic() < deadline, f"waited for {what}: {self.errors()}"
            time.sleep(0.05)

    def errors(self, name: str = "*") -> str:
        return "".join(
            path.read_text(errors="replace")[-3_000:] for path in self.root.parent.glob(f"{name}.stderr")
        )

    def events(self) -> list[list[dict[str, Any]]]:
        """What each diary tells."""
        return [events_of(path) for path in sorted(self.root.parent.glob("*.jsonl"))]


def events_of(diary: Path) -> list[dict[str, Any]]:
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


@attrs.define
class Workers(Processes):
    """Processes that send, receive, change and delete."""

    queue: Queue

    def start(self, name: str, engine: str = "point", pause: float = 0) -> None:
        self.begin(name, WORKER, "work", self.place, engine, name, self.diary(name), self.stop_file, pause)

    def start_compactor(self, name: str) -> None:
        """A process that removes everything that only the commit lock protects."""
        self.begin(name, WORKER, "clean", self.place, self.stop_file)

    def wait_until_ready(self, name: str, patience: float = 120) -> None:
        def ready() -> bool:
            assert self.running[name].poll() is None, self.errors(name)
            return self.diary(name).exists() and self.diary(name).stat().st_size > 0

        self.wait_until(ready, f"{name} to get ready", patience)

    def done(self, name: str, times: int) -> bool:
        """Whether a worker has sent and received often enough."""
        text = self.diary(name).read_text()
        return min(text.count(f'"event": "{event}"') for event in ("sent", "got")) >= times

    def run(self, at_least: float, at_most: float, until: dict[str, int]) -> None:
        """Waits until each worker has done enough, however slow the machine is."""
        began = time.monotonic()
        while (gone := time.monotonic() - began) < at_most:
            if gone >= at_least and all(self.done(name, times) for name, times in until.items()):
                return
            time.sleep(0.1)


def anchors(queue: Queue) -> set[str]:
    """A message in each shard."""
    return {f"anchor {shard}" for shard in range(len(queue._runtime.shards))}


def anchor(queue: Queue) -> None:
    """Keeps the floors at 0 to the end, so that no log row is dropped before the check."""
    spread(queue, anchors(queue))
    assert {message.body for message in queue.receive(100, visibility_timeout=43_200)} == anchors(queue)


def stopped_again_and_again(workers: Workers, seconds: float, kill: float = 0.0) -> Summary:
    """Three workers and a compactor; one is always stopped, long enough for its log to be trimmed."""
    until, chance, lives = time.monotonic() + seconds, random.Random(), 3
    workers.start_compactor("compactor")
    for life in range(lives):
        workers.start(f"worker{life}")
        workers.wait_until_ready(f"worker{life}")
    while time.monotonic() < until or workers.stopped < 4:
        name = chance.choice(list(workers.running))
        if name != "compactor" and chance.random() < kill:
            workers.kill(name)
            workers.start(f"worker{lives}")
            workers.wait_until_ready(f"worker{lives}")
            lives += 1
        else:
            workers.suspend(name, chance.uniform(0.1, 1.5))
        time.sleep(chance.uniform(0, 0.2))
    workers.stop()
    return judge(workers)


@attrs.frozen
class Summary:
    """How many calls of each kind were acknowledged, and how many were checked."""

    sent: int
    received: int
    changed: int
    deleted: int
    final_deletes: int
    successions: int
    unknown: int
    merges: int


def judge(workers: Workers) -> Summary:
    """Drains the queue, then compares the diaries with each other and with the tables."""
    diaries = workers.events()
    receipts = [receipt for events in diaries for receipt in receipts_of(events)]
    sent = [body for events in diaries for e in events if e["event"] == "sent" for body in e["bodies"]]
    attempted = {body for events in diaries for e in events if e["event"] == "send" for body in e["bodies"]}
    refused = {body for events in diaries for body in _refused(events)}

    drained = drain_receipts(workers.queue)
    counts = workers.queue.counts()
    held = anchors(workers.queue)
    assert (counts.visible, counts.in_flight, counts.delayed) == (0, len(held), 0)

    rows = check_log(workers.queue)
    stored = [row.body for row in rows if row.body is not None]  # else it was deleted, and emptied
    assert len(set(stored)) == len(stored), "a send was stored twice"
    delivered = {receipt.body for receipt in [*receipts, *drained]}
    assert set(sent) <= {*stored, *delivered}, "an acknowledged send is missing"
    assert set(stored) <= attempted | held
    assert not set(stored) & refused, "a send that was refused was stored"

    by_body: defaultdict[str, list[Receipt]] = defaultdict(list)
    for receipt in [*receipts, *drained]:
        by_body[receipt.body].append(receipt)
    assert set(stored) - held <= set(by_body), "a message was never delivered"

    successions = final = 0
    for own in by_body.values():
        own.sort(key=lambda receipt: receipt.received_at)
        for earlier, later in zip(own, own[1:], strict=False):
            successions += 1
            assert later.received_at >= earlier.until, f"held twice at a time: {earlier} {later}"
        for receipt in own:
            if receipt.deleted_at is not None:
                final += 1
                again = [r for r in own if r.received_at > receipt.deleted_at]
                assert not again, f"received after it was deleted: {receipt} {again}"
    events = [event for events in diaries for event in events]
    kinds = defaultdict(int)
    for event in events:
        kinds[event["event"]] += 1
    return Summary(
        sent=len(sent),
        received=len(receipts),
        changed=sum(event["event"] == "changed" and event["done"] for event in events),
        deleted=kinds["deleted"],
        final_deletes=final,
        successions=successions,
        unknown=kinds["failed"],
        merges=sum(application_id(workers.queue, layout.FILES_ID, shard) for shard in range(len(held))),
    )


def most_in_flight(workers: Workers) -> int:
    """The most live receipts that a message group had at one instant, by the diaries and the shard's clock."""
    ends: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for events in workers.events():
        for receipt in receipts_of(events):
            if receipt.received_at < receipt.until:
                # at one instant, ends come before beginnings
                ends[tenant(receipt.body)] += [(receipt.received_at, 1), (receipt.until, -1)]
    most = 0
    for changes in ends.values():
        most = max([most, *accumulate(change for _, change in sorted(changes))])
    return most


def _refused(events: list[dict[str, Any]]) -> Iterator[str]:
    """Bodies of sends that failed and did nothing, by what their error said."""
    for call, answer in zip(events, events[1:], strict=False):
        failed = answer["event"] == "throttled" or (answer["event"] == "failed" and not answer["unknown"])
        if call["event"] == "send" and failed:
            yield from call["bodies"]


def receipts_of(events: list[dict[str, Any]]) -> list[Receipt]:
    """The receipts of a process according to its diary."""
    receipts: dict[str, Receipt] = {}
    for event in events:
        kind, receipt = event["event"], receipts.get(event.get("receipt", ""))
        if kind == "got":
            receipts[event["receipt"]] = Receipt(event["body"], event["received_at"], event["visible_at"])
        elif kind == "change" and receipt:
            receipt.pending.append((receipt.until, event["at"] + event["timeout"]))
            receipt.until = min(receipt.pending[-1])  # until it is known to have been done
        elif kind == "changed" and receipt:
            receipt.until = receipt.pending.pop()[1 if event["done"] else 0]
        elif kind == "delete" and receipt:
            receipt.delete_begun = True
            receipt.pending.append(receipt.until)
            receipt.until = min(receipt.until, event["at"])
        elif kind == "deleted" and receipt and event["at"] <= receipt.pending.pop():
            receipt.deleted_at = event["at"]
    return list(receipts.values())


def drain_receipts(queue: Queue) -> list[Receipt]:
    """Receives and deletes messages until only the anchors are stored."""
    receipts: list[Receipt] = []
    deadline = time.monotonic() + 60
    while (counts := queue.counts()).visible + counts.in_flight > len(queue._runtime.shards):
        assert time.monotonic() < deadline, f"does not run empty: {counts}"
        began = time.time_ns() // 1_000
        messages = queue.receive(max_messages=1_000, visibility_timeout=60, wait_time=1)
        if not messages:
            continue
        # the call took place after everything that ended before it, and that is all that is known of it
        received_at = time.time_ns() // 1_000
        receipts += [Receipt(message.body, received_at, began) for message in messages]
        queue.delete_batch([message.receipt_handle for message in messages])
    return receipts
