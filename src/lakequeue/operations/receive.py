"""Receives messages: polls until a claim succeeds, then reads the claimed messages."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from time import monotonic
from typing import Any, Protocol

import attrs

from lakequeue.errors import DamagedTable, OverLimit, QueueClientError, counted
from lakequeue.model import receipt_handles
from lakequeue.model.arguments import (
    check_attempt_id,
    check_consumer,
    check_interrupt,
    check_max_messages,
    check_wait,
    list_of,
)
from lakequeue.model.clock import Duration, Interrupt, from_micros
from lakequeue.model.messages import Message
from lakequeue.model.names import sequence_number
from lakequeue.model.off_loop import OffLoop, in_loop_threads
from lakequeue.model.waiting_work import Waits, run
from lakequeue.operations.advice import repairing
from lakequeue.operations.claim import ClaimedPart, ClaimPlan, FreeHands
from lakequeue.operations.results import received_message
from lakequeue.operations.settle import Settler, visibility
from lakequeue.operations.waits import VainWait, is_drained, is_left_empty, waiting
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.runtime.waiters import Waiter
from lakequeue.shard.commands import Claim, LeaseRelease, Spans
from lakequeue.shard.spans import ranges
from lakequeue.storage.engines.commit_failures import is_storage_failure
from lakequeue.storage.store_failures import first_line

FALLBACK_POLL_FACTOR = 10
"""The first waiter of a process polls this many times as often as other waiters, which it usually wakes."""

MOST_FAILURES = 32
"""Number of failed reads after which a receive no longer halves a range to find the unreadable messages."""
LONGEST_READ = 5.0
"""Seconds of reading after which a receive no longer halves a range to find the unreadable messages."""
UNREADABLE_BYTES = 2**20
"""Assumed bytes of an unreadable message: the maximum size of a message."""

Row = dict[str, Any]
"""A message as a dict of values by column."""

_log = logging.getLogger("lakequeue")


def _names(given: Sequence[str]) -> list[str]:
    return list_of("attribute_names", given, str, "a text")


class Room(Protocol):
    """Memory that a receive reserves before it reads messages."""

    def take(self, size: int) -> bool:
        """Reserves ``size`` bytes for messages. Returns False if not enough bytes are free. Thread-safe."""
        ...

    async def wait(self, size: int) -> None:
        """Waits until ``size`` bytes are free, and reserves them. On an error, claimed messages become visible."""
        ...


@attrs.frozen
class Request:
    """Arguments of a receive, as the caller gave them. Only their types are checked."""

    max_messages: int | None = None
    visibility_timeout: Duration | None = None
    wait_time: Duration | None = None
    attempt_id: str | None = None
    attribute_names: Sequence[str] = attrs.field(default=("All",), converter=_names)
    interrupt: Interrupt | None = attrs.field(default=None, validator=lambda *field: check_interrupt(field[-1]))
    consumer: str | None = None
    hands: FreeHands | None = None
    enough: int = attrs.field(default=0, kw_only=True)
    """If this many messages were claimed, the receive asks no further shard. 0 stands for ``max_messages``."""
    decides: bool = attrs.field(default=True, kw_only=True)
    """True if the receive may decide deliveries, which may write to the delivery table (TAB-26)."""
    idle: bool | None = attrs.field(default=None, kw_only=True)
    """True for a consumer without running handlers, None without a consumer. Both poll before busy consumers."""
    one_each: bool = attrs.field(default=False, kw_only=True)
    """True to receive at most one message of each FIFO group."""


@attrs.frozen
class _Poll:
    """A receive with checked arguments. Durations are in microseconds."""

    wanted: Claim
    """The claim to make. Each poll replaces its lease id by a new one."""
    deadline: Callable[[], int]
    """Function that returns when the wait ends, in microseconds. Called after each poll: attributes may change."""
    refuse_late: bool
    """True if a receive raises OverLimit at the in-flight limit even after it has waited (INF-7)."""
    request: Request


@attrs.frozen
class _Claimed:
    """Messages that a poll has claimed, but has not read yet."""

    queue: OpenQueue
    lease_id: str
    parts: Sequence[ClaimedPart]
    refusal: OverLimit | None
    left_nothing: bool
    """True if, after the claim, no message was left for another process to claim."""

    @property
    def own(self) -> list[ClaimedPart]:
        return [part for part in self.parts if part.claimed.lease_id == self.lease_id]

    @property
    def size(self) -> int:
        return sum(_size(part) for part in self.parts)


@attrs.frozen
class _Received:
    claimed: _Claimed
    messages: list[Message]


_Step = _Claimed | _Received | datetime


def _release(step: _Step) -> None:
    """Makes claimed messages visible, because no caller gets them."""
    claimed = step.claimed if isinstance(step, _Received) else step
    if isinstance(claimed, datetime):
        return
    for part in claimed.own:
        try:
            claimed.queue.command(part.shard, LeaseRelease(claimed.lease_id, part.spans, unseen=True))
        except Exception as error:
            name, reason = claimed.queue.name, first_line(error)
            _log.warning("messages of %s stay in flight until their visibility timeout: %s", name, reason)


def receive(queue: OpenQueue, request: Request) -> list[Message]:
    """Receives messages. Waits for messages in the calling thread."""
    wake, clock = threading.Event(), queue.root.clock
    woken = request.interrupt.waking(wake.set) if request.interrupt else nullcontext()
    with clock.participant(), woken:
        return run(receive_with_waits(queue, request, wake), clock, wake)


def receive_with_waits(queue: OpenQueue, request: Request, wake: threading.Event) -> Waits[list[Message]]:
    """Receives messages as a generator, which yields the instant until which it waits, and finally returns the
    messages. New messages, or an interrupt, set the event ``wake`` to end a wait early.
    """
    with queue.service("receive") as call:
        poll = _checked(queue, request)
        with _waiting(queue, poll, wake.set) as waiter:
            polls = _Polls(queue, poll, waiter, wake.clear)
            while True:
                claimed = polls.claim()
                step = polls.read(claimed) if isinstance(claimed, _Claimed) else claimed
                if isinstance(step, _Received):
                    call.messages = len(step.messages)
                    return step.messages
                yield step


async def receive_async(
    queue: OpenQueue, request: Request, off_loop: OffLoop = in_loop_threads, room: Room | None = None
) -> list[Message]:
    """Receives messages for asyncio without a waiting thread. If cancelled, makes claimed messages visible."""
    import asyncio

    loop = asyncio.get_running_loop()
    with queue.service("receive") as call, queue.root.clock.participant():
        poll = _checked(queue, request)
        wake = asyncio.Event()

        def wake_up() -> None:
            loop.call_soon_threadsafe(wake.set)

        woken = request.interrupt.waking(wake_up) if request.interrupt else nullcontext()
        with _waiting(queue, poll, wake_up) as waiter, woken:
            polls = _Polls(queue, poll, waiter, lambda: None)

            def poll_once() -> _Step:
                step = polls.claim()
                if isinstance(step, datetime):
                    return step
                if room is not None and step.parts and not room.take(step.size):
                    return step
                return polls.read(step)

            while isinstance(step := await off_loop(poll_once, _release), datetime):
                await queue.root.clock.wait_async(step, wake)
                wake.clear()
            if waiter is not None and isinstance(step, _Claimed):
                waiter.found = True
        # no waiter any more, as it does not poll while it waits for room
        if room is not None and isinstance(step, _Claimed):
            claimed = step
            try:
                await room.wait(claimed.size)
            except BaseException:
                loop.run_in_executor(None, _release, claimed)
                raise
            step = await off_loop(lambda: polls.read(claimed), _release)
        found = step.messages if isinstance(step, _Received) else []
        call.messages = len(found)
        return found


def _checked(queue: OpenQueue, request: Request) -> _Poll:
    return queue.validated(lambda: _poll(queue, request))[1]


def _poll(queue: OpenQueue, request: Request) -> _Poll:
    started, given = queue.now(), request.visibility_timeout
    check_wait(queue.attributes, request.wait_time)

    def deadline() -> int:
        if request.interrupt is not None and request.interrupt.is_set():
            return started
        # a shard may know newer attributes than this queue; they may have another wait time (QUE-25)
        queue.follow()
        return started + check_wait(queue.attributes, request.wait_time)

    wanted = Claim(
        check_max_messages(queue.attributes, request.max_messages),
        None if given is None else visibility(queue, given),
        "",
        check_attempt_id(queue.attributes, request.attempt_id),
        consumer=check_consumer(request.consumer),
        one_each=request.one_each,
    )
    refuse_late = queue.attributes.profile_rules.over_limit_on == "end_of_wait"
    return _Poll(wanted, deadline, refuse_late, request)


def _waiting(queue: OpenQueue, poll: _Poll, wake: Callable[[], None]) -> AbstractContextManager[Waiter | None]:
    """Adds a waiter for the block; changes call ``wake``. Yields the waiter; None if the receive does not wait."""
    return nullcontext() if poll.deadline() <= queue.now() else waiting(queue, wake, poll.request.idle)


class _Polls:
    """The polls of a receive: ``claim``, then ``read``. Without messages, both return the next poll's instant."""

    def __init__(self, queue: OpenQueue, poll: _Poll, waiter: Waiter | None, clear: Callable[[], None]) -> None:
        self._queue = queue
        self._poll = poll
        self._waiter = waiter
        self._clear = clear
        self._started = now = queue.now()
        self._waiters = queue.shards[0].shared.waiters
        # from the shortest to the longest interval between polls for changes by other processes (LPL-6)
        idle = self._waiters.idle_for(now)
        self._pause, self._longest = queue.root.first_pause(idle), queue.root.longest_pause(idle)
        self._steps = Steps("the receive")
        self._new = True
        self._known: int | None = None  # changes of the watched logs before the last claim
        self._vain: VainWait | None = None

    def claim(self) -> _Claimed | datetime:
        """Claims messages. If no messages can come before the next poll, returns the poll's instant instead."""
        queue, waiter, stop = self._queue, self._waiter, self._poll.request.interrupt
        if self._vain is not None and not self._vain.is_over():
            return self._vain.next()
        self._vain = None
        self._clear()
        if waiter is not None:
            waiter.woken = False
            self._known = None if waiter.place is None else waiter.place.changes
        lease_id = receipt_handles.new_lease_id()
        # a receive that waits has no need to decide what the last one decided, nor has one that is to end
        ending, new, self._new = stop is not None and stop.is_set(), self._new, False
        if waiter is not None and (
            (waiter.place is not None and (new or ending) and is_drained(queue))
            or (not new and is_left_empty(queue))
        ):
            return _Claimed(queue, lease_id, (), None, left_nothing=True)
        request = self._poll.request
        wanted = attrs.evolve(self._poll.wanted, lease_id=lease_id)
        plan = ClaimPlan(queue, wanted, request.enough, request.hands, steps=self._steps, decides=request.decides)
        return _Claimed(queue, lease_id, *plan.run(), left_nothing=plan.left_nothing)

    def read(self, claimed: _Claimed) -> _Received | datetime:
        """Reads claimed messages. Without messages, returns when to poll next, or raises OverLimit (INF-7)."""
        queue, waiter = self._queue, self._waiter
        messages = read(queue, claimed.parts, self._poll.request.attribute_names, claimed.lease_id)
        if waiter is not None:
            self._waiters.announce(max(shard.ledger.attributes_version for shard in queue.shards))
            waiter.found = bool(messages)
            hands, most = self._poll.request.hands, self._poll.wanted.max_messages
            waiter.full = len(messages) >= (most if hands is None else min(most, hands.free()))
        found = _Received(claimed, messages)
        now, deadline = queue.now(), self._started
        try:
            with self._steps.rest():
                deadline = self._poll.deadline()  # may read attributes that the claim found to be new
        except Exception:
            if not messages:
                raise  # the caller gets claimed messages; its next call reads the attributes
        if messages or now >= deadline:
            if claimed.refusal and not messages and (self._poll.refuse_late or deadline <= self._started):
                raise claimed.refusal
            count(queue, messages)
            return found
        return self._wait(now, deadline, self._known if claimed.left_nothing else None)

    def _wait(self, now: int, deadline: int, known: int | None) -> datetime:
        queue, waiter, attempt_id = self._queue, self._waiter, self._poll.wanted.attempt_id
        if waiter is not None and not waiter.first and attempt_id is None:
            return from_micros(min(deadline, now + FALLBACK_POLL_FACTOR * self._longest))
        watched, stop = None if attempt_id else waiter, self._poll.request.interrupt
        self._vain = VainWait(queue, watched, self._clear, stop, deadline, self._pause, known)
        self._pause = min(2 * self._pause, queue.root.longest_pause(self._waiters.idle_for(now)))
        return self._vain.next()


