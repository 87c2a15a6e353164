"""Operations on public objects for consumers, server and command line. Not part of the public API."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from lakequeue.client import LakeQueue
from lakequeue.errors import LakeQueueError, MissingPackage
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import to_micros
from lakequeue.model.damage import DamagedReads
from lakequeue.operations import advice, attributes, browse, chosen_messages, move, receive, send, settle, waits
from lakequeue.operations import concerns as concern
from lakequeue.operations import consumer_round as rounds
from lakequeue.operations import consumers as consumers_of
from lakequeue.operations import depth as depth_of
from lakequeue.operations import depth_history as over_time
from lakequeue.operations.advice import KILLED, Advice, Concern, Remedy
from lakequeue.operations.browse import Search, predicate
from lakequeue.operations.browse import page as page_of
from lakequeue.operations.chosen_messages import ChosenCounts as SelectedOutcome
from lakequeue.operations.claim import FreeHands
from lakequeue.operations.concerns import COMPACTION_CURE, COMPACTION_SECONDS, LetterCounts
from lakequeue.operations.consumer_concerns import SLOW_TIMEOUTS, UNREAD_SECONDS
from lakequeue.operations.consumer_round import Exchanged
from lakequeue.operations.consumers import ActiveConsumer, DamageReport, Running
from lakequeue.operations.depth import Depth
from lakequeue.operations.pool import concurrently
from lakequeue.operations.presence import Presence
from lakequeue.operations.receive import Request, Room
from lakequeue.operations.results import GroupCounts
from lakequeue.operations.send import Outcome as SendOutcome
from lakequeue.operations.send import Send
from lakequeue.operations.settle import Outcome as SettleOutcome
from lakequeue.operations.settle import Wanted
from lakequeue.queue import Queue
from lakequeue.runtime.calls import EVENTS, WITHOUT_ERROR
from lakequeue.runtime.group_commit import GroupCommit
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage import compaction_notes, layout, stats_rows
from lakequeue.storage.reserve import Space, missing, space_of
from lakequeue.storage.roots import local_path
from lakequeue.storage.store_failures import is_full, is_permanent

if TYPE_CHECKING:
    import pyarrow as pa

    from lakequeue.model.clock import Duration, Interrupt
    from lakequeue.operations.copy import CopiedQueue as CopiedQueue
    from lakequeue.operations.delivery import Delivering as Delivering
    from lakequeue.operations.doctor import RootHealth as RootHealth
    from lakequeue.operations.results import SentRows as SentRows
    from lakequeue.operations.shortage import Shortage as Shortage

__all__ = [
    "COMPACTION_CURE",
    "COMPACTION_SECONDS",
    "EVENTS",
    "KILLED",
    "SLOW_TIMEOUTS",
    "UNREAD_SECONDS",
    "GroupCommit",
    "ActiveConsumer",
    "Advice",
    "Concern",
    "DamageReport",
    "Depth",
    "Exchanged",
    "LetterCounts",
    "Running",
    "SelectedOutcome",
    "Send",
    "SendOutcome",
    "SettleOutcome",
    "Remedy",
    "Wanted",
]
__all__ += [
    "FreeHands",
    "Request",
    "Room",
    "Search",
    "concurrently",
    "is_full",
    "is_permanent",
    "local_path",
    "page_of",
    "predicate",
]

_Below = TypeVar("_Below")
_Read = TypeVar("_Read", covariant=True)
_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class _HasRuntime(Protocol[_Read]):
    @property
    def _runtime(self) -> _Read: ...


def of_face(
    operation: Callable[Concatenate[_Below, _P], _Result],
) -> Callable[Concatenate[_HasRuntime[_Below], _P], _Result]:
    """Turns an operation on a ``_runtime`` into the same operation on a LakeQueue, Queue or Lease."""

    @functools.wraps(operation)
    def verb(face: _HasRuntime[_Below], /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        return operation(face._runtime, *args, **kwargs)

    return verb


# --- consumers, asyncio


class Wrapped:
    """Base of the asyncio classes, which wrap a synchronous object. Objects pickled together share threads."""

    _sync: Any

    @property
    def _runtime(self) -> Any:
        return self._sync._runtime

    @property
    def _known(self) -> Any:
        return self._sync._known

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    async def _open(self) -> None:
        if "_runtime" not in vars(self._sync):
            await self._threads(lambda: self._runtime)  # type: ignore[attr-defined]  # of `aio`'s faces


exchange = of_face(rounds.exchange)
wait_for_more = of_face(waits.wait_for_more)
receive_for_hands = of_face(receive.receive_with_waits)
give_back = of_face(settle.give_back)
gone = of_face(settle.gone)
receive_async = of_face(receive.receive_async)
is_held_back = of_face(depth_of.is_held_back)


def claim_delivery(
    queue: Queue, most: int, visibility_timeout: Duration | None, consumer: str
) -> Delivering | None:
    """Claims messages for a delivery by a consumer. Returns None if no message is available."""
    from lakequeue.operations import delivery

    return delivery.claim(queue._runtime, most, visibility_timeout, consumer)


def settings(queue: Queue) -> QueueAttributes:
    """Returns a queue's attributes as this process last read them."""
    return queue._runtime.attributes


