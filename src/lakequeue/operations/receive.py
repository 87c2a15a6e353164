"""Receives messages: claims across shards, and long polls."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic
from typing import Any, NamedTuple, Protocol

import attrs

from lakequeue.errors import DamagedTable, LakeQueueError, OverLimit, QueueClientError
from lakequeue.model import receipt_handles
from lakequeue.model.arguments import (
    SHORTEST_POLL,
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
from lakequeue.operations import move
from lakequeue.operations.results import received_message
from lakequeue.operations.settle import Settler, Settling, visibility
from lakequeue.operations.tokens import Tokens
from lakequeue.operations.waits import in_vain, is_drained, waiting
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard, in_home_order, look_at
from lakequeue.runtime.waiters import Waiter
from lakequeue.shard.commands import Claim, ClaimResult, LeaseRelease, Spans
from lakequeue.shard.spans import ranges
from lakequeue.storage.engines.interface import is_storage_failure
from lakequeue.storage.store_failures import first_line

FALLBACK_POLL_FACTOR = 10
"""Fallback poll interval when no wake-up arrives, as a multiple of the longest interval of the first waiter."""

MOST_FAILURES = 32
"""Failed reads of one receive after which it no longer splits unreadable ranges."""
LONGEST_READ = 5.0
"""Seconds after which neither: each request to a storage that does not answer takes many."""
UNREADABLE_BYTES = 2**20
"""Size that is assumed of a message that cannot be read: that of the largest."""

Row = dict[str, Any]
"""A message as column -> value."""

_log = logging.getLogger("lakequeue")


def _names(given: Sequence[str]) -> list[str]:
    return list_of("attribute_names", given, str, "a text")


class Part(NamedTuple):
    """What was claimed in one shard."""

    shard: OpenShard
    claimed: ClaimResult

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(span.first, span.last) for span in self.claimed.spans]


@attrs.define
class FreeHands:
    """The handlers for which a claim may take last receives, see ``Claim``.

    Attributes:
        free: returns how many can begin at once.
        passed: last receives that the newest claim left to others, as no handler was free.
    """

    free: Callable[[], int]
    passed: int = 0


class Room(Protocol):
    """Memory for the messages of a receive, which it claims before it reads them."""

    def take(self, size: int) -> bool:
        """Takes it for bodies and attributes of ``size`` bytes if there is some left; called in threads."""
        ...

    async def wait(self, size: int) -> None:
        """Takes it once there is; an error ends the receive, and what it claimed becomes visible again."""
        ...


@attrs.frozen
class Request:
    """The arguments of a receive, as far as their types show that they are right."""

    max_messages: int | None = None
    visibility_timeout: Duration | None = None
    wait_time: Duration | None = None
    attempt_id: str | None = None
    attribute_names: Sequence[str] = attrs.field(default=("All",), converter=_names)
    interrupt: Interrupt | None = attrs.field(default=None, validator=lambda *field: check_interrupt(field[-1]))
    consumer: str | None = None
    hands: FreeHands | None = None
    enough: int = attrs.field(default=0, kw_only=True)
    """Number of messages after which no further shard is asked; 0: all that are wanted."""
    idle: bool | None = attrs.field(default=None, kw_only=True)
    """Whether a consumer has nothing else to do: then its process looks before processes whose handlers run."""


@attrs.frozen
class _Poll:
    """A receive with its arguments checked; durations in microseconds."""

    wanted: Claim
    """Without a lease, which each poll gets for itself."""
    deadline: Callable[[], int]
    """Returns when the wait ends, in microseconds; called after each poll."""
    refuse_late: bool
    """Whether a full queue refuses a receive after its wait too, not only a receive without a wait (INF-7)."""
    request: Request


@attrs.frozen
class _Claimed:
    """What a receive has claimed, and the bytes for which it needs room before it reads that."""

    queue: OpenQueue
    claims: Sequence[Part]
    size: int


@attrs.frozen
class _Found:
    """What a receive answers: its messages, and the claims that it made for them."""

    queue: OpenQueue
    claims: Sequence[Part]
    messages: list[Message]


_Step = _Claimed | _Found | datetime


def _release(step: _Step) -> bool:
    """Makes visible at once what a receive claimed, if nobody gets the answer; returns whether nothing is left.

    A repeated attempt claimed nothing: an earlier answer has the same receipts (ATT-3).
    """
    released = True
    if isinstance(step, datetime):
        return released
    for part in step.claims:
        try:
            step.queue.command(part.shard, LeaseRelease(part.claimed.lease_id, part.spans, unseen=True))
        except Exception as error:
            released = False
            name, reason = step.queue.name, first_line(error)
            _log.warning("messages of %s stay in flight until their visibility timeout: %s", name, reason)
    return released


def receive(queue: OpenQueue, request: Request) -> list[Message]:
    """Receives messages; waits in this thread for the first message."""
    with queue.service("receive") as call, queue.root.clock.participant():
        poll = _checked(queue, request)
        wake = threading.Event()
        woken = request.interrupt.waking(wake.set) if request.interrupt else nullcontext()
        with _waiting(queue, poll, wake.set) as waiter, woken:
            for step in _polls(queue, poll, waiter, wake.clear):
                if isinstance(step, _Found):
                    call.messages = len(step.messages)
                    return step.messages
                assert isinstance(step, datetime)
                queue.root.clock.wait(step, wake)
    raise AssertionError("a poll ends with a result")


async def receive_async(
    queue: OpenQueue, request: Request, off_loop: OffLoop = in_loop_threads, room: Room | None = None
) -> list[Message]:
    """``receive`` for asyncio: no thread is held while it waits.

    When it is cancelled, the messages that it claimed, or is claiming, become visible again.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    with queue.service("receive") as call, queue.root.clock.participant():
        poll = _checked(queue, request)
        wake = asyncio.Event()

        def wake_up() -> None:
            loop.call_soon_threadsafe(wake.set)

        woken = request.interrupt.waking(wake_up) if request.interrupt else nullcontext()
        with _waiting(queue, poll, wake_up) as waiter, woken:
            polls = _polls(queue, poll, waiter, lambda: None, room)
            while isinstance(step := await off_loop(lambda: next(polls), _release), datetime):
                await queue.root.clock.wait_async(step, wake)
                wake.clear()
        # no waiter any more, as it does not poll while it waits for room
        if room is not None and isinstance(step, _Claimed):
            try:
                await room.wait(step.size)
            except BaseException:
                loop.run_in_executor(None, _release, step)
                raise
            step = await off_loop(lambda: next(polls), _release)
        found = step.messages if isinstance(step, _Found) else []
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
    )
    refuse_late = queue.attributes.profile_rules.over_limit_on == "end_of_wait"
    return _Poll(wanted, deadline, refuse_late, request)


