"""What the entries of this package ask of a root or a queue beyond the public verbs.

Consumers, server and command line are written against the faces, the model and these functions, and know nothing
below. They are no part of the public API. Errors are those of ``Queue`` and ``LakeQueue``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from lakequeue.client import LakeQueue
from lakequeue.errors import LakeQueueError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import Duration, from_micros, to_micros
from lakequeue.model.interrupts import Interrupt
from lakequeue.model.messages import Message, SendEntry, SendResult
from lakequeue.model.off_loop import OffLoop
from lakequeue.operations import attributes, browse, receive, selected, send, settle
from lakequeue.operations import depth as depth_of
from lakequeue.operations.depth import Depth
from lakequeue.operations.exchange import Exchanged
from lakequeue.operations.exchange import exchange as run_exchange
from lakequeue.operations.results import GroupCounts, PeekedMessage
from lakequeue.operations.selected import Outcome as SelectedOutcome
from lakequeue.operations.send import Outcome as SendOutcome
from lakequeue.operations.send import Send
from lakequeue.operations.settle import Outcome as SettleOutcome
from lakequeue.operations.settle import Wanted
from lakequeue.queue import Queue
from lakequeue.runtime.tallies import EVENTS
from lakequeue.storage import passes, stats
from lakequeue.storage.roots import local_path
from lakequeue.storage.store_failures import is_permanent

if TYPE_CHECKING:
    import pyarrow as pa

    from lakequeue.operations.copy import CopiedQueue as CopiedQueue
    from lakequeue.operations.doctor import Health as Health

__all__ = ["EVENTS", "Depth", "Exchanged", "SelectedOutcome", "Send", "SendOutcome", "SettleOutcome", "Wanted"]
__all__ += ["is_permanent"]

_Page = TypeVar("_Page")


# --- what this process knows, without reading storage


def settings(queue: Queue) -> QueueAttributes:
    """The attributes as this process last read them."""
    return queue._runtime.attributes


def races(queue: Queue) -> dict[int, tuple[int, int]]:
    """Commits of this process and the races that it lost before them, by shard."""
    return queue._runtime.shards[0].shared.races.by_shard()


def tally(queue: Queue) -> Counter[str]:
    """What the verbs of this ``LakeQueue`` did with the messages of a queue, by `EVENTS`."""
    return queue._runtime.root.tallies.of(queue.name)


def tallies(lake: LakeQueue) -> dict[str, Counter[str]]:
    """The same for every queue that something happened to, by name."""
    return lake._runtime.tallies.all()


# --- consumers, asyncio


def exchange(
    queue: Queue,
    wanted: Sequence[tuple[str, Duration | None]],
    max_messages: int,
    enough: int,
    visibility_timeout: Duration | None,
    failures: Mapping[str, str] | None = None,
) -> Exchanged:
    """Settles receipts and claims messages, in one commit per shard; see ``operations.exchange``."""
    return run_exchange(queue._runtime, wanted, max_messages, enough, visibility_timeout, failures)


async def receive_async(queue: Queue, request: receive.Request, off_loop: OffLoop) -> list[Message]:
    """``Queue.receive_async`` whose work in storage runs in given threads."""
    return await receive.receive_async(queue._runtime, request, off_loop)


# --- the server: what many requests want, together


def send_one(queue: Queue, entry: SendEntry) -> SendResult:
    """Sends a message that is an entry already."""
    return send.send(queue._runtime, entry)


def send_each(queue: Queue, sends: Sequence[Send]) -> list[SendOutcome]:
    """Runs sends of separate callers in one commit per shard; what is refused of one concerns no other."""
    return send.send_each(queue._runtime, sends)


def settle_each(queue: Queue, wanted: Sequence[Wanted]) -> list[SettleOutcome]:
    """Settles receipts of separate callers in one commit per shard."""
    return settle.settle_each(queue._runtime, wanted)


def move_tasks(queue: Queue) -> str | None:
    """Records of redrives that SQS clients requested, in the server's format."""
    return attributes.move_tasks(queue._runtime)


def update_move_tasks(queue: Queue, change: Callable[[str | None], str]) -> None:
    """Replaces these records; ``change`` is applied to the newest."""
    attributes.update_move_tasks(queue._runtime, change)


def all_move_tasks(lake: LakeQueue) -> dict[str, str]:
    """These records of the region's queues that have any, by name."""
    rows = [row for row in lake._runtime.rows() if row.region == lake.region and row.deleted_at is None]
    return {row.name: row.move_tasks for row in rows if row.move_tasks}


