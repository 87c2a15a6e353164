"""Makes ``root-5.tar.gz`` with the code of layout 5: a root in use, and what it answers."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa

from lakequeue import DeadLetterReason, LakeQueue, Message, Queue, RedrivePolicy, SendEntry
from lakequeue.operations import move
from lakequeue.operations.consumer_round import exchange
from lakequeue.operations.lease import release
from lakequeue.storage.messages import append, merge_segments
from lakequeue.testing import ManualClock

START = datetime(2026, 11, 28, tzinfo=timezone.utc)
UTC = "zoneinfo.ZoneInfo(key='UTC')"
QUEUES = ["dead", "kept", "letters.fifo", "orders", "paced", "parked"]


def answers(lq: LakeQueue) -> dict[str, Any]:
    """What a root answers: attributes, counts, messages with their failed attempts, views and schedules.

    It leaves out deliveries into tables, which came after that layout.
    """
    views = lq.arrow_views(now=lq.clock.now())
    found: dict[str, Any] = {"schedules": [str(each) for each in lq.schedules.list()]}
    for name in QUEUES:
        queue = lq.queue(name)
        messages = [repr(message) + str([*map(str, message.attempts)]) for message in queue.peek(limit=1000)]
        attributes = {name: value for name, value in queue.attributes(["All"]).items() if name != "table"}
        found[name] = [attributes, queue.tags(), str(queue.counts()).replace(", undecided=0", ""), messages]
    for name in ("queues", "messages", "history", "groups", "stats"):
        shown = views[name].schema.names
        columns = [column for column in shown if column not in ("attempts", "dead_letter_reason", "undecided")]
        found[name] = sorted(map(str, views[name].to_table(columns).to_pylist()))
    told: dict[str, Any] = json.loads(
        json.dumps(found, default=str)
        .replace("datetime.timezone.utc", UTC)
        .replace(lq.root, "ROOT")
        .replace(UTC, "UTC")
    )
    return told


def fail(queue: Queue, message: Message, error: Exception, again: bool = True) -> None:
    """Settles a message as a consumer does whose handler failed."""
    reason: Any = DeadLetterReason.of(error, queue.clock.now(), "worker-1").json()
    exchange(
        queue._runtime,
        [(message.receipt_handle, 0)] if again else [],
        failures={message.receipt_handle: reason},
    )


def interrupted(call: Callable[[], object]) -> None:
    """Leaves a move under way."""

    def cut_off(*given: Any) -> bool:
        raise KeyboardInterrupt

    move._bring, bring = cut_off, move._bring
    with suppress(KeyboardInterrupt):
        call()
    move._bring = bring


def make(root: str) -> LakeQueue:
    """A root in use."""
    append.SEGMENT_COMMITS = merge_segments.TIER_SEGMENTS = 3
    lq = LakeQueue(root, clock=(clock := ManualClock(START)))

    def create(name: str, **more: Any) -> Queue:
        return lq.create_queue(name, message_retention_period=14 * 86400, **more)

    dead, parked, other = create("dead", shards=2), create("parked"), create("other")
    orders = create("orders", shards=3, redrive_policy=RedrivePolicy("dead", 2), tags={"team": "a"})
    kept = create("kept", rewind_range=14 * 86400)
    letters = create("letters.fifo", fifo=True, content_based_deduplication=True)
    paced = create("paced", rate_limit="10/m", redrive_policy=RedrivePolicy("parked", 1))
    # dead letters: with failed attempts, of a killed consumer, and one that went back; and moves under way
    for body in ("failed", "killed", "back"):
        orders.send(body)
        for number in range(2):
            [message] = orders.receive(visibility_timeout=5)
            if body != "killed":
                fail(orders, message, ValueError(f"no: é {number // 2}"))
            clock.advance(10)
        orders.receive()
        if body == "failed":
            fail(dead, dead.receive()[0], KeyError("there"))
    dead.redrive(where="body = 'back'")
    paced.send("going")
    fail(paced, paced.receive()[0], OSError("gone"))
    parked.send("parked")
    # in flight by name, by attempt and in a lease; failed and still held; handed back; failed as a batch; delayed
    orders.send_batch([SendEntry(f"order {n}", attributes={"n": n, "b": b"\0"}) for n in range(10)])
    orders.receive(2, visibility_timeout=40_000, consumer="picker")
    fail(orders, orders.receive(visibility_timeout=40_000)[0], ValueError("slow"), again=False)
    fail(orders, orders.receive()[0], ValueError("again"))
    orders.send("later", delay=timedelta(hours=10))
    orders.send_arrow(pa.table({"body": [f"bulk {n}" for n in range(30)]}), send_id="import")
    release(orders.lease(max_messages=8)._runtime, RuntimeError("the batch"))
    orders.lease(max_messages=4, visibility_timeout=40_000)
    # a rewind history, an erased message, and rows that were emptied behind a message that is still stored
    kept.send_batch([SendEntry(body) for body in ("old", *"abcdef")])
    kept.delete_batch(kept.receive(4)[1:])
    kept.erase(kept.send("secret").message_id)
    letters.send("old", group_id="z")
    for n in range(6):
        letters.send(f"letter {n}", group_id="ab"[n % 2])
    [message, *others] = letters.receive(6, visibility_timeout=1)
    letters.delete_batch(others)
    for _ in range(8):
        other.send("filler")
        orders.send("filler", delay=timedelta(hours=10))
        letters.send("filler", group_id="c", dedup_id=str(clock.advance(1)))
    lq.schedules.add("nightly", "orders", "sales", cron="0 2 * * *", tz="Europe/Berlin")
    create("gone").send("x")
    lq.delete_queue("gone")
    for _ in range(2):
        clock.advance(7200)
        lq.compact()
    interrupted(lambda: other.redrive(destination=parked))
    interrupted(paced.receive)
    letters.receive(2, attempt_id="once", visibility_timeout=600)
    return lq


if __name__ == "__main__":
    folder = Path(mkdtemp())
    lq = make(str(folder / "root"))
    told = answers(LakeQueue(lq.root, clock=lq.clock)) | {"now": lq.clock.now().isoformat()}
    (folder / "answers.json").write_text(json.dumps(told, indent=1))
    with tarfile.open(sys.argv[1], "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.suffix != ".lock" and "reserve" not in path.name and path.is_file():
                archive.add(path, str(path.relative_to(folder)))