def _waiting(queue: OpenQueue, poll: _Poll, wake: Callable[[], None]) -> AbstractContextManager[Waiter | None]:
    """Joins the queue's waiters, which call ``wake`` when this receive should poll; None without a wait."""
    return nullcontext() if poll.deadline() <= queue.now() else waiting(queue, wake, poll.request.idle)


def claim(
    queue: OpenQueue,
    wanted: Claim,
    request: Request,
    settling: Settling | None = None,
    steps: Steps | None = None,
) -> tuple[list[Part], OverLimit | None]:
    """Claims messages under one lease; returns them by shard, and the refusal of a shard that is full.

    The claim begins at the home shard. With an attempt id all messages come from one shard: that of the live
    attempt, if there is one. ``steps`` are the moves of dead letters that the call has made, after which no error
    is a refusal.
    """
    parts, steps = list[Part](), steps or Steps("the receive")
    taken, most = 0, min(request.enough or wanted.max_messages, wanted.max_messages)
    tokens = Tokens(queue)
    if wanted.attempt_id is None and not tokens.may_be_left():
        return parts, None
    hands = request.hands
    first: OpenShard | None = None
    refusal, free = None, None if hands is None else hands.free()
    if hands is not None:
        hands.passed = 0
    for place, shard in enumerate(_in_turn(queue, wanted.attempt_id)):
        if place == 1 and tokens.look == inf:
            tokens.look = look_at([each for each in queue.shards if each is not first])
        first = first or shard
        leased = None if wanted.leased is None else taken
        command = attrs.evolve(wanted, max_messages=wanted.max_messages - taken, hands=free, leased=leased)
        try:
            with steps.rest():
                claimed = partial(move.claim, queue, shard, settling=settling, steps=steps, look=tokens.look)
                result = tokens.claim(shard, command, claimed)
        except Exception as error:
            # messages are claimed: an error would hide them from every consumer
            if parts and (isinstance(error, LakeQueueError) or is_storage_failure(error)):
                break
            raise
        if isinstance(result.error, OverLimit):
            refusal = result.error
            continue
        if result.error is not None:
            if parts:
                break
            raise result.error
        if hands is not None:
            free = (free or 0) - result.value.last
            hands.passed += result.value.passed
        if result.value.spans:
            home = shard.shared.home
            # not the shard that was tried before the home
            if not parts and wanted.attempt_id is None and (place or shard.number == home.current):
                home.found(shard.number)
            parts.append(Part(shard, result.value))
            taken += result.value.message_count
            if taken >= most or wanted.attempt_id is not None or tokens.spent:
                break
        if result.value.halved:
            break
    return parts, refusal


