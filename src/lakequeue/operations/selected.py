"""What an operator does with chosen messages, by their ids and without receipts.

Messages that a consumer has in flight are not taken from it, unless that is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.states import MessageState
from lakequeue.operations import browse, move
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import Discard, Erase, MakeVisible, Spans
from lakequeue.shard.spans import joined


@attrs.frozen
class Outcome:
    """What became of chosen messages.

    Attributes:
        done: number of messages that the operation changed.
        stayed: number of the others by their state just before.
        missing: number of those that the queue no longer stores.
    """

    done: int
    stayed: Counter[MessageState]
    missing: int


def delete(queue: OpenQueue, message_ids: Collection[str]) -> Outcome:
    """Deletes the visible ones of the messages; a rewind can restore them as any others."""
    with queue.service("delete_selected") as call:
        outcome = _apply(queue, message_ids, {MessageState.VISIBLE}, Discard)
        queue.tally(deleted=outcome.done)
        call.messages = outcome.done
        return outcome


def make_visible(queue: OpenQueue, message_ids: Collection[str], in_flight: bool = False) -> Outcome:
    """Makes delayed messages visible now, and those in flight if asked.

    The consumer of a message in flight is not notified. On lenient queues it may still delete the message until
    another consumer receives it.
    """
    states = {MessageState.DELAYED, *((MessageState.IN_FLIGHT,) if in_flight else ())}
    with queue.service("make_visible") as call:
        outcome = _apply(queue, message_ids, states, lambda spans: MakeVisible(spans, in_flight))
        call.messages = outcome.done
        return outcome


def erase(queue: OpenQueue, message_id: str) -> bool:
    """Deletes a message for good and clears what was sent; see ``Queue.erase``."""
    steps = Steps("the erasure")
    with queue.service("erase") as call, steps.rest():
        known = erased = False
        queue.shards[0].query(lambda _: None)  # it knows of shards that were added
        for shard in queue.shards:
            offsets = shard.offsets_of(message_id)
            if not offsets:
                continue
            known = True
            # deleted first, so that nobody receives an empty body
            with steps.step():
                while queue.command(shard, Erase(joined((offset, offset) for offset in offsets))):
                    move.finish(queue, shard)
            with steps.step():
                erased |= shard.erase(message_id, offsets, queue.now(), queue.fifo)
        if not known:
            reason = "The queue has no message with this id, or none any more."
            raise InvalidParameterValue.of(message_id, "message_id", reason)
        call.messages = int(erased)
        return erased


def _apply(
    queue: OpenQueue,
    message_ids: Collection[str],
    states: Collection[MessageState],
    command: Callable[[Spans], Discard | MakeVisible],
) -> Outcome:
    """Runs one command a shard on the messages; the shard decides by their states at its commit."""
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
                    count: int = queue.command(shard, command(joined((offset, offset) for offset in offsets)))
                done += count
    left = done
    for state in states:
        changed = min(left, stayed[state])
        stayed[state] -= changed
        left -= changed
    return Outcome(done, +stayed, len(wanted) - found)
