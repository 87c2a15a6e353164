"""Queues for asyncio. Methods have the names and errors of the synchronous classes.

A waiting receive holds no thread. Other calls run in threads of the ``LakeQueue``. Concurrent calls share commits.

If a call is cancelled before a thread has begun it, the call has no effect. Otherwise the thread finishes the
call, so that a send or change may still take effect. A cancelled ``receive`` or ``lease`` makes claimed messages
visible at once; if that fails, they become visible after their visibility timeout. Their receive count includes
this receive.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

import attrs

from lakequeue import client as sync_client
from lakequeue import lease as sync_lease
from lakequeue import queue as sync_queue
from lakequeue import schedules as sync_schedules
from lakequeue import sender as sync_sender
from lakequeue.entry_verbs import Request, Wrapped, receive_async
from lakequeue.model import messages
from lakequeue.model.arguments import check_type, check_whole
from lakequeue.model.clock import Clock, Duration, Interrupt
from lakequeue.model.off_loop import LoopThreads, OwnThreads
from lakequeue.renewal.policies import Renewal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakequeue.entry_verbs import CopiedQueue, SentRows

__all__ = ["LakeQueue", "Lease", "Message", "Queue", "Schedules", "Sender"]

THREADS = 64
"""Default number of threads. Further calls wait for a free thread."""
MOST_THREADS = 1_024

_P = ParamSpec("_P")
_Sync = TypeVar("_Sync")
_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer")


class _AsyncFace(Generic[_Sync]):
    """A synchronous object, and the threads that run its methods."""

    def __init__(self, sync: _Sync, threads: LoopThreads) -> None:
        self._sync = sync
        self._threads = threads

    @property
    def sync(self) -> _Sync:
        """The synchronous object, with blocking methods."""
        return self._sync

    def __repr__(self) -> str:
        return f"aio.{self._sync!r}"


def _verb(
    method: Callable[Concatenate[Any, _P], _Result], undo: Callable[[_Result], object] | None = None
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _Result]]:
    """Turns a method into a coroutine. ``undo`` reverts the call if its caller was cancelled."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    async def verb(self: _AsyncFace[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        bound = signature.bind(self._sync, *args, **kwargs)
        if "interrupt" not in signature.parameters or bound.arguments.get("interrupt") is not None:
            return await self._threads(lambda: method(*bound.args, **bound.kwargs), undo)
        bound.arguments["interrupt"] = interrupt = Interrupt()
        try:
            return await self._threads(lambda: method(*bound.args, **bound.kwargs), undo)
        except BaseException:
            interrupt.set()  # Ends a search whose caller no longer waits.
            raise

    return verb


def _answering(
    method: Callable[Concatenate[Any, _P], _Result],
    answer: Callable[[_Result, LoopThreads], _Answer],
    undo: Callable[[_Result], object] | None = None,
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _Answer]]:
    """Turns a method into a coroutine. Wraps the result for asyncio."""
    run = _verb(method, undo)

    @functools.wraps(method)
    async def verb(self: _AsyncFace[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
        return answer(await run(self, *args, **kwargs), self._threads)

    return verb


class Message(messages.Message):
    """A received message as ``lakequeue.Message``, with coroutines as methods."""

    __slots__ = ()

    async def delete(self) -> None:  # type: ignore[override]
        """Deletes the message; see ``Queue.delete``."""
        await messages.settler_of(self).delete(self.receipt_handle)

    async def change_visibility(self, visibility_timeout: Duration) -> None:  # type: ignore[override]
        """Changes the timeout, in seconds; 0 makes the message visible. See ``Queue.change_visibility``."""
        await messages.settler_of(self).change_visibility(self.receipt_handle, visibility_timeout)


_FIELDS = [field.name for field in attrs.fields(messages.Message)]


def _receiving(
    method: Callable[Concatenate[Any, _P], list[messages.Message]],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, list[Message]]]:
    """Turns a receive into a coroutine. Waits without a thread. A cancelled receive releases its messages."""

    @functools.wraps(method)
    async def verb(self: Queue, /, *args: _P.args, **kwargs: _P.kwargs) -> list[Message]:
        request = Request(*args, **kwargs)  # type: ignore[arg-type]  # its fields are the arguments of receive
        await self._open()
        found = await receive_async(self._sync, request, self._threads)
        return [self._own(message) for message in found]

    return verb


def _collected(
    method: Callable[Concatenate[Any, _P], Future[messages.SendResult]],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, messages.SendResult]]:
    """Turns a send that returns a future into a coroutine. If the buffer is full, a thread waits for space."""

    @functools.wraps(method)
    async def verb(self: Sender, /, *args: _P.args, **kwargs: _P.kwargs) -> messages.SendResult:
        async with self._turn:
            await self._queue._open()
            if self._sync._collector.full:
                await self._threads(self._sync._collector.wait_for_space)
            sent = method(self._sync, *args, **kwargs)
        return await asyncio.wrap_future(sent)

    return verb


