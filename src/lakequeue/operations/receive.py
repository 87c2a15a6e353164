"""Receives messages: claims across shards, and long polls."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from time import monotonic
from typing import Any

import attrs

from lakequeue.errors import LakeQueueError, OverLimit, QueueClientError
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
from lakequeue.model.clock import Duration, from_micros
from lakequeue.model.interrupts import Interrupt
from lakequeue.model.messages import Message
from lakequeue.model.off_loop import OffLoop, in_loop_threads
from lakequeue.model.sequence_numbers import sequence_number
from lakequeue.operations import move
from lakequeue.operations.results import received_message
from lakequeue.operations.settle import Settler, Settling, visibility
from lakequeue.runtime.log_watch import log_watch
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.shard_service import ShardService, in_home_order
from lakequeue.runtime.waiters import Waiter
from lakequeue.shard.commands import Claim, ClaimResult, LeaseRelease
from lakequeue.storage.engines.failures import is_storage_failure
from lakequeue.storage.store_failures import first_line

FALLBACK_POLL_FACTOR = 10
"""Fallback poll interval when no wake-up arrives, as a multiple of the longest interval of the first waiter."""

MOST_FAILURES = 32
"""Failed reads of one receive after which it no longer splits unreadable ranges."""
LONGEST_READ = 5.0
"""Seconds after which neither: each request to a storage that does not answer takes many."""

Parts = list[tuple[ShardService, ClaimResult]]
Row = dict[str, Any]
"""A message as column -> value."""

_log = logging.getLogger("lakequeue")


def _names(given: Sequence[str]) -> list[str]:
    return list_of("attribute_names", given, str, "a text")


@attrs.define
class FreeHands:
    """The handlers for which a claim may take last receives, see ``Claim``.

    Attributes:
        free: how many can begin at once.
        passed: last receives that the newest claim left to others, as no handler was free.
    """

    free: int
    passed: int = 0


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


@attrs.frozen
class _Poll:
    """A receive with its arguments checked; durations in microseconds."""

    max_messages: int
    visibility_timeout: int | None
    deadline: Callable[[], int]
    """Returns when the wait ends, in microseconds; called after each poll."""
    refuse_late: bool
    """Whether a full queue refuses a receive after its wait too, not only a receive without a wait (INF-7)."""
    attempt_id: str | None
    consumer: str | None
    attribute_names: Sequence[str]
    hands: FreeHands | None


@attrs.frozen
class _Found:
    """What a receive answers: its messages, and the claims that it made for them."""

    messages: list[Message]
    queue: OpenQueue
    claims: Parts


def _release(step: _Found | datetime) -> bool:
    """Makes visible at once what a receive claimed, if nobody gets the answer; returns whether nothing is left.

    A repeated attempt claimed nothing: an earlier answer has the same receipts (ATT-3).
    """
    released = True
    if not isinstance(step, _Found):
        return released
    for shard, claimed in step.claims:
        spans = [(span.first, span.last) for span in claimed.spans]
        try:
            step.queue.command(shard, LeaseRelease(claimed.lease_id, spans, unseen=True))
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
                queue.root.clock.wait(step, wake)
    raise AssertionError("a poll ends with a result")


async def receive_async(queue: OpenQueue, request: Request, off_loop: OffLoop = in_loop_threads) -> list[Message]:
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
            polls = _polls(queue, poll, waiter, lambda: None)
            while True:
                wake.clear()
                step = await off_loop(lambda: next(polls), _release)
                if isinstance(step, _Found):
                    call.messages = len(step.messages)
                    return step.messages
                await queue.root.clock.wait_async(step, wake)


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

    return _Poll(
        check_max_messages(queue.attributes, request.max_messages),
        None if given is None else visibility(queue, given),
        deadline,
        queue.attributes.profile_rules.over_limit_on == "end_of_wait",
        check_attempt_id(queue.attributes, request.attempt_id),
        check_consumer(request.consumer),
        request.attribute_names,
        request.hands,
    )


@contextmanager
def _waiting(queue: OpenQueue, poll: _Poll, wake: Callable[[], None]) -> Iterator[Waiter | None]:
    """Joins the queue's waiters, which call ``wake`` when this receive should poll; None without a wait."""
    if poll.deadline() <= queue.now():
        yield None
        return
    waiters, folders = queue.shards[0].shared.waiters, queue.log_folders()
    watch = log_watch() if folders else None
    with waiters.waiter(wake) as waiter, watch.waking(folders, waiters.wake) if watch else nullcontext():
        yield waiter


