"""Processes that relay a table are killed at every step, and run at the same time: each row is there once."""

from __future__ import annotations

import json
import random
import signal
from itertools import count as counting
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from concurrency import relay_worker
from concurrency.faults import FORKS, exit_code
from concurrency.worker import run_forked
from lakequeue import LakeQueue, Queue
from lakequeue.storage.bulk import manifests
from lakequeue.storage.bulk.manifests import SendKey
from lakequeue.storage.engines.point import Table
from mutations import Case, Mutation, Patch, each_case, replace

SHARDS, ROWS = 3, 20
QUEUES: dict[str, dict[str, Any]] = {
    "orders": {},
    "orders.fifo": {"fifo": True, "deduplication_scope": "message_group", "content_based_deduplication": True},
}


class Relayed:
    """A table that gains rows, and a queue that gets them."""

    def __init__(self, directory: Path, name: str = "orders") -> None:
        self.root, self.table, self.name = str(directory / "root"), str(directory / "table"), name
        self.queue: Queue = LakeQueue(self.root).create_queue(name, shards=SHARDS, **QUEUES[name])
        self.rows = 0
        DeltaTable.create(self.table, pa.schema([("id", pa.int64())]))

    def grow(self) -> None:
        """Adds a version of several pieces, and one that only rewrites rows."""
        ids = range(self.rows, self.rows + ROWS)
        self.rows += ROWS
        write_deltalake(self.table, pa.table({"id": ids}), mode="append")
        DeltaTable(self.table).optimize.compact()

    def relay(self) -> int:
        return relay_worker.relay(self.root, self.table, self.name)

    def die(self, moment: int, count: int) -> bool:
        """True if the process was killed, False if it came to an end before."""
        code = exit_code(relay_worker.main, self.root, self.table, self.name, moment, count)
        assert code in (0, -signal.SIGKILL)
        return code != 0

    def check(self) -> None:
        """Each row is a message, once."""
        found = [json.loads(message.body)["id"] for message in self.queue.peek(limit=1_000)]
        assert sorted(found) == list(range(self.rows))


@pytest.mark.spec("RLY-1")
@pytest.mark.parametrize("name", ["orders", pytest.param("orders.fifo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("moment", range(len(relay_worker.MOMENTS)))
def test_a_killed_relay_goes_on_where_it_ended(tmp_path: Path, name: str, moment: int) -> None:
    relayed = Relayed(tmp_path, name)
    relayed.grow()
    for count in (1, 2, 4):
        assert relayed.die(moment, count) or moment > 4 or count == 4
    relayed.relay()
    relayed.check()
    assert relayed.relay() == 0


@pytest.mark.spec("RLY-1")
@pytest.mark.parametrize(
    "kills", [pytest.param(12, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.long)]
)
@pytest.mark.timeout(1_200)
def test_relays_at_the_same_time_that_are_killed_send_each_row_once(tmp_path: Path, kills: int) -> None:
    drawn, killed = random.Random(kills), 0
    relayed = [Relayed(tmp_path / name, name) for name in QUEUES]
    while killed < kills:
        each = drawn.choice(relayed)
        each.grow()
        processes = []
        for _ in range(3):
            dying = drawn.randrange(len(relay_worker.MOMENTS)), drawn.randint(1, 9)
            arguments = each.root, each.table, each.name, *dying
            processes.append(
                FORKS.Process(target=run_forked, args=({}, relay_worker.main, arguments), daemon=True)
            )
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode in (0, -signal.SIGKILL)
            killed += process.exitcode != 0
    for each in relayed:
        each.relay()
        each.check()
        assert LakeQueue(each.root).check() == []


# --- what holds it


class Killed(BaseException):
    """The end of a process, as far as its locks and memory do not matter."""


def killed_after_commits(patch: Patch, relayed: Relayed, count: int) -> None:
    """Relays until the given commit; the first one says where the relay begins."""
    add, calls = Table.add, 0

    def deadly(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        add(*arguments)
        if calls == count:
            raise Killed()

    with patch.context() as within, pytest.raises(Killed):
        within.setattr(Table, "add", deadly)
        relayed.relay()


def a_kill_after_a_piece(patch: Patch, directory: Path) -> None:
    relayed = Relayed(directory)
    relayed.grow()
    killed_after_commits(patch, relayed, 2)
    relayed.relay()
    relayed.check()


def a_kill_between_the_shards_of_a_piece(patch: Patch, directory: Path) -> None:
    relayed = Relayed(directory, "orders.fifo")
    relayed.grow()
    killed_after_commits(patch, relayed, 2)
    relayed.relay()
    relayed.check()


def a_pause_before_the_manifest(patch: Patch, directory: Path) -> None:
    """Another process sends the same piece, and all that follow, before this one has written its manifest."""
    relayed = Relayed(directory)
    relayed.grow()
    write, calls = manifests.write_manifest, 0

    def late(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            relayed.relay()
        return write(*arguments)

    with patch.context() as within:
        within.setattr(manifests, "write_manifest", late)
        relayed.relay()
    relayed.check()


TURNS = counting()
MUTATIONS = [
    Mutation(
        "send pieces under ids of their own",
        replace(SendKey, "of_batch", lambda stream, batch: SendKey.new()),
        {a_kill_after_a_piece: "RLY-1"},
    ),
    Mutation(
        "leave pieces that reached some shards to the compactor",
        replace("lakequeue.operations.relay.complete_batch", lambda *_: None),
        {a_kill_between_the_shards_of_a_piece: "RLY-1"},
    ),
    Mutation(
        "let each process choose the shard",
        replace(
            "lakequeue.operations.send_dataframe.shards_of_turn",
            lambda queue, turn: [next(TURNS) % len(queue.shards)],
        ),
        {a_pause_before_the_manifest: "RLY-1"},
    ),
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda patch: (patch, tmp_path))