def read(
    queue: OpenQueue, parts: Sequence[ClaimedPart], names: Sequence[str] = ("All",), lease_id: str | None = None
) -> list[Message]:
    """Reads messages in order. If ``lease_id`` is given, unreadable messages do not count as received (DUR-8)."""
    return _by_send_time(queue, [_messages(queue, part, names, lease_id) for part in parts])


def _size(part: ClaimedPart) -> int:
    size = 0
    part.shard.reader.load(part.spans)
    for first, last in part.spans:
        try:
            size += part.shard.reader.size(first, last)
        except Exception:  # the read reports the error
            size += UNREADABLE_BYTES * (last - first + 1)
    return size


def count(queue: OpenQueue, messages: Sequence[Message]) -> None:
    if messages:
        size = sum(len(message.body.encode()) for message in messages)
        queue.tally(received=len(messages), received_bytes=size)
        queue.shards[0].shared.waiters.active_at = queue.now()
    else:
        queue.tally(empty_receives=1)


def _by_send_time(queue: OpenQueue, by_shard: list[list[Message]]) -> list[Message]:
    """Merges the messages of shards by send time (RWD-10, RWD-12). Keeps the order in each group or shard."""
    if len(by_shard) < 2:
        return by_shard[0] if by_shard else []
    if queue.attributes.classes > 1:  # in the order in which the shards were asked
        return list(itertools.chain.from_iterable(by_shard))
    if queue.fifo:
        groups: dict[str | None, list[Message]] = {}
        for message in itertools.chain.from_iterable(by_shard):
            groups.setdefault(message.group_id, []).append(message)
        by_shard = list(groups.values())
    return list(heapq.merge(*by_shard, key=lambda message: message.sent_at))