def claim(
    queue: OpenQueue,
    max_messages: int,
    visibility_timeout: int | None,
    lease_id: str,
    attempt_id: str | None = None,
    consumer: str | None = None,
    enough: int | None = None,
    settling: Settling | None = None,
    hands: FreeHands | None = None,
) -> tuple[Parts, OverLimit | None]:
    """Claims messages under one lease; returns them by shard, and the refusal of a shard that is full.

    The claim begins at the home shard. With an attempt id all messages come from one shard: that of the live
    attempt, if there is one. ``consumer`` is the name of who receives. With ``enough`` no further shard is asked
    once there are so many.
    """
    parts: Parts = []
    left, refusal, free = max_messages, None, None if hands is None else hands.free
    if hands is not None:
        hands.passed = 0
    most_left = 0 if enough is None else max(0, max_messages - enough)
    for place, shard in enumerate(_in_turn(queue, attempt_id)):
        try:
            command = Claim(left, visibility_timeout, lease_id, attempt_id, consumer=consumer, hands=free)
            result = move.claim(queue, shard, command, settling)
        except Exception as error:
            # messages are claimed: an error would hide them from every consumer
            if parts and (isinstance(error, LakeQueueError) or is_storage_failure(error)):
                break
            raise
        if hands is not None and result.error is None:
            free = (free or 0) - result.value.last
            hands.passed += result.value.passed
        if isinstance(result.error, OverLimit):
            refusal = result.error
        elif result.error is not None:
            if parts:
                break
            raise result.error
        elif result.value.spans:
            if not parts and attempt_id is None:
                home = shard.shared.home
                if place or shard.shard == home.current:  # not the shard that was tried before the home
                    home.found(shard.shard)
            parts.append((shard, result.value))
            left -= result.value.message_count
            if left <= most_left or attempt_id is not None:
                break
    return parts, refusal


def _in_turn(queue: OpenQueue, attempt_id: str | None) -> Iterator[ShardService]:
    shards = queue.shards
    if attempt_id is None or len(shards) == 1:
        home = shards[0].shared.home
        order, other = in_home_order(shards, home), home.elsewhere()
        if other is not None and shards[other].is_unattended():
            order = [other, *(shard for shard in order if shard != other)]
        yield from (shards[shard] for shard in order)
        yield from shards[len(order) :]  # those that another process added: the others have just learnt of them
        return
    now = queue.now()
    for shard in shards:
        if shard.query(lambda machine: machine.attempt_lives(attempt_id, now)):
            yield shard
            return
    start = zlib.crc32(attempt_id.encode())  # so that concurrent retries begin at the same shard
    yield from (shards[(start + step) % len(shards)] for step in range(len(shards)))


