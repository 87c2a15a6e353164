"""A process on a queue, started by the tests in this directory.

``worker.py work ROOT ENGINE NAME LOG STOP PAUSE``: sends, receives, changes and deletes at random until the
file STOP exists, resting for about PAUSE seconds now and then; writes what it is about to do, and what came
of it, as JSON lines to LOG.
``worker.py clean ROOT STOP``: compacts until the file STOP exists, and keeps nothing that is not needed.
``worker.py compact ROOT STOP``: compacts until the file STOP exists.
``worker.py optimize ROOT HOW LOG STOP``: another program that rewrites all tables by delta-rs.
``worker.py consume ROOT NAME LOG STOP``: receives and deletes, in turn, whatever there is.
``worker.py move ROOT NAME STOP``: receives without deleting, redrives and compacts at random.
``crash`` runs a verb and kills itself right before a write to storage; `faults.killed` starts it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lakequeue import (
    LakeQueue,
    Queue,
    QueueClientError,
    QueueServiceError,
    RedrivePolicy,
    RequestThrottled,
    SendEntry,
)
from lakequeue.operations import compact
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.shard.commands import Claim, ClaimResult
from lakequeue.storage import cleaning, layout, ledger
from lakequeue.storage.engines import commit, log_trimming
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.messages import append, merge_segments

QUEUE = "orders"
LONGEST_BATCH = 5


def micros() -> int:
    """The current time by the clock that all processes of a machine share."""
    return time.time_ns() // 1_000


class Diary:
    """A diary whose lines survive a SIGKILL."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event: str, **more: Any) -> None:
        line = {"event": event, "clock": round(time.monotonic(), 3), **more}
        os.write(self._file, (json.dumps(line) + "\n").encode())


def tenant(body: str) -> str:
    """The message group of a body: one tenant sends half of all."""
    number = int(body.rpartition(":")[2])
    return f"tenant-{number // 2 % 3 if number % 2 else 0}"


def small_segments() -> None:
    append.SEGMENT_COMMITS = 4
    merge_segments.TIER_SEGMENTS = 3


def opened(root: str, engine: str, name: str) -> Queue:
    """A queue, through Spark if that is asked for."""
    spark = None
    if engine == "spark":
        from lakequeue.spark.session import build_session

        spark = build_session("worker", "local[1]")
    return LakeQueue(root, spark=spark, engine=engine).queue(name)  # type: ignore[arg-type]


def work(root: str, engine: str, name: str, log: str, stop: str, pause: str) -> None:
    small_segments()
    commit.TRIM_EVERY = log_trimming.LOG_ENTRIES = 5
    log_trimming.READING = 0
    queue = opened(root, engine, QUEUE)
    diary, chance = Diary(log), random.Random(name)
    claims = record_claims()
    diary.write("ready")
    number = 0
    held: list[Any] = []
    limited = bool(queue._runtime.attributes.group_in_flight_limit)
    longest, most_held = (1, 0) if limited else (LONGEST_BATCH, 6)  # what is held stops its group
    while not os.path.exists(stop):
        if float(pause) and chance.random() < 0.3:
            time.sleep(chance.uniform(0.5, 1.5) * float(pause))
        try:
            if chance.random() < 0.5:
                bodies = [f"{name}:{number + index}" for index in range(chance.randint(1, longest))]
                number += len(bodies)
                diary.write("send", bodies=bodies)
                result = queue.send_batch([SendEntry(body=body, group_id=tenant(body)) for body in bodies])
                diary.write("sent", bodies=[bodies[int(entry.id)] for entry in result.successful])
            else:
                timeout = chance.choice([1, 2, 4])
                diary.write("receive")
                messages = queue.receive(chance.randint(1, 8), visibility_timeout=timeout, wait_time=0)
                for message in messages:
                    _note(diary, claims, message)
                held += messages
            chance.shuffle(held)
            while len(held) > most_held:
                _settle(queue, diary, chance, held.pop())
        except RequestThrottled:
            diary.write("throttled")
        except QueueClientError as error:
            diary.write("failed", error=str(error), unknown=error.outcome_unknown)
    diary.write("stopped")


def _settle(queue: Any, diary: Diary, chance: random.Random, message: Any) -> None:
    receipt, draw = message.receipt_handle, chance.random()
    if draw < 0.1:
        return  # forgotten: it comes back
    if draw < 0.3:
        timeout = chance.choice([0, 1, 3])
        diary.write("change", receipt=receipt, at=micros(), timeout=timeout * 1_000_000)
        try:
            queue.change_visibility(receipt, timeout)
        except RequestThrottled:
            diary.write("changed", receipt=receipt, done=False)
        except QueueServiceError as error:  # somebody else received it
            diary.write("changed", receipt=receipt, done=False, error=error.code)
        else:
            diary.write("changed", receipt=receipt, done=True)
    else:
        diary.write("delete", receipt=receipt, at=micros())
        queue.delete(receipt)
        diary.write("deleted", receipt=receipt, at=micros())


def clean(root: str, stop: str) -> None:
    for name in ("MESSAGES", "RECEIPTS", "QUEUES", "STATS"):
        setattr(layout, f"{name}_RETENTION", layout.Retention(0, 0))
    compact_again_and_again(root, stop)


def compact_again_and_again(root: str, stop: str) -> None:
    lq = LakeQueue(root)
    while not os.path.exists(stop):
        lq.compact()
        time.sleep(0.2)


