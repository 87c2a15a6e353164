"""Operations on messages that are chosen by id, without receipts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from datetime import datetime

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import InvalidParameterValue, UnsupportedOperation
from lakequeue.model.arguments import check_instant
from lakequeue.model.clock import MICROS, seconds
from lakequeue.model.messages import sent_about
from lakequeue.model.states import MessageState
from lakequeue.operations import browse, move, spark_tasks
from lakequeue.operations.message_states import TYPED_ATTRIBUTES
from lakequeue.operations.results import PeekedMessage, peeked_message
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.shard.commands import Discard, Erase, MakeVisible, Spans
from lakequeue.shard.spans import ranges
from lakequeue.storage.messages.find_message import offsets_of

NEAR = 60 * MICROS
"""Microseconds around the time in a message id. A search first reads messages that were sent in this span."""


@attrs.frozen
class ChosenCounts:
    """Numbers of chosen messages: changed, not changed because of their state (by state), and not found."""

    done: int
    stayed: Counter[MessageState]
    missing: int


def delete(queue: OpenQueue, message_ids: Collection[str]) -> ChosenCounts:
    """Deletes the chosen messages that are visible, and returns counts. A rewind can restore the messages."""
    with queue.service("delete_selected") as call:
        outcome = _apply(queue, message_ids, {MessageState.VISIBLE}, Discard)
        queue.tally(deleted=outcome.done)
        call.messages = outcome.done
        return outcome


def make_visible(queue: OpenQueue, message_ids: Collection[str], in_flight: bool = False) -> ChosenCounts:
    """Makes delayed messages visible. If ``in_flight``, also makes messages in flight visible."""
    states = {MessageState.DELAYED, *((MessageState.IN_FLIGHT,) if in_flight else ())}
    with queue.service("make_visible") as call:
        outcome = _apply(queue, message_ids, states, lambda spans: MakeVisible(spans, in_flight))
        call.messages = outcome.done
        return outcome


def erase(queue: OpenQueue, message_id: str) -> bool:
    """Deletes a message and its content. Returns and raises as ``Queue.erase`` does."""
    steps, erased = Steps("the erasure"), False
    with queue.service("erase") as call, steps.rest():
        queue.root.check_clock(queue.name)  # else its last step would be refused
        queue.learn_of_shards()
        places = _places(queue, message_id)
        if not places:
            raise _unknown(message_id)
        for shard, offsets in places:
            _remove(queue, shard, offsets, steps)  # first, so that nobody receives an empty body
            with steps.step():
                erased |= shard.erase(message_id, offsets, queue.now(), queue.attributes.dedup_micros)
        call.messages = int(erased)
        return erased


def cancel(queue: OpenQueue, message_id: str) -> bool:
    """Deletes a message in any state. Returns False if the message no longer existed; see ``Queue.cancel``."""
    steps, removed = Steps("the cancellation"), 0
    with queue.service("cancel") as call, steps.rest():
        for places in _looks(queue, message_id):
            removed = sum(_remove(queue, shard, offsets, steps, for_good=False) for shard, offsets in places)
            if removed:
                break
        queue.tally(deleted=removed)
        call.messages = removed
        return removed > 0


def reschedule(queue: OpenQueue, message_id: str, at: datetime) -> bool:
    """Makes a delayed or visible message visible at ``at``. Returns and raises as ``Queue.reschedule`` does."""
    if queue.fifo:
        raise UnsupportedOperation("Messages of FIFO queues keep their order, so none has a delay of its own.")
    instant, retention, done = check_instant("at", at), queue.attributes.retention_micros, 0
    steps = Steps("the rescheduling")
    with queue.service("reschedule") as call, steps.rest():
        for places in _looks(queue, message_id):
            for shard, offsets in places:
                log = shard.ledger.log()
                if log.file_of(offsets[-1]) is None:  # it was deleted, and has been dropped since it was found
                    continue
                if instant >= log.born_at(offsets[-1]) + retention:
                    reason = f"The message expires {seconds(retention):,} seconds after its send."
                    raise InvalidParameterValue.of(at, "at", reason)
                with steps.step():
                    done += queue.command(shard, MakeVisible(ranges(offsets), at=instant))
            if done:
                break
        call.messages = done
        return done > 0


def get(queue: OpenQueue, message_id: str) -> PeekedMessage:
    """Returns a message in any state; see ``Queue.get``."""
    from lakequeue.operations.relations import of_queues  # imports pyarrow.dataset

    with queue.service("get") as call:
        messages, found = of_queues(queue.root, [queue.row], None)["messages"], list[PeekedMessage]()
        for places in _looks(queue, message_id):
            for shard, offsets in places:
                place = pc.field("shard") == pa.scalar(shard.number, pa.int32())
                wanted = place & pc.field("log_offset").isin(pa.array(offsets))
                rows = messages.to_table(columns=browse.PEEKED, filter=wanted).to_pylist()
                found += [peeked_message(row, row.pop(TYPED_ATTRIBUTES), queue.attributes) for row in rows]
            if any(message.state is not MessageState.DELETED for message in found):
                break
        if not found:
            raise _unknown(message_id)
        call.messages = 1
        # if a message was moved away and came back, the message that is there now
        return max(found, key=lambda message: (message.state is not MessageState.DELETED, message.sent_at))


def _looks(queue: OpenQueue, message_id: str) -> Iterator[list[_Place]]:
    """Finds the messages with an id, in two looks. First yields the places of the messages that were sent near the
    time in the id, if such messages exist. Then yields the places of all messages with the id. Raises
    InvalidParameterValue if no message has the id.
    """
    queue.learn_of_shards()
    made = sent_about(message_id)
    if made is not None and (near := _places(queue, message_id, (made - NEAR, made + NEAR))):
        yield near
    found = _places(queue, message_id)
    if not found:
        raise _unknown(message_id)
    yield found


_Place = tuple[OpenShard, list[int]]


def _places(queue: OpenQueue, message_id: str, sent: tuple[int, int] | None = None) -> list[_Place]:
    logs = [(shard, queue.root.engine.open(shard.tables.messages)) for shard in queue.shards]
    return [(shard, offsets) for shard, log in logs if (offsets := offsets_of(log, message_id, sent))]


def tasks_of_message(queue: OpenQueue, message_id: str) -> list[list[spark_tasks.Place]]:
    """Returns the places of messages with this id. Each place is in a list of its own, for one Spark task."""
    queue.learn_of_shards()
    row = queue.row
    with queue.root.storage_errors():
        found = [(shard.number, offset) for shard, offsets in _places(queue, message_id) for offset in offsets]
    return [[(row.name, row.region, shard, offset, offset)] for shard, offset in found]


def _unknown(message_id: str) -> InvalidParameterValue:
    reason = "The queue has no message with this id, or none any more."
    return InvalidParameterValue.of(message_id, "message_id", reason)


def _remove(queue: OpenQueue, shard: OpenShard, offsets: list[int], steps: Steps, for_good: bool = True) -> int:
    """Deletes messages in any state. First completes moves of the messages. Returns the number of deletions."""
    command, removed, moving = Erase(ranges(offsets), for_good), 0, True
    with steps.step():
        while moving:
            erased, moving = queue.command(shard, command)
            removed += erased
            if moving:
                move.finish(queue, shard)
    return removed


def _apply(
    queue: OpenQueue,
    message_ids: Collection[str],
    states: Collection[MessageState],
    command: Callable[[Spans], Discard | MakeVisible],
) -> ChosenCounts:
    """Applies a command to the chosen messages. The command changes only messages in ``states``. Returns how many
    messages were changed, not changed (by state), and not found.
    """
    wanted = pa.array(sorted(set(message_ids)), pa.string())
    found = done = 0
    stayed: Counter[MessageState] = Counter()
    steps = Steps("a change of chosen messages")
    with steps.rest():
        for shard in queue.shards:
            if found == len(wanted):
                break
            offsets: list[int] = []
            for batch in browse.batches(queue, shard, browse.ROWS, growth=browse.GROWTH):
                for row in pc.indices_nonzero(pc.is_in(batch.rows["message_id"], wanted)).to_pylist():
                    found += 1
                    offsets.append(int(batch.offsets[row]))
                    stayed[batch.states[row]] += 1
                if found == len(wanted):
                    break
            if offsets:
                with steps.step():
                    done += queue.command(shard, command(ranges(offsets)))
    left = done
    for state in states:
        changed = min(left, stayed[state])
        stayed[state] -= changed
        left -= changed
    return ChosenCounts(done, +stayed, len(wanted) - found)