# --- browsing and chosen messages


def check_condition(where: str | None, interrupt: Interrupt | None = None) -> None:
    """Raises InvalidParameterValue if a condition over the columns of ``Queue.peek`` is malformed."""
    browse.predicate(where, interrupt)


def peek_page(
    queue: Queue,
    where: str | None,
    limit: int,
    interrupt: Interrupt | None,
    collect: Callable[[Iterator[PeekedMessage]], _Page],
) -> _Page:
    """``Queue.peek`` whose result ``collect`` makes of the messages one by one, in bounded memory."""
    return browse.peek(queue._runtime, where, limit, interrupt, collect)


def peek_history(
    queue: Queue,
    since: datetime | None,
    where: str | None,
    limit: int,
    interrupt: Interrupt | None,
    collect: Callable[[Iterator[PeekedMessage]], _Page],
) -> _Page:
    """The same for deleted messages that can be rewound and were sent at ``since`` or later (RWD-4)."""
    condition = browse.predicate(where, interrupt)
    return browse.peek_history(queue._runtime, since or from_micros(0), condition, limit, collect)


def delete_selected(queue: Queue, message_ids: Collection[str]) -> SelectedOutcome:
    """Deletes the visible ones of messages, by their ids; a rewind can restore them."""
    return selected.delete(queue._runtime, message_ids)


def make_visible(queue: Queue, message_ids: Collection[str], in_flight: bool = False) -> SelectedOutcome:
    """Makes delayed ones of messages visible now, by their ids; with ``in_flight``, those in flight too."""
    return selected.make_visible(queue._runtime, message_ids, in_flight)


def export(queue: Queue, where: str | None = None, interrupt: Interrupt | None = None) -> Iterator[PeekedMessage]:
    """All messages that meet a condition as for ``Queue.peek``, by time of sending, in bounded memory."""
    return browse.export(queue._runtime, where, interrupt)


# --- depth


def depth(queue: Queue) -> Depth:
    """``Queue.counts`` with its instant, the number of messages ever sent, and the messages of each shard."""
    return depth_of.depth(queue._runtime)


def depths(wanted: Sequence[Queue]) -> Iterator[Depth | LakeQueueError]:
    """The depth of each queue, several at a time, in order; or the error that counting it raised."""
    return depth_of.depths([queue._runtime for queue in wanted])


def depth_history(queue: Queue, since: datetime) -> list[Depth]:
    """The depths of a queue from an instant on, oldest first; the last one is the present."""
    from lakequeue.operations.depth_history import depth_history as read

    return read(queue._runtime, since)


def compacted_depths(lake: LakeQueue, since: datetime) -> dict[str, list[tuple[int, int]]]:
    """Visible messages by the queue's key, as compactors recorded them, each with its minute in microseconds."""
    root = lake._runtime
    with root.storage_errors():
        return stats.depths(root.engine, root.path, to_micros(since))


def group_sums(queue: Queue) -> pa.Table:
    """Every message group: ``group_id``, ``visible``, ``in_flight``, ``oldest_age`` and ``noisy`` (FAI-3)."""
    from lakequeue.operations import group_depth

    return group_depth.group_sums(queue._runtime)


def largest_groups(sums: pa.Table, limit: int) -> list[GroupCounts]:
    """The groups with most messages of what `group_sums` returned."""
    from lakequeue.operations import group_depth

    return group_depth.largest(sums, limit)


# --- the root


def is_local(root: str) -> bool:
    """Whether a root is a directory of this machine; reads nothing."""
    return local_path(root) is not None


def prepare(lake: LakeQueue) -> None:
    """Creates the root if it is missing; QueueClientError if it holds something else or cannot be written."""
    lake._runtime.prepare()


def check_catalog(lake: LakeQueue) -> None:
    """Reads the catalog as a new process would; QueueClientError if that fails."""
    lake._runtime.check()


def last_compaction(lake: LakeQueue) -> int | None:
    """When the last pass over the whole root ended, in microseconds; None if there was none."""
    return passes.ended_at(lake._runtime.engine.store, lake.root)


def doctor(lake: LakeQueue) -> Health:
    """How the root is doing: findings of ``LakeQueue.check``, space, compaction, clock, shards."""
    from lakequeue.operations import doctor

    return doctor.doctor(lake._runtime)
