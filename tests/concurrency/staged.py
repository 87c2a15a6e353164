"""Two processes that stage their sends: each writes a file first, and who commits adds those of both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from concurrency.harness import apart
from concurrency.steps import at
from insides import place_of, shard_of
from lakequeue import LakeQueue, Queue, QueueClientError, SystemClock
from lakequeue.model.messages import Message
from lakequeue.storage.messages import append, staged_sends

Pair = tuple[Queue, Queue]


def appender_of(queue: Queue) -> append.Appender:
    return shard_of(queue).sender._open_appender()


def stages(queue: Queue, sends: int = append.STAGED_SENDS) -> None:
    appender_of(queue)._to_stage = sends


def send_staged(queue: Queue, *texts: str) -> None:
    """Sends texts one at a time, each by a file that the sender writes first."""
    for text in texts:
        stages(queue)
        queue.send(text)


def await_merges() -> None:
    """Waits until the merges have ended that sends on an object store have begun beside them."""
    for thread in threading.enumerate():
        if thread.name == "lakequeue-merge":
            thread.join()


def another(queue: Queue) -> LakeQueue:
    """Another process on the root of a queue."""
    return apart(place_of(queue), SystemClock(), 1)[0]


def pair_of(lq: LakeQueue, name: str = "orders", **attributes: Any) -> Pair:
    """One queue in two processes; each has lost a race there."""
    [other] = apart(lq.root, SystemClock(), 1)
    here = lq.create_queue(name, **attributes)
    there = other.queue(name)
    for queue in (here, there):
        stages(queue)
    return here, there


def bodies(queue: Queue) -> list[str]:
    found: list[Message] = []
    while got := queue.receive(10):
        found += got
    return sorted(message.body for message in found)


def before_others_are_listed(patch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Makes a call once: the next sender has written its file, and has not decided yet."""
    at(patch, staged_sends, "others", call)


def abandoned(queue: Queue, body: str) -> None:
    """A send whose process dies before its commit."""
    stages(queue)
    with pytest.MonkeyPatch.context() as patch:
        at(patch, append.Appender, "append_staged", RuntimeError("killed"))
        with pytest.raises(QueueClientError) as caught:
            queue.send(body)
    assert caught.value.outcome_unknown, "others may commit it"