def _polls(
    queue: OpenQueue, poll: _Poll, waiter: Waiter | None, clear: Callable[[], None]
) -> Iterator[_Found | datetime]:
    """Polls until there are messages: yields instants to wait for, and finally the messages.

    It calls ``clear`` before each poll, so that later changes wake the waiter. A receive without a wait needs no
    waiter.
    """
    # from the shortest to the longest interval between polls for changes by other processes (LPL-6)
    started, waiters = queue.now(), queue.shards[0].shared.waiters
    waiters.active_at = started if waiters.active_at is None else waiters.active_at
    longest = queue.root.longest_pause(started - waiters.active_at)
    pause = SHORTEST_POLL if longest == queue.root.poll_interval else longest // 4
    while True:
        clear()
        if waiter is not None:
            waiter.begin_poll()
        lease_id = receipt_handles.new_lease_id()
        parts, refusal = claim(
            *(queue, poll.max_messages, poll.visibility_timeout, lease_id, poll.attempt_id, poll.consumer),
            hands=poll.hands,
        )
        messages = read(queue, parts, poll.attribute_names)
        if waiter is not None:
            waiter.announce(max(shard.attributes_version for shard in queue.shards))
            waiter.found = bool(messages)
        found = _Found(messages, queue, [part for part in parts if part[1].lease_id == lease_id])
        now, deadline = queue.now(), started
        try:
            deadline = poll.deadline()  # may read the catalog, for attributes of which the claim has learnt
        except Exception:
            if _release(found):
                raise
        if messages or now >= deadline:
            if refusal and not messages and (poll.refuse_late or deadline <= started):
                raise refusal
            count(queue, messages)
            yield found
            return
        if waiter is not None and not waiter.first and poll.attempt_id is None:
            yield from_micros(min(deadline, now + FALLBACK_POLL_FACTOR * longest))
            continue
        events = [shard.next_event(now) for shard in queue.shards]
        known = [event for event in events if event is not None and event > now]
        yield from_micros(min([deadline, now + pause, *known]))
        pause = min(2 * pause, queue.root.longest_pause(now - waiters.active_at))


def read(queue: OpenQueue, parts: Parts, names: Sequence[str] = ("All",)) -> list[Message]:
    """The messages of a claim, by send time."""
    return _by_send_time(queue, [_messages(queue, shard, claimed, names) for shard, claimed in parts])


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
    if queue.fifo:
        groups: dict[str | None, list[Message]] = {}
        for message in itertools.chain.from_iterable(by_shard):
            groups.setdefault(message.group_id, []).append(message)
        by_shard = list(groups.values())
    return list(heapq.merge(*by_shard, key=lambda message: message.sent_at))


def _messages(queue: OpenQueue, shard: ShardService, claimed: ClaimResult, names: Sequence[str]) -> list[Message]:
    signer = receipt_handles.HandleSigner(queue.key, shard.shard, claimed.lease_id, queue.row.handle_key)
    rows, unreadable = _rows(queue, shard, claimed)
    settler = Settler(queue)
    found = {
        offset: received_message(
            row, claimed, span, signer.sign(offset), names, _sequence(queue, shard, offset), settler
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


def _rows(queue: OpenQueue, shard: ShardService, claimed: ClaimResult) -> tuple[dict[int, Row], set[int]]:
    """Claimed messages by offset, and the offsets of messages that storage cannot read now.

    Raises an error only if it can read no message: an error hides all claimed messages until their timeout.
    """
    began = monotonic()
    rows: dict[int, Row] = {}
    unreadable: set[int] = set()
    failures = 0
    pending = [(span.first, span.last) for span in reversed(claimed.spans)]
    while pending:
        first, last = pending.pop()
        try:
            found = shard.messages(first, last)
        except Exception as error:
            failures += 1
            patient = failures < MOST_FAILURES and monotonic() - began < LONGEST_READ
            if first < last and patient:  # some messages may be in another file
                middle = (first + last) // 2
                pending += [(middle + 1, last), (first, middle)]
                continue
            if not rows and not pending:
                if not is_storage_failure(error):
                    raise
                raise QueueClientError(
                    f"messages were claimed, but they cannot be read: {first_line(error)}", outcome_unknown=True
                ) from error
            unreadable.update(range(first, last + 1))
            name, reason = queue.name, first_line(error)
            _log.error("messages %s to %s of %s cannot be read: %s", first, last, name, reason)
        else:
            # an empty body marks a message that was erased after the claim (SND-1, DUR-42)
            rows.update((offset, row) for offset, row in enumerate(found, first) if row and row["body"])
    return rows, unreadable


def _sequence(queue: OpenQueue, shard: ShardService, offset: int) -> str | None:
    return sequence_number(shard.shard, offset) if queue.fifo else None