class Lease(_AsyncFace[sync_lease.Lease]):
    """``lakequeue.Lease`` for asyncio; get one from ``Queue.lease``."""

    @property
    def message_count(self) -> int:
        """Number of claimed messages."""
        return self._sync.message_count

    @property
    def visible_at(self) -> datetime:
        """Instant at which the messages become visible again, unless the lease is extended."""
        return self._sync.visible_at

    async def messages(self) -> DataFrame:
        """Returns the messages as a lazy DataFrame. Actions on the DataFrame block, so run them in a thread."""
        return await self._threads(lambda: self._sync.messages)

    async def delivery(self) -> sync_lease.Delivery:
        """Returns the delivery of this lease, for your own write; see ``lakequeue.Lease.delivery``."""
        return await self._threads(lambda: self._sync.delivery)

    append = _verb(sync_lease.Lease.append)
    delivered = _verb(sync_lease.Lease.delivered)
    batches = _verb(sync_lease.Lease.batches)
    arrow = _verb(sync_lease.Lease.arrow)
    extend = _verb(sync_lease.Lease.extend)
    delete = _verb(sync_lease.Lease.delete)
    release = _verb(sync_lease.Lease.release)
    delete_except = _verb(sync_lease.Lease.delete_except)

    @asynccontextmanager
    async def keep_alive(self, policy: Renewal) -> AsyncIterator[Lease]:
        """Extends the lease while the block runs. Stops when the block settles the lease. See ``lakequeue.Lease``.

        Spark jobs of the block run in other threads. A lost lease does not cancel Spark jobs.
        """
        kept = self._sync.keep_alive(policy)
        await self._threads(kept.__enter__, lambda _: kept.__exit__(None, None, None))
        try:
            yield self
        except BaseException as error:
            reason = error  # Python unbinds `error` after the clause.
            if not await self._threads(lambda: kept.__exit__(type(reason), reason, reason.__traceback__)):
                raise
        else:
            await self._threads(lambda: kept.__exit__(None, None, None))


def _queues(queues: list[sync_queue.Queue], threads: LoopThreads) -> list[Queue]:
    return [Queue(queue, threads) for queue in queues]


def _page(page: sync_client.QueuePage[sync_queue.Queue], threads: LoopThreads) -> sync_client.QueuePage[Queue]:
    return sync_client.QueuePage(_queues(page, threads), page.next_after)


