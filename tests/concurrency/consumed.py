"""``lakequeue consume`` in several processes that are signalled, killed and cut off."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import attrs

from lakequeue import LakeQueue, Queue, QueueClientError, RequestThrottled, SendEntry

TESTS = Path(__file__).parents[1]

LONG = float(os.environ.get("LAKEQUEUE_CONSUME_SECONDS", 600))

DRAIN = 5

PATIENCE = 120

WORKERS = {"first": "orders", "second": "orders", "third": "steps.fifo", "fourth": "steps.fifo"}

GROUPS = 5

AStory = TypeVar("AStory", bound="Story")


@attrs.define
class Story:
    """Processes that consume two queues below a root that comes and goes: in an outage it is a link to a file."""

    visibility: ClassVar[str] = "3"
    home: Path
    root: str
    queues: dict[str, Queue]
    running: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)
    sent: dict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))
    ends: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))

    def start(self, name: str) -> None:
        queue = WORKERS[name]
        handler = "handle_async" if name in ("second", "fourth") else "handle"
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        options = [
            "--concurrency",
            "4",
            "--visibility-timeout",
            self.visibility,
            "--drain-timeout",
            str(DRAIN),
            "--wait",
            "2",
        ]
        program = "from lakequeue.cli import main; main()"
        command = ["--root", self.root, "consume", queue, f"concurrency.consume_handler:{handler}"]
        with open(self.home / f"{name}.stderr", "ab") as errors:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-c", program, *command, *options],
                stderr=errors,
                env=os.environ | {"PYTHONPATH": paths, "DIARY": str(self.home / name)},
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as a background job has it
            )

    def revive(self) -> None:
        """Starts those again that found no root when they began, as their supervisor would."""
        for name, process in [*self.running.items()]:
            if process.poll() is not None:
                assert process.poll() == 3, (name, self.errors())
                self.ends["found no root"] += 1
                self.start(name)

    def consumed(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a process has imported its handler."""
        return bool(list(self.home.glob(f"*.{process.pid}.jsonl")))

    def end(self, name: str, how: signal.Signals) -> None:
        """Ends a process and checks how it went."""
        process = self.running[name]
        deadline = time.monotonic() + PATIENCE
        while not self.consumed(process):
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.05)
        process.send_signal(how)
        code = process.wait(DRAIN + 60)
        # who has imported its handler may not have begun to consume, and ends at once
        # or finds no root
        expected = {signal.SIGKILL: (-9, 3), signal.SIGTERM: (0, -15, 3), signal.SIGINT: (0, 130, -2, 3)}[how]
        assert code in expected, (how, code, self.errors())
        self.ends["drained"] += code == 0
        self.ends[how.name] += 1

    def suspend(self, name: str, seconds: float) -> None:
        """Stops a process for a time, as a machine that swaps does; its receipts may end meanwhile."""
        process = self.running[name]
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            threading.Timer(seconds, process.send_signal, [signal.SIGCONT]).start()
            self.ends["stopped"] += 1

    def lead(self, up: bool) -> None:
        """Begins or ends an outage.

        In an outage the link leads to a file. If it led nowhere, writers could make a directory there, and take it
        for the root.
        """
        link = self.home / "next"
        link.symlink_to(self.home / ("data" if up else "nothing"))
        os.replace(link, self.home / "root")

    def end_outages(self) -> None:
        """Leaves the storage as it is, which is well."""

    def send(self, number: int) -> None:
        orders = [f"m{number}-{index}" for index in range(6)]
        steps = [f"g{group}-{number}" for group in range(GROUPS)]
        try:
            self.queues["orders"].send_batch([SendEntry(body) for body in orders])
            self.sent["orders"] += orders
        except (QueueClientError, RequestThrottled):
            pass  # may have been sent all the same, and is then handled like the others
        entries = [SendEntry(body, group_id=body.split("-")[0], dedup_id=body) for body in steps]
        deadline = time.monotonic() + PATIENCE
        while True:  # in order, so what failed is sent before what comes next
            try:
                assert not self.queues["steps.fifo"].send_batch(entries).failed
                break
            except (QueueClientError, RequestThrottled):
                assert time.monotonic() < deadline
                time.sleep(0.2)
        self.sent["steps.fifo"] += steps

    def events(self) -> dict[str, list[dict[str, Any]]]:
        """What happened to each message, in order."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for path in self.home.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                found[event["body"]].append(event)
        return {body: sorted(events, key=lambda event: event["at"]) for body, events in found.items()}

    def left(self) -> bool:
        """Whether anything is left, as far as the storage tells."""
        try:
            counts = [queue.counts() for queue in self.queues.values()]
        except QueueClientError:
            return True
        return any(each.visible + each.in_flight for each in counts)

    def errors(self) -> str:
        return "".join(path.read_text()[-3_000:] for path in self.home.glob("*.stderr"))


@contextmanager
def beginning(kind: Callable[[Path, str, dict[str, Queue]], AStory], home: Path, root: str) -> Iterator[AStory]:
    """A story whose queues are new; its processes are gone afterwards."""
    lake = LakeQueue(root)
    queues = {
        "orders": lake.create_queue("orders", message_retention_period=86_400),
        "steps.fifo": lake.create_queue("steps.fifo", fifo=True, message_retention_period=86_400),
    }
    story = kind(home, root, queues)
    yield story
    for process in story.running.values():
        if process.poll() is None:
            process.kill()
        process.wait()


def consumed_through_everything(story: Story, duration: float, seed: int) -> str:
    """Consumes for a time during which processes are ended and the storage fails; returns what happened."""
    chance, signals = random.Random(seed), cycle([signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
    for name in WORKERS:
        story.start(name)
    began, number, down_until, outages, down = time.monotonic(), 0, 0.0, 0, 0.0
    next_end, next_outage, next_stop = began + 4, began + 6, began + 5
    while (now := time.monotonic()) < began + duration or down_until:
        if down_until and now >= down_until:
            story.lead(up=True)
            down_until = 0.0
        elif not down_until and now >= next_outage and now < began + duration:
            length = chance.choice([0.5, 2, 5, 8])
            story.lead(up=False)
            outages, down = outages + 1, down + length
            down_until, next_outage = now + length, now + length + chance.uniform(4, 12)
        if not down_until:
            story.revive()
        if now >= next_stop:
            story.suspend(chance.choice([*WORKERS]), chance.choice([0.3, 1, 5]))
            next_stop = now + chance.uniform(3, 9)
        if now >= next_end:
            name = chance.choice([*WORKERS])
            story.end(name, next(signals))
            if down_until:  # a new one refuses to start without its root, as it should
                story.lead(up=True)
                down_until = 0.0
            story.start(name)
            next_end = time.monotonic() + chance.uniform(2, 6)
        if not down_until:
            story.send(number)
            number += 1
        time.sleep(0.25)
    story.end_outages()
    deadline = time.monotonic() + 3 * PATIENCE
    while story.left():
        assert time.monotonic() < deadline, story.errors()
        story.revive()
        time.sleep(0.5)
    story.revive()
    for name, process in story.running.items():
        while not story.consumed(process):
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DRAIN + 60) == 0, (name, story.errors())
    handled = judge(story)
    return f"{handled}, {dict(story.ends)}, {outages} outages of {down:.0f} s in all"


def judge(story: Story) -> str:
    """Nothing is lost, no two receipts of a message are valid at a time, groups go in their order."""
    events = story.events()
    finished: dict[str, float] = {}
    repeated = 0
    for body, of_body in events.items():
        begins = [event for event in of_body if event["event"] == "begin"]
        repeated += len(begins) - 1
        assert len({event["count"] for event in begins}) == len(begins), (
            f"{body} was received twice as one: {of_body}"
        )
        by_receive = sorted(begins, key=lambda event: event["count"])
        for before, after in pairwise(by_receive):
            assert after["received"] >= before["until"], f"two receipts of {body} at a time: {of_body}"
        done = [event["at"] for event in of_body if event["event"] == "end" and not event["lost"]]
        if done:
            finished[body] = min(done)
    for queue, bodies in story.sent.items():
        missing = [body for body in bodies if body not in finished]
        assert not missing, f"{queue} lost {missing[:10]} of {len(bodies)}: {story.errors()}"
    for group in range(GROUPS):
        bodies = [body for body in story.sent["steps.fifo"] if body.startswith(f"g{group}-")]
        for before, after in pairwise(bodies):
            first = min(event["at"] for event in events[after] if event["event"] == "begin")
            assert first >= finished[before], f"{after} began before {before} had ended"
    assert not [line for line in story.errors().splitlines() if "Traceback" in line]
    return f"{len(finished)} messages handled, {repeated} of them more than once"
