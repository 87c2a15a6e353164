"""Mutations of FIFO queues in several processes that no schedule of tests/simulation comes by."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from concurrency.harness import apart, application_id, drain, small_segments
from lakequeue import LakeQueueError, Queue, SendEntry
from lakequeue.storage import layout
from lakequeue.storage.messages import merge_segments
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case


@attrs.frozen
class TwoProcesses:
    """Two processes on one FIFO queue."""

    patch: Patch
    clock: ManualClock
    queue: Queue
    other: Queue

    def third(self) -> Queue:
        """The queue, as a new process sees it."""
        return apart(self.queue._runtime.root.path, self.clock, 1)[0].queue("orders.fifo")


def _send(queue: Queue, *bodies: str) -> None:
    """Sends messages whose group is their first letter."""
    entries = [SendEntry(body, group_id=body[0], dedup_id=body) for body in bodies]
    assert not queue.send_batch(entries).failed


# --- scenarios


def ids_outlive_their_messages(on: TwoProcesses) -> None:
    small_segments(on.patch)
    for number in range(4):
        _send(on.queue, f"a{number}")
    messages = on.other.receive(max_messages=4)
    on.other.delete_batch([message.receipt_handle for message in messages])
    on.clock.advance(299)
    for number in range(4, 10):
        _send(on.queue, f"a{number}")
    assert application_id(on.queue, layout.FILES_ID) > 0  # a time to drop what is below the floor
    _send(on.third(), "a0", "a3", "a5", "new")
    assert drain(on.other) == [*(f"a{number}" for number in range(4, 10)), "new"]


# --- mutations


def drop_segments_with_live_ids(patch: Patch) -> None:
    merge = merge_segments.merge_recent
    patch.setattr(
        "lakequeue.runtime.shard_sender.merge_recent", lambda table, shard, floor, _: merge(table, shard, floor)
    )


MUTATIONS = [
    Mutation("drop segments with live ids", drop_segments_with_live_ids, {ids_outlive_their_messages: "RET-11"}),
]


def _two_processes(patch: Patch, root: Path) -> TwoProcesses:
    clock = ManualClock()
    here, there = apart(root, clock)
    queue = here.create_queue("orders.fifo", fifo=True)
    return TwoProcesses(patch, clock, queue, there.queue("orders.fifo"))


@each_case(MUTATIONS)
def test_the_rule_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda patch: (_two_processes(patch, tmp_path),), (LakeQueueError, pytest.fail.Exception))