def optimize(root: str, how: str, log: str, stop: str) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    diary = Diary(log)
    diary.write("ready")
    while not os.path.exists(stop):
        for folder in sorted(Path(root).rglob("_delta_log")):
            try:
                table = DeltaTable(str(folder.parent))
                columns = [field.name for field in table.schema().fields]
                if how == "compact":
                    table.optimize.compact()
                elif how == "z-order":
                    table.optimize.z_order([name for name in ("body", "state", "name") if name in columns])
                else:
                    table.vacuum(dry_run=False)
            except (DeltaError, OSError) as error:  # others committed meanwhile
                diary.write("conflict", error=str(error)[:300])
            else:
                diary.write("optimized", table=folder.parent.name)
        time.sleep(0.3)
    diary.write("stopped")


def consume(root: str, name: str, log: str, stop: str) -> None:
    queue = LakeQueue(root).queue(QUEUE)
    diary, chance = Diary(log), random.Random(name)
    claims = record_claims()
    diary.write("ready")
    held: list[Any] = []
    while not os.path.exists(stop):
        for message in queue.receive(chance.randint(1, 8), visibility_timeout=chance.choice([1, 2])):
            _note(diary, claims, message)
            held.append(message.receipt_handle)
        chance.shuffle(held)
        while len(held) > 4:
            receipt = held.pop()
            if chance.random() < 0.2:
                continue  # forgotten: it comes back
            diary.write("delete", receipt=receipt, at=micros())
            try:
                queue.delete(receipt)
            except RequestThrottled:
                diary.write("throttled")
            except QueueServiceError:
                diary.write("late", receipt=receipt)
            else:
                diary.write("deleted", receipt=receipt, at=micros())
    diary.write("stopped")


def move(root: str, name: str, stop: str) -> None:
    small_segments()
    lq, chance = LakeQueue(root), random.Random(name)
    queue, dead = lq.queue(QUEUE), lq.queue("dead")
    while not os.path.exists(stop):
        draw = chance.random()
        try:
            if draw < 0.6:
                queue.receive(chance.randint(1, 30), visibility_timeout=0, wait_time=0)
            elif draw < 0.95:
                dead.redrive(chance.choice([None, 1, 5, 20]))
            else:
                lq.compact()
        except (RequestThrottled, QueueClientError) as error:
            print(error, file=sys.stderr, flush=True)


def claim_of(receipt: str) -> tuple[int, str]:
    """Shard and lease id of a receipt."""
    _, shard, _, lease_and_mac = receipt.split("x")
    return int(shard), lease_and_mac[:32]


def _note(diary: Diary, claims: dict[tuple[int, str], tuple[int, int]], message: Any) -> None:
    received_at, visible_at = claims[claim_of(message.receipt_handle)]
    facts = {"received_at": received_at, "visible_at": visible_at}
    diary.write("got", body=message.body, receipt=message.receipt_handle, **facts)


def record_claims() -> dict[tuple[int, str], tuple[int, int]]:
    """Shard and lease id -> interval, by the shard's clock, in which the messages of the last answer are held."""
    claims: dict[tuple[int, str], tuple[int, int]] = {}
    command = ShardLedger.command

    def recorded(self: Any, commands: Any, *given: Any) -> Any:
        results = command(self, commands, *given)
        for asked, result in zip(commands, results, strict=True):
            if isinstance(asked, Claim) and isinstance(result.value, ClaimResult):
                claimed = result.value
                claims[self._tables.number, claimed.lease_id] = (claimed.received_at, claimed.visible_at)
        return results

    ShardLedger.command = recorded  # type: ignore[method-assign]
    return claims


def crash(root: str, verb: str, number: int) -> None:
    lq = LakeQueue(root)
    verbs: dict[str, Callable[[], object]] = {
        "create": lambda: lq.create_queue(QUEUE),
        "delete": lambda: lq.delete_queue(QUEUE),
        "compact": lq.compact,
        "change": lambda: lq.queue(QUEUE).set_attributes(
            redrive_policy=RedrivePolicy("other", 1), delay=50, rewind_range=0
        ),
    }
    writes: list[tuple[Any, str]] = [(Table, name) for name in ("append", "add", "merge", "replace")]
    if verb == "compact":
        _keep_nothing()
        writes += [(Table, "checkpoint"), (LocalFolder, "remove")]
        writes += [(cleaning, name) for name in ("trim_log", "remove_tables", "_needed_now")]
    die(number, "before", [*writes, (Engine, "create")])
    verbs[verb]()


def _keep_nothing() -> None:
    """Makes a pass of the compactor merge, and remove at once what nobody needs."""
    merge_segments.TIER_SEGMENTS = 3
    ledger._SPARE_FILES = 0
    for name in ("MESSAGES", "RECEIPTS", "QUEUES", "STATS"):
        setattr(layout, f"{name}_RETENTION", layout.Retention(0, 0))
    compact.DELETED_KEPT = -1


def die(number: int, moment: str, methods: Sequence[tuple[Any, str]]) -> None:
    """Kills this process ``before`` or ``after`` a call of some functions, counted from 1."""
    seen = 0

    def deadly(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            mine = seen == number
            if mine and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **more)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return method

    for owner, name in methods:
        setattr(owner, name, deadly(getattr(owner, name)))


def run_forked(environment: dict[str, str], main: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """The main function of a process that was forked from one with an older environment."""
    os.environ.update(environment)
    main(*arguments)


if __name__ == "__main__":
    commands = {"work": work, "clean": clean, "compact": compact_again_and_again}
    (commands | {"consume": consume, "move": move, "optimize": optimize})[sys.argv[1]](*sys.argv[2:])
