"""Moves messages to other queues: dead letters and redrives.

A move takes three commits. The messages' shard marks the messages as moving. The log of the target queue appends
them. The shard removes them. If the move is interrupted, any process completes it (DLQ-2, DLQ-8).
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.compute as pc

from lakequeue.errors import DamagedTable, InvalidParameterValue, QueueDoesNotExist, UnsupportedOperation
from lakequeue.model import redrive_policies
from lakequeue.model.arguments import check_whole
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros
from lakequeue.model.failures import parse_note
from lakequeue.model.names import shard_of_group
from lakequeue.model.states import MessageState
from lakequeue.operations import browse, queues
from lakequeue.operations.settle import Settling
from lakequeue.runtime.calls import WITHOUT_ERROR, Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.shard.commands import Claim, Move, MoveBack, Moved, Result
from lakequeue.shard.runs import Destination, MovePart, Outgoing, Run
from lakequeue.shard.spans import ranges
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.messages.deliver_moved import Cells, MoveSource
from lakequeue.storage.store_failures import first_line

if TYPE_CHECKING:
    from lakequeue.conditions.predicate import Predicate
    from lakequeue.model.clock import Interrupt

_CARRIED = (
    *("message_id", "body", "message_attributes", "group_id", "dedup_id"),
    *("sender_id", "trace_header"),
)
"""Columns of a message that a move does not change (DLQ-4)."""


Progress = Callable[[int], None]

_log = logging.getLogger("lakequeue")


def _destination(row: QueueRow) -> Destination:
    return Destination(row.key, row.shards, QueueAttributes.from_wire(row.attributes).by_group)


@attrs.frozen
class DeadLetterMoves:
    """Claims messages for a receive, and moves the dead letters that the claims find (DLQ-2)."""

    queue: OpenQueue
    settling: Settling | None
    """Receipts to settle before the claims, in the same commits."""
    steps: Steps
    """Counts the commits of the receive that move dead letters."""
    _missing: dict[str, None] = attrs.field(factory=dict, init=False)
    """ARNs of dead-letter queues that do not exist. Their dead letters stay in the source queue."""

    def resolve(self) -> None:
        """Finds the dead-letter queue in the catalog, unless this process knows the queue."""
        policy = self.queue.attributes.redrive
        if policy is not None and policy.dead_letter_queue not in self.queue.dead_letter_queues:
            with suppress(Exception):  # a claim that meets dead letters reports what fails
                self._find(policy.dead_letter_queue)

    def claim(self, shard: OpenShard, look: float, command: Claim) -> Result:
        """Claims a shard's messages, and moves the shard's dead letters. ``look``: see ``ShardLedger.command``."""
        brought, damaged = None, False
        while True:
            targets: dict[str, Destination | None] = {**self.queue.dead_letter_queues, **self._missing}
            claim = attrs.evolve(command, dead_letter_queues=dict.fromkeys(targets) if damaged else targets)
            result = self._commit(shard, look, brought, claim)
            brought = None
            if result.error is not None:
                return result
            if result.value.unresolved is not None:  # the shard has another policy than the catalog's row
                self._find(result.value.unresolved)
                continue
            if not result.value.moving or damaged:
                return result
            self.steps.done()
            try:
                if not result.value.spans:
                    with self.queue.finishing_moves:
                        brought = _brought(self.queue, shard)
                    continue
                finish(self.queue, shard)
            except Exception as error:
                # messages are claimed, or they wait for a move that nobody can end before a repair (DUR-8)
                damaged = isinstance(error, DamagedTable)
                if not (result.value.spans or damaged):
                    raise
                _log.warning("a move from %s is unfinished: %s", self.queue.name, first_line(error))
            if result.value.spans:
                return result

    def _commit(self, shard: OpenShard, look: float, brought: _Brought | None, command: Claim) -> Result:
        ends = [] if brought is None else [brought.end]
        first = [] if self.settling is None else self.settling.commands(shard.number)
        *settled, result = shard.ledger.command([*ends, *first, command], self.queue.now, look)
        if brought is not None:
            brought.count(self.queue, settled.pop(0).value)
        if self.settling is not None:
            self.settling.settled(shard.number, settled)
        return result

    def _find(self, arn: str) -> None:
        row = _living(self.queue, arn)
        # a queue that is its own dead-letter queue keeps its messages
        if row is None or row.key == self.queue.key:
            self._missing[arn] = None
        else:
            self.queue.dead_letter_queues[arn] = _destination(row)


def redrive(
    queue: OpenQueue,
    most: int | None,
    where: browse.Where,
    progress: Progress,
    destination: OpenQueue | None,
    interrupt: Interrupt | None,
    check: Callable[[str], object] = lambda source: None,
) -> int:
    """Moves visible messages to their source queues, or to ``destination`` (DLQ-8). Returns their number."""
    steps = Steps("the redrive")
    with queue.service("redrive") as call, steps.rest():
        check_whole("max_messages", 1 if most is None else most)
        queue.root.check_clock(queue.name)  # else the last steps would be refused
        only = _only_target(queue, destination)
        condition, moved = browse.predicate(where, interrupt), 0
        for shard in queue.shards:
            finish(queue, shard)
            for batch in browse.batches(queue, shard, browse.ROWS):
                left = None if most is None else most - moved
                try:
                    targets = _targets(queue, batch, condition, left, only, check)
                except InvalidParameterValue as error:  # the condition fails on a message, or is too slow
                    if moved:
                        error = InvalidParameterValue(f"{error.message} Messages moved before: {moved:,}.")
                    raise error from None
                for target, offsets in targets.items():
                    moved += _move(queue, shard, ranges(offsets), target, steps)
                    call.messages = moved
                    progress(moved)
                if moved == most:
                    return moved
        if not moved and destination is None:
            _check_dead_letters(queue)
        return moved


def redrivable(
    queue: OpenQueue, where: browse.Where, interrupt: Interrupt | None, destination: OpenQueue | None = None
) -> dict[str, int]:
    """Counts the messages that a redrive would move now, by name of the target queue."""
    with queue.service("redrivable"):
        to = _only_target(queue, destination)
        found: Counter[Destination] = Counter()
        condition = browse.predicate(where, interrupt)
        for shard in queue.shards:
            for batch in browse.batches(queue, shard, browse.ROWS, growth=browse.GROWTH):
                for target, offsets in _targets(queue, batch, condition, None, to, lambda source: None).items():
                    found[target] += len(offsets)
        if not found and destination is None:
            _check_dead_letters(queue)
        rows = {target: queue.root.living(target.key) for target in found}
        return {row.name: found[target] for target, row in rows.items() if row is not None}


def _only_target(queue: OpenQueue, destination: OpenQueue | None) -> Destination | None:
    if destination is None:
        return None
    if destination.fifo != queue.fifo or destination.key == queue.key:
        raise InvalidParameterValue.of(destination.name, "destination", "Must be another queue of the same kind.")
    # a copy of the root has queues with the same keys
    if os.path.realpath(destination.root.path) != os.path.realpath(queue.root.path):
        raise InvalidParameterValue.of(destination.name, "destination", f"Must be in {queue.root.path}.")
    if queue.root.living(destination.key) is None:
        raise QueueDoesNotExist(hint=f"{destination.name} was deleted")
    return _destination(destination.row)


def _check_dead_letters(queue: OpenQueue) -> None:
    """Raises UnsupportedOperation if the queue has no dead letters, and is not a dead-letter queue."""
    batches = (batch for shard in queue.shards for batch in browse.batches(queue, shard, browse.ROWS))
    if any(batch.rows["source_receive_count"].null_count < len(batch.rows) for batch in batches):
        return
    if queues.dead_letter_sources(queue):
        return
    raise UnsupportedOperation(
        f"{queue.name} is no dead-letter queue: no redrive policy names it, and none of its messages "
        "came from another queue. To move them elsewhere, name the destination (--to)."
    )


def _targets(
    queue: OpenQueue,
    batch: browse.MessageBatch,
    predicate: Predicate | None,
    most: int | None,
    only: Destination | None,
    check: Callable[[str], object],
) -> dict[Destination, list[int]]:
    """Returns, by destination, the offsets to redrive. Without ``only``, each message goes to its source queue."""
    rows = range(len(batch.offsets)) if predicate is None else predicate.select(batch.table(predicate.columns))
    # messages that were redriven stay here
    dead_letters = pc.is_valid(batch.rows["source_receive_count"])
    sources = pc.if_else(dead_letters, batch.rows["source_queue"], None).to_pylist()
    targets: dict[Destination, list[int]] = {}
    origins: dict[str, Destination | None] = {}
    for row in map(int, rows):
        source = sources[row]
        if most == 0 or batch.states[row] is not MessageState.VISIBLE:
            continue
        target = only
        if target is None and source is not None:
            if source not in origins:
                origin = _living(queue, source)
                if origin is not None:
                    check(origin.name)
                origins[source] = None if origin is None else _destination(origin)
            target = origins[source]
        if target is not None:
            targets.setdefault(target, []).append(int(batch.offsets[row]))
            most = None if most is None else most - 1
    return targets


def _move(
    queue: OpenQueue, shard: OpenShard, spans: list[tuple[int, int]], target: Destination, steps: Steps
) -> int:
    while True:
        with steps.step():
            moved: int | None = queue.command(shard, Move(spans, target))
        with steps.step():
            finish(queue, shard)
        if moved is not None:  # else another move was under way
            # any process may have completed it; the messages have arrived if the target exists
            return 0 if queue.root.living(target.key) is None else moved


def _living(queue: OpenQueue, arn: str) -> QueueRow | None:
    place = redrive_policies.parse_arn(arn)
    return None if place is None else queue.root.living_at(place)


def finish(queue: OpenQueue, shard: OpenShard) -> None:
    with queue.finishing_moves:  # a second thread of the process finds nothing to do
        brought = _brought(queue, shard)
        if brought is not None:
            brought.count(queue, queue.command(shard, brought.end))


@attrs.frozen
class _Brought:
    """A move whose messages were copied, or whose target is gone. The command ``end`` completes the move."""

    end: Moved | MoveBack
    dead_letters: int
    without_error: int

    def count(self, queue: OpenQueue, ended: Any) -> None:
        """Counts the dead letters if ``ended`` shows that this process, not another process, ended the move."""
        if ended and isinstance(self.end, Moved):
            queue.tally(**{"dead_lettered": self.dead_letters, WITHOUT_ERROR: self.without_error})


def finish_all(queue: OpenQueue) -> None:
    for shard in queue.shards:
        finish(queue, shard)


def _brought(queue: OpenQueue, shard: OpenShard) -> _Brought | None:
    """Copies the messages of an unfinished move to the target's log. Returns None if there is no such move."""
    outgoing = shard.ledger.query(lambda machine: machine.outgoing())
    if not outgoing:
        return None
    _, move = outgoing[0]
    target = queue.root.living(move.target.key)
    if target is not None and not _bring(queue, shard, outgoing, target):
        # its log is closed: until the catalog shows that too, its messages would be moved again and again
        OpenQueue(queue.root, target).delete()
        target = None
    if target is None:
        known = queue.dead_letter_queues.items()
        queue.dead_letter_queues = {arn: to for arn, to in known if to != move.target}
    end = MoveBack if target is None else Moved
    letters = [(run.size, parse_note(part.note)[0]) for run, part in outgoing if not part.redrive]
    without_error = sum(size for size, reason in letters if reason is None)
    return _Brought(end(move.number), sum(size for size, _ in letters), without_error)


