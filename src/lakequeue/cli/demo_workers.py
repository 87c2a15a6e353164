"""The demo without Spark: workers of a consumer parse files. One worker is lost, and broken files always fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lakequeue import Consumer, Context, LakeQueue, Message, Outcome, RedrivePolicy
from lakequeue.cli.demo_files import QUEUE, fresh_queue, measure
from lakequeue.cli.render import table
from lakequeue.cli.sql import by_duckdb

if TYPE_CHECKING:
    from rich.console import Console

DEAD_LETTERS = f"{QUEUE}-dead-letters"
WORKERS = 4
MAX_RECEIVES = 3
"""A message becomes a dead letter after this many receives."""
LOST, LOST_SECONDS = 10, 3
"""Number of messages that the lost worker holds, and their visibility timeout in seconds."""
RETRY_SECONDS = 1
BROKEN = [json.dumps({"path": f"broken-{n}.py", "flaky": False, "source": "def (:"}) for n in (1, 2, 3)]
"""Message bodies with Python source that does not parse, so that the handler always fails."""

_STATES_SQL = """
SELECT queue, state, count(*) AS messages, max(receive_count) AS received
FROM messages WHERE queue LIKE 'lakequeue-demo%' GROUP BY ALL ORDER BY ALL
"""
_DEAD_LETTERS_SQL = """
SELECT body->>'path' AS path, receive_count AS received, source_queue
FROM messages WHERE queue = 'lakequeue-demo-dead-letters' ORDER BY path LIMIT 10
"""


@attrs.define
class _WorkerTally:
    done: int = 0
    lines: int = 0
    failures: int = 0
    broken: set[str] = attrs.field(factory=set)


def process(root: str, entries: Sequence[tuple[str, str]], console: Console) -> int:
    """Sends and consumes the entries. Returns 0 if only the broken messages became dead letters, else 3."""
    lake = LakeQueue(root)
    dead_letters = fresh_queue(lake, DEAD_LETTERS)
    policy = RedrivePolicy(dead_letters.name, MAX_RECEIVES)
    # SQL shows deleted messages for as long as they can be rewound
    queue = fresh_queue(lake, QUEUE, redrive_policy=policy, rewind_range=3_600)
    sent = queue.send_arrow(pa.table({"body": [*(body for body, _ in entries), *BROKEN]}))
    console.print(f"Sent: {sent:,} messages in one commit, {len(BROKEN)} of them no Python")
    lost = queue.receive(LOST, visibility_timeout=LOST_SECONDS)
    console.print(f"A worker is lost with {len(lost)} messages; they come back after {LOST_SECONDS} s")
    console.print(_answer(lake, "SQL, now", _STATES_SQL))
    tally = _WorkerTally()
    counting = threading.Lock()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{WORKERS} workers", total=sent - len(BROKEN))

        def handle(message: Message, context: Context) -> Outcome:
            file = measure(message.body, message.receive_count)
            with counting:
                if file.get("problem"):
                    tally.broken.add(message.message_id)
                if file["failed"] or file["problem"]:
                    tally.failures += 1
                    return Outcome.FAILED
                tally.done += 1
                tally.lines += file["lines"]
                progress.update(task, completed=tally.done)
            return Outcome.SUCCESS

        consumer = Consumer(queue, handle, WORKERS, retry_delay=RETRY_SECONDS)
        consumer.run(until_empty=True)
        while (counts := queue.counts()).visible or counts.in_flight:  # messages of the lost worker, or failed
            lake.clock.wait(lake.clock.now() + timedelta(seconds=0.25), threading.Event())
            consumer.run(until_empty=True)
    console.print(f"Done: {tally.done:,} files with {tally.lines:,} lines, by {WORKERS} workers")
    console.print(f"Failures: {tally.failures:,}; such a message comes back after {RETRY_SECONDS} s")
    console.print(_answer(lake, "SQL, at the end", _STATES_SQL))
    console.print(_answer(lake, f"Dead letters, after {MAX_RECEIVES} receives", _DEAD_LETTERS_SQL))
    console.print(f"Root: {lake.root}", soft_wrap=True)
    complete = tally.done == sent - len(tally.broken) and dead_letters.counts().visible == len(tally.broken)
    return 0 if complete else 3


def _answer(lake: LakeQueue, title: str, query: str) -> object:
    found = by_duckdb(lake, query, 100)
    return table(found.column_names, [list(row.values()) for row in found.to_pylist()], title)
