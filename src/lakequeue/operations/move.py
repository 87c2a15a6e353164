"""Moving messages to other queues: dead letters when a claim meets them, redrives when they are asked for.

Each move is three commits: the shard marks the messages as moving, the other queue's log takes them, the shard
lets them go. It may end anywhere between them, and whoever comes upon it goes on (DLQ-2, DLQ-8).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.compute as pc

from lakequeue.errors import InvalidParameterValue
from lakequeue.model import redrive_policies
from lakequeue.operations import browse
from lakequeue.operations.send import shard_of_group
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard import Claim, Move, MoveBack, Moved, Outgoing, Result
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.commit import first_line
from lakequeue.storage.messages.deliver_moved import Cells, Source, deliver

if TYPE_CHECKING:
    from lakequeue.client import LakeQueue
    from lakequeue.conditions.predicate import Predicate

_CARRIED = (
    *("message_id", "body", "message_attributes", "group_id", "dedup_id"),
    *("sender_id", "trace_header"),
)
"""Columns that a message keeps wherever it goes (DLQ-4)."""


Progress = Callable[[int], None]

_log = logging.getLogger("lakequeue")


class Mover:
    """Moves messages from the shards of one queue. Thread-safe."""

    def __init__(self, owner: LakeQueue, row: QueueRow, shards: Sequence[ShardService]) -> None:
        self._owner = owner
        self._row = row
        self._shards = shards
        self._keys: dict[str, str] = {}  # of dead-letter queues by their ARN, until one is found gone
        self._finishing = threading.Lock()

    def claim(self, shard: ShardService, command: Claim) -> Result:
        """A claim, after what it met was moved that had been received too often."""
        missing: dict[str, str | None] = {}
        while True:
            asked = attrs.evolve(command, dead_letter_keys=self._keys | missing)
            [result] = shard.command([asked], self._owner.micros)
            if result.error is not None:
                return result
            queue = result.value.unresolved
            if queue is not None:
                key = self._key(queue)
                if key is None:
                    missing[queue] = None
                else:
                    self._keys[queue] = key
                continue
            if not result.value.moving:
                return result
            if not result.value.spans:
                self.finish(shard)
                continue
            try:
                self.finish(shard)
            except Exception as error:  # claimed already: to raise would hide them from everybody
                _log.warning("a move from %s is unfinished: %s", self._row.name, first_line(error))
            return result

    def redrive(
        self, most: int | None, predicate: Predicate | None, progress: Progress, target_key: str | None = None
    ) -> int:
        """Moves visible messages back to where they come from, or all to one queue; how many (DLQ-8)."""
        moved = 0
        for shard in self._shards:
            self.finish(shard)
            for batch in browse.batches(shard, self._owner.micros, browse.ROWS):
                left = None if most is None else most - moved
                try:
                    homes = self._homes(batch, predicate, left, target_key)
                except InvalidParameterValue as error:  # the condition fails on a message, or is too slow
                    if moved:
                        error = InvalidParameterValue(f"{error.message} Messages moved before: {moved:,}.")
                    raise error from None
                for key, offsets in homes.items():
                    moved += self._move(shard, _spans(offsets), key)
                    progress(moved)
                if moved == most:
                    return moved
        return moved

    def redrivable(self, predicate: Predicate | None) -> dict[str, int]:
        """How many messages a redrive would move now, by the name of the queue that takes them."""
        found: Counter[str] = Counter()
        for shard in self._shards:
            for batch in browse.batches(shard, self._owner.micros, browse.ROWS, growth=browse.GROWTH):
                for key, offsets in self._homes(batch, predicate, None, None).items():
                    found[key] += len(offsets)
        targets = {key: self._target(key) for key in found}
        return {target.name: found[key] for key, target in targets.items() if target is not None}

    def _homes(
        self, batch: browse.Batch, predicate: Predicate | None, most: int | None, target_key: str | None
    ) -> dict[str, list[int]]:
        """Offsets of those messages of a batch that can go back, by the key of their queue."""
        rows = range(len(batch.offsets)) if predicate is None else predicate.select(batch.table(predicate.columns))
        # what a redrive brought is at home
        letters = pc.is_valid(batch.rows["source_receive_count"])
        sources = pc.if_else(letters, batch.rows["source_queue"], None).to_pylist()
        states = [batch.runs[number][1] for number in batch.run_numbers]
        homes: dict[str, list[int]] = {}
        keys: dict[str, str | None] = {}
        for row in map(int, rows):
            source = sources[row]
            if most == 0 or states[row] != "visible":
                continue
            key = target_key
            if key is None and source is not None:
                if source not in keys:
                    keys[source] = self._key(source)
                key = keys[source]
            if key is not None:
                homes.setdefault(key, []).append(int(batch.offsets[row]))
                most = None if most is None else most - 1
        return homes

    def _move(self, shard: ShardService, spans: list[tuple[int, int]], key: str) -> int:
        while True:
            [result] = shard.command([Move(spans, key)], self._owner.micros)
            if result.error is not None:
                raise result.error
            self.finish(shard)
            if result.value is not None:  # else another move was in the way
                # whoever ended it, they are there if the queue is
                return 0 if self._target(key) is None else result.value

    def _key(self, queue: str) -> str | None:
        place = redrive_policies.place(queue)
        return None if place is None else self._owner.live_key(place)

    def _target(self, key: str) -> QueueRow | None:
        """The queue of a key, unless it was deleted."""
        row = self._owner.row(key)
        return None if row is None or row.deleted_at is not None else row

    def finish(self, shard: ShardService) -> None:
        """Ends the move of a shard that is under way, if there is one."""
        with self._finishing:  # the second thread of a process finds nothing left to do
            move = shard.look(lambda machine: machine.outgoing())
            if move is None:
                return
            target = self._target(move.target_key)
            if target is not None and not self._bring(shard, move, target):
                # its log is closed: unless the catalog says so too, its letters would set out again and again
                self._owner.finish_deletion(self._owner.open(target))
                target = None
            if target is None:
                self._keys = {queue: key for queue, key in self._keys.items() if key != move.target_key}
            end = MoveBack if target is None else Moved
            [result] = shard.command([end(move.number)], self._owner.micros)
            if result.error is not None:
                raise result.error

    def finish_all(self) -> None:
        """The same for every shard."""
        for shard in self._shards:
            self.finish(shard)

    def _bring(self, shard: ShardService, move: Outgoing, target: QueueRow) -> bool:
        """Has the messages in the log of the target; False if that was deleted."""
        source = Source(self._row.key, shard.shard, move.number)
        fifo = target.attributes.get("FifoQueue") == "true"
        turn = (shard.shard + move.number) % target.shards
        messages: dict[int, list[Cells]] = {}
        for first, last, count in move.parts:
            for row in shard.messages(first, last):
                if row is not None:  # else it expired meanwhile
                    group = row["group_id"] or ""
                    index = shard_of_group(group, target.shards) if fifo else turn
                    messages.setdefault(index, []).append(self._cells(row, count, fifo))
        shards = self._owner.shards(target)
        for index, cells in messages.items():
            table = self._owner.engine.open(layout.messages_path(self._owner.root, target.key, index))
            closes = deliver(table, source, cells, self._owner.micros)
            if closes is None:
                return False
            if closes:
                shards[index].merge_segments(self._owner.micros(), fifo)
            shards[index].wake()
        return True

    def _cells(self, row: dict[str, Any], count: int, fifo: bool) -> Cells:
        # a redrive, which has no count, is a fresh start; retention of dead letters goes on on standard queues
        first_sent_at: datetime | None = row["first_sent_at"] or row["sent_at"]
        return {name: row[name] for name in _CARRIED} | {
            "delay_seconds": None if fifo else 0.0,
            "source_queue": redrive_policies.arn(self._row.region, self._row.name),
            "source_receive_count": count or None,
            "first_sent_at": first_sent_at if count and not fifo else None,
        }


def _spans(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending offsets as ranges."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] + 1 == offset:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found