def _in_turn(queue: OpenQueue, attempt_id: str | None) -> Iterator[OpenShard]:
    shards = queue.shards
    if attempt_id is None or len(shards) == 1:
        home = shards[0].shared.home
        order, other, attributes = in_home_order(shards, home), home.elsewhere(), queue.attributes
        if attributes.pace is not None:  # else the home would get all tokens
            order = home.anywhere()
        if (classes := attributes.classes) > 1:
            # now and then the lowest first, so that none of them starves (JOB-5)
            highest = other is None or bool(attributes.priorities_strict)
            order = sorted(order, key=lambda shard: shard % classes, reverse=highest)
        elif other is not None and shards[other].ledger.is_unattended():
            order = [other, *(shard for shard in order if shard != other)]
        yield from (shards[shard] for shard in order)
        yield from shards[len(order) :]  # those that another process added: the others have just learnt of them
        return
    now = queue.now()
    for shard in shards:
        if shard.ledger.query(lambda machine: machine.attempt_lives(attempt_id, now)):
            yield shard
            return
    start = zlib.crc32(attempt_id.encode())  # so that concurrent retries begin at the same shard
    yield from (shards[(start + step) % len(shards)] for step in range(len(shards)))


def _polls(
    queue: OpenQueue, poll: _Poll, waiter: Waiter | None, clear: Callable[[], None], room: Room | None = None
) -> Iterator[_Step]:
    """Polls until there are messages: yields instants to wait for, what is claimed if there is no room for it,
    and finally the messages.

    It calls ``clear`` before each poll, so that later changes wake the waiter. A receive without a wait needs no
    waiter.
    """
    # from the shortest to the longest interval between polls for changes by other processes (LPL-6)
    started, waiters, steps = queue.now(), queue.shards[0].shared.waiters, Steps("the receive")
    waiters.active_at = started if waiters.active_at is None else waiters.active_at
    longest = queue.root.longest_pause(started - waiters.active_at)
    pause = SHORTEST_POLL if longest == queue.root.poll_interval else longest // 4
    new, stop = True, poll.request.interrupt
    while True:
        clear()
        if waiter is not None:
            waiter.woken = False
        lease_id = receipt_handles.new_lease_id()
        wanted = attrs.evolve(poll.wanted, lease_id=lease_id)
        # a receive that waits has no need to decide what the last one decided, nor has one that is to end
        ending = stop is not None and stop.is_set()
        known = waiter is not None and waiter.watched and (new or ending) and is_drained(queue)
        parts, refusal = ([], None) if known else claim(queue, wanted, poll.request, steps=steps)
        new = False
        claims = [part for part in parts if part.claimed.lease_id == lease_id]
        if room is not None and parts and not room.take(size := _size(parts)):
            if waiter is not None:
                waiter.found = True
            yield _Claimed(queue, claims, size)
        messages = read(queue, parts, poll.request.attribute_names, lease_id)
        if waiter is not None:
            waiters.announce(max(shard.ledger.attributes_version for shard in queue.shards))
            waiter.found = bool(messages)
        found = _Found(queue, claims, messages)
        now, deadline = queue.now(), started
        try:
            deadline = poll.deadline()  # may read the catalog, for attributes of which the claim has learnt
        except Exception:
            if _release(found):
                with steps.rest():
                    raise
        if messages or now >= deadline:
            if refusal and not messages and (poll.refuse_late or deadline <= started):
                raise refusal
            count(queue, messages)
            yield found
            return
        if waiter is not None and not waiter.first and poll.wanted.attempt_id is None:
            yield from_micros(min(deadline, now + FALLBACK_POLL_FACTOR * longest))
            continue
        watched = None if poll.wanted.attempt_id else waiter
        yield from in_vain(queue, watched, clear, stop, deadline, pause)
        pause = min(2 * pause, queue.root.longest_pause(now - waiters.active_at))