def _messages(queue: OpenQueue, part: ClaimedPart, names: Sequence[str], lease_id: str | None) -> list[Message]:
    shard, claimed = part
    signer = receipt_handles.HandleSigner(queue.key, shard.number, claimed.lease_id, queue.row.handle_key)
    own = claimed.lease_id == lease_id  # an attempt that is repeated was counted before
    rows, unreadable = _rows(queue, part, own)
    settler, priority = Settler(queue), shard.number % queue.attributes.classes

    def sequence(offset: int) -> str | None:
        return sequence_number(shard.number, offset) if queue.fifo else None

    found = {
        offset: received_message(
            row, claimed, span, signer.sign(offset), names, sequence(offset), settler, priority
        )
        for span in claimed.spans
        for offset in range(span.first, span.last + 1)
        if (row := rows.get(offset)) is not None
    }
    if not claimed.order:
        return list(found.values())
    messages = []
    for offset in (offset for first, last in claimed.order for offset in range(first, last + 1)):
        if offset in unreadable:
            break  # later messages may be of the same group (FIF-1); they are received again too
        if offset in found:
            messages.append(found[offset])
    return messages


def _rows(queue: OpenQueue, part: ClaimedPart, own: bool) -> tuple[dict[int, Row], set[int]]:
    """Returns messages by offset, and the offsets of unreadable messages. Raises an error if none can be read."""
    began = monotonic()
    rows: dict[int, Row] = {}
    unreadable: set[int] = set()
    failures, worst = 0, None
    pending = part.spans[::-1]
    part.shard.reader.load(part.spans)
    while pending:
        first, last = pending.pop()
        try:
            found = part.shard.reader.messages(first, last)
        except Exception as error:
            failures, worst = failures + 1, worst or error  # the first one was of more messages, and names them
            patient = failures < MOST_FAILURES and monotonic() - began < LONGEST_READ
            if first < last and patient:  # some messages may be in another file
                middle = (first + last) // 2
                pending += [(middle + 1, last), (first, middle)]
                continue
            if not rows and not pending:
                if own:
                    _uncount(queue, part, part.spans)
                if isinstance(worst, DamagedTable):
                    raise worst.unknown() from None
                if not is_storage_failure(error):
                    raise
                raise QueueClientError(
                    f"messages were claimed, but they cannot be read: {first_line(error)}", outcome_unknown=True
                ) from error
            unreadable.update(range(first, last + 1))
        else:
            # an empty body marks a message that was erased after the claim (SND-1, DUR-42)
            rows.update((offset, row) for offset, row in enumerate(found, first) if row and row["body"])
            emptied = (offset for offset, row in enumerate(found, first) if row and row["body"] is None)
            _check_emptied(queue, part.shard, next(emptied, None))
    if unreadable:
        spans = ranges(sorted(unreadable))
        what, reason, new = counted(len(unreadable), "message"), worst and first_line(worst), True
        if isinstance(worst, DamagedTable):
            new = queue.damage.met(worst, queue.now())
            reason = f"{worst.damage}; repair it: {repairing(queue.root.path, queue.region, queue.name)}"
        text = "%s of %s cannot be read, from offset %d to %d: %s"
        _log.log(
            logging.ERROR if new else logging.DEBUG, text, what, queue.name, spans[0][0], spans[-1][1], reason
        )
        if own:
            _uncount(queue, part, spans)
    return rows, unreadable


def _uncount(queue: OpenQueue, part: ClaimedPart, spans: Spans) -> None:
    """Undoes the receive count of unreadable messages, which stay hidden until their visibility timeout."""
    try:
        queue.command(part.shard, LeaseRelease(part.claimed.lease_id, spans, unread=True))
    except Exception as error:
        _log.warning("a receive of %s counts messages that cannot be read: %s", queue.name, first_line(error))


def _check_emptied(queue: OpenQueue, shard: OpenShard, offset: int | None) -> None:
    """Raises DamagedTable if the message at ``offset`` lacks a body, but is stored according to the ledger."""
    if offset is None:
        return
    stored = shard.ledger.query(lambda machine: machine.peek(queue.now(), 1, offset))
    if stored and stored[0].first <= offset:
        reason = f"lacks the body of offset {offset}, which its ledger has as stored: the ledger was put back"
        raise DamagedTable(shard.tables.messages, None, reason, outcome_unknown=True)