def met_damage(queue: Queue) -> DamagedReads:
    """Returns the damaged messages of a queue that receives of this process met."""
    return queue._runtime.damage


def forget_repaired_damage(queue: Queue) -> bool:
    """Forgets damage that receives met and that is repaired. Returns True if no damage is left."""
    from lakequeue.operations.check import repaired

    damage = met_damage(queue)
    damage.forget(repaired(queue._runtime))
    return damage.error is None


def repair_command(queue: Queue) -> str:
    """Returns the command that repairs a queue, with root and region."""
    return advice.repairing(queue._runtime.root.path, queue.region, queue.name)


def located_table(queue: Queue, table: str) -> str:
    """Makes the path of a delivery table absolute. Raises InvalidAttributeValue for a bad path."""
    from lakequeue.operations import deliveries

    return str(deliveries.located({"table": table}, queue._runtime.root)["table"])


def linger(queue: Queue) -> int:
    """Returns how many microseconds handled messages may wait for the next claim."""
    return queue._runtime.root.linger


def claim_interval(queue: Queue) -> int:
    """Returns the default of a consumer's ``claim_interval``, in microseconds."""
    return queue._runtime.root.claim_interval


def took_all(queue: Queue) -> bool:
    """True if the last claims of this process left no message in any shard."""
    return all(shard.ledger.took_all() for shard in queue._runtime.shards)


def relay_begins(
    queue: Queue, table: str, start: str | int | datetime, table_options: Mapping[str, str] | None
) -> tuple[int, bool]:
    """Returns the version of a table that a relay sends next, and True if the relay is new."""
    MissingPackage.check("relay", "delta", "deltalake")
    from lakequeue.operations import relay

    wanted = relay.RelayOptions(table, start=start, table_options=table_options)  # type: ignore[arg-type]
    return relay.begins(queue._runtime, wanted)


def root_of(queue: Queue) -> str:
    """Returns the directory or URI that holds the queue."""
    return queue._runtime.root.path


def races(queue: Queue) -> dict[int, tuple[int, int]]:
    """Returns the numbers of commits and of lost races of this process, by shard."""
    return queue._runtime.shards[0].shared.races.by_shard()


# --- the server: sends and settles of several requests, records of redrives by SQS clients, chosen messages

send_one = of_face(send.send)
send_each = of_face(send.send_each)
settle_each = of_face(settle.settle_each)
move_tasks = of_face(attributes.move_tasks)
update_move_tasks = of_face(attributes.update_move_tasks)
delete_selected = of_face(chosen_messages.delete)
make_visible = of_face(chosen_messages.make_visible)
redrivable = of_face(move.redrivable)


def redrive_checked(
    queue: Queue,
    most: int,
    check: Callable[[str], object],
    where: browse.Where = None,
    interrupt: Interrupt | None = None,
    destination: Queue | None = None,
) -> int:
    """Moves messages as ``Queue.redrive`` does. Calls ``check``, which may raise, with each source's name."""
    target = None if destination is None else destination._runtime
    return move.redrive(queue._runtime, most, where, lambda moved: None, target, interrupt, check)


def all_move_tasks(lake: LakeQueue) -> dict[str, str]:
    """Returns the region's move tasks, by queue name."""
    rows = [row for row in lake._runtime.rows() if row.region == lake.region and row.deleted_at is None]
    return {row.name: row.move_tasks for row in rows if row.move_tasks}


def is_upgraded(lake: LakeQueue) -> bool:
    """Returns True if the root has the present layout. False also if the root cannot be read."""
    try:
        lake._runtime.rows()
    except LakeQueueError:
        return False
    return True


def tally(queue: Queue) -> Counter[str]:
    """Returns the queue's number of each event in ``EVENTS``. Counts only events of this ``LakeQueue``."""
    return queue._runtime.root.tallies.of(queue.name)


def moved_without_error(queue: Queue) -> int:
    """Returns the number of dead letters whose last receive ended without an error. See ``tally``."""
    return tally(queue)[WITHOUT_ERROR]


def tallies(lake: LakeQueue) -> dict[str, Counter[str]]:
    """Returns the counts of ``tally`` by queue name. Omits queues without counts."""
    return lake._runtime.tallies.all()


# --- browsing