def read(
    queue: OpenQueue, parts: Sequence[Part], names: Sequence[str] = ("All",), lease_id: str | None = None
) -> list[Message]:
    """The messages of a claim, by send time.

    Messages of the lease with this id that storage cannot read count as never received (DUR-8).
    """
    return _by_send_time(queue, [_messages(queue, part, names, lease_id) for part in parts])


def _size(parts: Sequence[Part]) -> int:
    """Bytes of claimed messages."""
    size = 0
    for shard, (first, last) in ((part.shard, span) for part in parts for span in part.spans):
        try:
            size += shard.reader.size(first, last)
        except Exception:  # reading them will tell
            size += UNREADABLE_BYTES * (last - first + 1)
    return size


def count(queue: OpenQueue, messages: Sequence[Message]) -> None:
    """Counts what a receive found, and notes when."""
    if messages:
        size = sum(len(message.body.encode()) for message in messages)
        queue.tally(received=len(messages), received_bytes=size)
        queue.shards[0].shared.waiters.active_at = queue.now()
    else:
        queue.tally(empty_receives=1)


def _by_send_time(queue: OpenQueue, by_shard: list[list[Message]]) -> list[Message]:
    """Messages of several shards by send time (RWD-10, RWD-12); those of a group, or shard, keep their order."""
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


def _messages(queue: OpenQueue, part: Part, names: Sequence[str], lease_id: str | None) -> list[Message]:
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


def _rows(queue: OpenQueue, part: Part, own: bool) -> tuple[dict[int, Row], set[int]]:
    """Claimed messages by offset, and the offsets of messages that storage cannot read now.

    The latter count as never received if the claim is this call's ``own``.

    Raises an error only if it can read no message: an error hides all claimed messages until their timeout.
    """
    began = monotonic()
    rows: dict[int, Row] = {}
    unreadable: set[int] = set()
    failures, worst = 0, None
    pending = part.spans[::-1]
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
        text = "%d messages of %s cannot be read, from offset %d to %d: %s"
        _log.error(text, len(unreadable), queue.name, spans[0][0], spans[-1][1], worst and first_line(worst))
        if own:
            _uncount(queue, part, spans)
    return rows, unreadable


def _uncount(queue: OpenQueue, part: Part, spans: Spans) -> None:
    """Takes back the receive of messages that nobody sees; they stay hidden until their timeout."""
    try:
        queue.command(part.shard, LeaseRelease(part.claimed.lease_id, spans, unread=True))
    except Exception as error:
        _log.warning("a receive of %s counts messages that cannot be read: %s", queue.name, first_line(error))


def _check_emptied(queue: OpenQueue, shard: OpenShard, offset: int | None) -> None:
    """Checks that a message whose row was emptied has been deleted since it was claimed.

    Raises:
        DamagedTable: the ledger still has the message: it is not the one by which the row was emptied.
    """
    if offset is None:
        return
    stored = shard.ledger.query(lambda machine: machine.peek(queue.now(), 1, offset))
    if stored and stored[0].first <= offset:
        reason = f"lacks the body of offset {offset}, which its ledger has as stored: the ledger was put back"
        raise DamagedTable(shard.tables.messages, None, reason, outcome_unknown=True)