class Queue(Wrapped, _AsyncFace[sync_queue.Queue], sync_queue.QueueProperties):
    """``lakequeue.Queue`` for asyncio; get one from ``LakeQueue``."""

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the tables and clears the caches of this process. Deletes nothing."""
        await self._threads(self._sync.__exit__)

    async def min_rewind_time(self) -> datetime | None:
        """Returns the earliest instant that ``rewind`` accepts now; None without a history (RWD-24)."""
        return await self._threads(lambda: self._sync.min_rewind_time)

    receive = _receiving(sync_queue.Queue.receive)

    def _own(self, message: messages.Message) -> Message:
        own = Message(**{name: getattr(message, name) for name in _FIELDS})
        messages.attach(own, self)
        return own

    async def redrive(
        self,
        max_messages: int | None = None,
        where: str | None = None,
        progress: Callable[[int], None] = lambda moved: None,
        destination: Queue | None = None,
        interrupt: Interrupt | None = None,
        *,
        parameters: Sequence[Any] = (),
    ) -> int:
        """Moves messages of a dead-letter queue back, as ``lakequeue.Queue.redrive`` does.

        ``progress`` is called in a thread. Cancelling the call does not undo moves that are already committed.
        """
        target = _sync_of(destination)
        return await self._redrive(max_messages, where, progress, target, interrupt, parameters=parameters)

    async def redrivable(
        self,
        where: str | None = None,
        interrupt: Interrupt | None = None,
        destination: Queue | None = None,
        *,
        parameters: Sequence[Any] = (),
    ) -> dict[str, int]:
        """Returns how many messages a redrive would move, by name of the target queue."""
        return await self._redrivable(where, interrupt, _sync_of(destination), parameters=parameters)

    def sender(self, linger: Duration | str = "100ms") -> Sender:
        """Returns an object whose single sends share commits; see ``lakequeue.Queue.sender``."""
        return Sender(self, self._sync.sender(linger), self._threads)

    send = _verb(sync_queue.Queue.send)
    send_batch = _verb(sync_queue.Queue.send_batch)
    delete = _verb(sync_queue.Queue.delete)
    delete_batch = _verb(sync_queue.Queue.delete_batch)
    change_visibility = _verb(sync_queue.Queue.change_visibility)
    change_visibility_batch = _verb(sync_queue.Queue.change_visibility_batch)
    send_arrow = _verb(sync_queue.Queue.send_arrow)
    send_dataframe = _verb(sync_queue.Queue.send_dataframe)
    lease = _answering(
        sync_queue.Queue.lease,
        lambda lease, threads: None if lease is None else Lease(lease, threads),
        lambda lease: None if lease is None else lease.release(),
    )
    get = _verb(sync_queue.Queue.get)
    cancel = _verb(sync_queue.Queue.cancel)
    reschedule = _verb(sync_queue.Queue.reschedule)
    pause = _verb(sync_queue.Queue.pause)
    resume = _verb(sync_queue.Queue.resume)
    purge = _verb(sync_queue.Queue.purge)
    undecided = _verb(sync_queue.Queue.undecided)
    decide = _verb(sync_queue.Queue.decide)
    rewind = _verb(sync_queue.Queue.rewind)
    rewindable = _verb(sync_queue.Queue.rewindable)
    attributes = _verb(sync_queue.Queue.attributes)
    set_attributes = _verb(sync_queue.Queue.set_attributes)
    update_attributes = _verb(sync_queue.Queue.update_attributes)
    counts = _verb(sync_queue.Queue.counts)
    priority_counts = _verb(sync_queue.Queue.priority_counts)
    shard_counts = _verb(sync_queue.Queue.shard_counts)
    groups = _verb(sync_queue.Queue.groups)
    peek = _verb(sync_queue.Queue.peek)
    _redrive = _verb(sync_queue.Queue.redrive)
    _redrivable = _verb(sync_queue.Queue.redrivable)
    compact = _verb(sync_queue.Queue.compact)
    erase = _verb(sync_queue.Queue.erase)
    dead_letter_sources = _answering(sync_queue.Queue.dead_letter_sources, _queues)
    tags = _verb(sync_queue.Queue.tags)
    set_tags = _verb(sync_queue.Queue.set_tags)
    remove_tags = _verb(sync_queue.Queue.remove_tags)


class Sender(_AsyncFace[sync_sender.Sender]):
    """``lakequeue.Sender`` for asyncio. Get one from ``Queue.sender``. ``async with`` calls ``flush`` at the end.

    ``send`` returns when the message is stored. Concurrent tasks share commits. Messages are stored in the order
    of the calls. If a call is cancelled before the commit of its message begins, the message is not sent.
    """

    def __init__(self, queue: Queue, sync: sync_sender.Sender, threads: LoopThreads) -> None:
        super().__init__(sync, threads)
        self._queue = queue
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._threads(lambda: self._sync.__exit__(*raised))

    send = _collected(sync_sender.Sender.send)
    flush = _verb(sync_sender.Sender.flush)


def _sync_of(destination: Queue | None) -> sync_queue.Queue | None:
    if destination is None:
        return None
    check_type("destination", destination, Queue, "an aio.Queue")
    return destination.sync


class Schedules(_AsyncFace[sync_schedules.Schedules]):
    """``lakequeue.Schedules`` for asyncio; get them from ``LakeQueue.schedules``."""

    add = _verb(sync_schedules.Schedules.add)
    list = _verb(sync_schedules.Schedules.list)
    pause = _verb(sync_schedules.Schedules.pause)
    resume = _verb(sync_schedules.Schedules.resume)
    remove = _verb(sync_schedules.Schedules.remove)
    run_now = _verb(sync_schedules.Schedules.run_now)
    run_due = _verb(sync_schedules.Schedules.run_due)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends due messages while the block runs; see ``lakequeue.Schedules.running``."""
        block = self._sync.running()
        await self._threads(block.__enter__)
        try:
            yield
        finally:
            await self._threads(lambda: block.__exit__(None, None, None))