def _bring(queue: OpenQueue, shard: OpenShard, outgoing: Outgoing, target: QueueRow) -> bool:
    """Copies the messages of a move to the log of the target. Returns False if the target was deleted."""
    _, move = outgoing[0]
    source = MoveSource(queue.key, shard.number, move.number)
    attributes = QueueAttributes.from_wire(target.attributes)
    fifo, dedup = attributes.fifo, attributes.dedup_micros
    # a message keeps its priority, or gets the highest one there (JOB-5); both numbers of priorities are fixed
    classes, turn = attributes.classes, shard.number + move.number
    priority = min(shard.number % queue.attributes.classes, classes - 1)
    turn = priority + turn % (move.target.shards // classes) * classes
    messages: dict[int, list[Cells]] = {}
    for run, part in outgoing:
        for row in shard.reader.messages(run.first, run.last):
            if row is not None and row["body"]:  # else it expired meanwhile, or has arrived and is forgotten
                group = row["group_id"] or ""
                index = shard_of_group(group, move.target.shards) if move.target.by_group else turn
                messages.setdefault(index, []).append(_cells(queue, row, run, part, fifo))
    shards = queue.root.shards(target)
    return all(shards[index].sender.deliver(source, cells, queue.now, dedup) for index, cells in messages.items())


def _cells(queue: OpenQueue, row: dict[str, Any], run: Run, part: MovePart, fifo: bool) -> Cells:
    # a redrive, which has no count, is a fresh start; retention of dead letters goes on on standard queues
    count, first_received_at = 0 if part.redrive else run.receive_count, run.first_received_at
    first_sent_at: datetime | None = row["first_sent_at"] or row["sent_at"]
    return {name: row[name] for name in _CARRIED} | {
        "delay_seconds": None if fifo else 0.0,
        "dead_letter_note": part.note,
        "source_queue": queue.arn,
        "source_receive_count": count or None,
        "first_sent_at": first_sent_at if count and not fifo else None,
        "first_received_at": from_micros(first_received_at) if count and first_received_at else None,
    }