search = of_face(browse.Search)
export = of_face(browse.export)

# --- depth

depth = of_face(depth_of.depth)
depth_history = of_face(over_time.depth_history)
unknown_spans = over_time.unknown_spans


def depths(wanted: Sequence[Queue]) -> Iterator[Depth | LakeQueueError]:
    """Yields the depth of each queue, or the error of reading it. Reads several queues at a time."""
    return depth_of.depths([queue._runtime for queue in wanted])


def compacted_depths(lake: LakeQueue, since: datetime) -> dict[str, list[tuple[int, int]]]:
    """Returns past depths by queue key, as pairs of instant (the minute, in microseconds) and visible messages."""
    root = lake._runtime
    with root.storage_errors():
        return stats_rows.depths(root.engine, root.path, to_micros(since))


def group_sums(queue: Queue) -> pa.Table:
    """Returns each group's ``group_id``, ``visible``, ``in_flight``, ``oldest_age`` and ``noisy`` (FAI-3)."""
    from lakequeue.operations import group_depth

    return group_depth.group_sums(queue._runtime)


def largest_groups(sums: pa.Table, limit: int) -> list[GroupCounts]:
    """Returns the groups with the most messages. ``sums`` is the result of ``group_sums``."""
    from lakequeue.operations import group_depth

    return group_depth.largest(sums, limit)


consumers = of_face(consumers_of.consumers)
idle_consumers = of_face(consumers_of.idle)
running_consumers = of_face(consumers_of.running_consumers)
damage_reports = consumers_of.damage_reports
report_consumer = of_face(consumers_of.report_consumer)


def presence(
    name: str,
    queues: Sequence[Queue],
    began: Callable[[], Collection[int]],
    outage: Callable[[], tuple[datetime | None, str | None, str | None]],
) -> Presence:
    """Returns an object that reports a consumer's run to other processes, until ``stop``; see ``Presence``."""
    return Presence(name, [queue._runtime for queue in queues], began, outage)


def all_consumers(wanted: Sequence[Queue], running: Running) -> Iterator[list[ActiveConsumer] | LakeQueueError]:
    """Yields the consumers of each queue, or the error of reading them."""
    return consumers_of.all_consumers([queue._runtime for queue in wanted], running)


an_hour_before = concern.an_hour_before


def concerns(
    queue: Queue, now: Depth, busy: Sequence[ActiveConsumer], sources: Sequence[str], before: int | None
) -> list[Concern]:
    """Returns the concerns about a queue; see ``operations.concerns.found``."""
    return [*concern.found(queue.name, settings(queue), now, busy, sources, before)]


def unreceived(queue: Queue, now: Depth, busy: Sequence[ActiveConsumer]) -> float:
    """Returns for how many seconds no visible message was received; see ``concerns.unreceived``."""
    return concern.unreceived(settings(queue), now, busy)


letters_of = of_face(concern.letters_of)


@of_face
def copying(queue: OpenQueue) -> Remedy | None:
    """Returns the command that copies a queue's tables before a repair."""
    return advice.copying([layout.tables_path(queue.root.path, queue.key)])


def copying_table(table: str) -> Remedy | None:
    """Returns the command that copies a table before a repair."""
    return advice.copying([table])


def schedule_concerns(lake: LakeQueue) -> list[Concern]:
    """Returns failing or overdue schedules by name. Omits paused schedules."""
    return [*lake.schedules._runtime.concerns()]


# --- the root


def store_requests(lake: LakeQueue) -> dict[str, int]:
    """Returns this process's requests to the object store, by kind. Empty on a disk."""
    return lake._runtime.engine.store.requests.counts()


prepare = of_face(Root.prepare)
check_catalog = of_face(lambda root: root.check())


def last_compaction(lake: LakeQueue) -> int | None:
    """Returns when the last compaction of the root ended, in microseconds; None if there was no compaction."""
    return compaction_notes.load(lake._runtime.engine.store, lake.root).ended_at


def space(lake: LakeQueue) -> Space | None:
    """Returns the space of the root's file system. None on an object store."""
    return space_of(lake.root)


def shortage(lake: LakeQueue) -> Shortage | None:
    """Returns the shortage of bytes or inodes on the root's disk, or None if enough are free."""
    from lakequeue.operations import shortage  # imports modules that inspect tables

    return shortage.shortage(lake._runtime)


def unreserved(lake: LakeQueue) -> list[str]:
    """Returns warnings about a reserve for a full disk that is missing, or an empty list."""
    return [*missing(lake._runtime.path)]


def doctor(lake: LakeQueue) -> RootHealth:
    """Returns the health of the root: findings of ``LakeQueue.check``, space, compaction, clock, shards."""
    from lakequeue.operations import doctor

    return doctor.doctor(lake._runtime)