class LakeQueue(Wrapped, _AsyncFace[sync_client.LakeQueue], sync_client.RootProperties):
    """``lakequeue.LakeQueue`` for asyncio. The end of ``async with`` waits for cancelled calls.

    Args:
        threads: maximum number of threads, 1 to 1,024. For other arguments, see ``lakequeue.LakeQueue``.
    """

    _threads: OwnThreads

    def __init__(
        self,
        root: str,
        *,
        spark: SparkSession | None = None,
        engine: Literal["auto", "point", "spark"] = "auto",
        clock: Clock | None = None,
        region: str = "local",
        root_mode: int = 0o700,
        storage_options: Mapping[str, str] | None = None,
        network_file_system: bool = False,
        durability: Literal["power", "process"] | None = None,
        poll_interval: Duration | None = None,
        threads: int = THREADS,
    ) -> None:
        check_whole("threads", threads, MOST_THREADS)
        lake = sync_client.LakeQueue(
            root,
            spark=spark,
            engine=engine,
            clock=clock,
            region=region,
            root_mode=root_mode,
            storage_options=storage_options,
            network_file_system=network_file_system,
            durability=durability,
            poll_interval=poll_interval,
        )
        super().__init__(lake, OwnThreads(threads))

    async def __aenter__(self) -> LakeQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends the threads, closes the tables and clears caches. Deletes nothing."""

        def close() -> None:
            self._threads.close()
            self._sync.__exit__()

        await LoopThreads()(close)  # Runs outside the threads that it ends.

    @property
    def schedules(self) -> Schedules:
        """The schedules of the region: messages to be sent at given times (JOB-7)."""
        return Schedules(self._sync.schedules, self._threads)

    create_queue = _answering(sync_client.LakeQueue.create_queue, Queue)
    queue = _answering(sync_client.LakeQueue.queue, Queue)
    list_queues = _answering(sync_client.LakeQueue.list_queues, _page)
    delete_queue = _verb(sync_client.LakeQueue.delete_queue)
    register_views = _verb(sync_client.LakeQueue.register_views)
    view_statements = _verb(sync_client.LakeQueue.view_statements)
    create_views = _verb(sync_client.LakeQueue.create_views)
    arrow_views = _verb(sync_client.LakeQueue.arrow_views)
    check = _verb(sync_client.LakeQueue.check)
    compact = _verb(sync_client.LakeQueue.compact)
    repair = _verb(sync_client.LakeQueue.repair)
    upgrade = _verb(sync_client.LakeQueue.upgrade)

    async def copy(
        self, to: LakeQueue, queue: str | None = None, progress: Callable[[int, int, str], None] | None = None
    ) -> list[CopiedQueue]:
        """Copies queues as ``lakequeue.LakeQueue.copy`` does. ``progress`` is called in threads."""
        check_type("to", to, LakeQueue, "an aio.LakeQueue")
        return await self._copy(to.sync, queue, progress)

    _copy = _verb(sync_client.LakeQueue.copy)

    @functools.wraps(sync_client.LakeQueue.relay)
    async def relay(self, table: str | None = None, queue: Queue | None = None, **options: Any) -> SentRows:
        check_type("queue", queue, Queue, "an aio.Queue")
        return await self._relay(table, _sync_of(queue), **options)

    _relay = _verb(sync_client.LakeQueue.relay)
