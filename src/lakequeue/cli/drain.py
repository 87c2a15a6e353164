"""The command that moves all messages to another queue.

Between two standard queues or two FIFO queues, the drain is a redrive. From a standard queue to a FIFO queue, the
drain receives, sends and deletes batches. The message ids become deduplication ids, so that a second drain within
five minutes of a crash adds nothing twice. After a crash, the batch that the drain was moving becomes visible
again in the source queue after ``HOLD`` seconds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from lakequeue.cli import render
from lakequeue.cli.lines import MAX_LINE_BYTES, batches, max_batch
from lakequeue.cli.options import DryRun, Name, Yes, duration_option, option, queue_argument
from lakequeue.cli.session import CommandContext, usage
from lakequeue.cli.values import at_least
from lakequeue.errors import InvalidParameterValue, LakeQueueError, QueueClientError, UnsupportedOperation
from lakequeue.model.clock import shown_duration
from lakequeue.model.messages import Message, SendEntry
from lakequeue.model.profiles import profile
from lakequeue.model.validation import TRACE_HEADER

if TYPE_CHECKING:
    from lakequeue import Queue

HOLD = 60
"""Visibility timeout of a batch that is being moved, in seconds. Must stay well below five minutes."""
MOST = 1_000
"""Maximum number of messages in a batch."""


def drain(
    ctx: CommandContext,
    queue: Name,
    to: str = queue_argument(..., "Name of the queue that receives them.", "TO"),
    group_by: str | None = option(
        None,
        "To a FIFO queue: the message group, as the name of a message attribute, or as a path into a "
        "JSON body such as $.customer.id; the message's own group if not given.",
        "EXPR",
    ),
    group: str | None = option(None, "To a FIFO queue: one message group for all messages.", "ID"),
    wait: float = duration_option(
        HOLD + 10,
        "To a FIFO queue: how long to wait until no message is in flight, as order would be lost.",
        parser=at_least(0),
    ),
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Move all visible messages to another queue. First show the number of messages, and ask for confirmation."""
    if group_by is not None and group is not None:
        usage("give either --group-by or --group")
    source, target = ctx.obj.queue(queue), ctx.obj.queue(to)
    if queue == to:
        raise InvalidParameterValue(f"{queue} cannot be drained into itself.")
    if source.fifo and not target.fifo:
        raise UnsupportedOperation(
            f"{queue} is a FIFO queue and {to} is not: order and deduplication would be lost. Export it instead."
        )
    if (group_by or group) and (source.fifo or not target.fifo):
        usage("--group-by and --group are for draining a standard queue into a FIFO queue")
    if target.fifo and not source.fifo and source.attributes(["rate_limit"])["rate_limit"] is not None:
        raise UnsupportedOperation(
            f"{queue} has a rate limit: lift it first, lakequeue set {queue} -a rate_limit="
        )
    visible = source.counts().visible
    document = {"queue": queue, "to": to, "messages": visible}
    if dry_run:
        ctx.obj.answer(document | {"dry_run": True}, f"would move {render.count(visible, 'message')} to {to}")
        return
    if visible and not yes:
        ctx.obj.ask(f"Move {render.count(visible, 'message')} from {queue} to {to}?")
    done = 0

    def report(moved: int) -> None:
        nonlocal done
        done += moved
        ctx.obj.done = f"{render.count(done, 'message')} moved"
        advance(done, ctx.obj.done)

    with _paused(source, to):
        if target.fifo:
            _wait_for_flights(source, wait)
        with render.progress("moving", visible) as advance:
            if source.fifo == target.fifo:
                _move(source, target, report)
            else:
                _send(source, target, _group(group_by, group), report)
    counts = source.counts()
    left = {name: getattr(counts, name) for name in ("visible", "in_flight", "undecided", "delayed", "held")}
    ctx.obj.changed(
        document | {"messages": done, "left": left}, f"moved {render.count(done, 'message')} from {queue} to {to}"
    )
    if any(left.values()):
        states = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in left.items() if number)
        ctx.obj.note(f"{states} left in {queue}; drain it again when they are visible")
    for each in source, target:
        ctx.obj.note_pauses(each)


@contextmanager
def _paused(source: Queue, to: str) -> Iterator[None]:
    """Pauses a FIFO queue during the drain, to keep the order. After a crash, the next drain ends the pause."""
    reason = f"it is drained into {to}"
    if not source.fifo or source.attributes(["paused"])["paused"] not in (None, reason):
        yield
        return
    source.pause(reason)
    try:
        yield
    finally:
        source.update_attributes(lambda known: {"paused": None if known.paused == reason else known.paused})


def _wait_for_flights(source: Queue, wait: float) -> None:
    """Waits until no message is in flight or undecided. Raises InvalidParameterValue after ``wait`` seconds."""
    clock = source.clock
    until = clock.now() + timedelta(seconds=wait)
    with render.spinner("waiting for messages in flight"), clock.participant():
        while number := (counts := source.counts()).in_flight + counts.undecided:
            if clock.now() >= until:
                count, waited = render.count(number, "message"), shown_duration(wait)
                raise InvalidParameterValue(
                    f"{count} of {source.name} in flight after {waited}, and order would be lost: "
                    "end its consumers, or wait longer with --wait. Nothing was moved."
                )
            clock.wait(min(until, clock.now() + timedelta(seconds=0.5)), threading.Event())


def _move(source: Queue, target: Queue, report: Callable[[int], None]) -> None:
    moved = -1
    while moved:
        before = 0

        def progress(number: int) -> None:
            nonlocal before
            report(number - before)
            before = number

        moved = source.redrive(None, None, progress, target)


def _send(source: Queue, target: Queue, group_of: Callable[[Message], str], report: Callable[[int], None]) -> None:
    """Receives, sends and deletes messages in batches. Keeps the order of each group."""
    rules = profile(target.attributes()["profile"])
    max_bytes = rules.batch_bytes or MAX_LINE_BYTES
    while received := source.receive(min(max_batch(source), MOST), visibility_timeout=HOLD, wait_time=0):
        held = {message.message_id: message for message in received}
        try:
            entries = [_entry(message, str(number), group_of) for number, message in enumerate(received)]
            for batch in batches(entries, min(max_batch(target), MOST), max_bytes):
                result = target.send_batch(batch)
                sent = [received[int(str(each.id))] for each in result.successful]
                refused = source.delete_batch([message.receipt_handle for message in sent]).failed if sent else []
                if refused:
                    raise QueueClientError(f"a message was sent and not deleted: {refused[0].message}")
                for message in sent:
                    del held[message.message_id]
                report(len(sent))
                if result.failed:
                    first = result.failed[0]
                    raise InvalidParameterValue(f"message {received[int(first.id)].message_id}: {first.message}")
        finally:
            if held:  # after an error or an interrupt, make the messages visible at once
                with suppress(LakeQueueError):
                    source.change_visibility_batch([(message.receipt_handle, 0) for message in held.values()])


def _entry(message: Message, id: str, group_of: Callable[[Message], str]) -> SendEntry:
    trace = message.system_attributes.get(TRACE_HEADER)
    return SendEntry(
        message.body,
        id,
        attributes=message.message_attributes,
        group_id=group_of(message),
        dedup_id=message.message_id,
        system_attributes=None if trace is None else {TRACE_HEADER: trace},
    )


def _group(group_by: str | None, group: str | None) -> Callable[[Message], str]:
    """Returns a function that returns a message's group, and raises InvalidParameterValue if there is none."""

    def found(message: Message) -> object:
        if group is not None:
            return group
        if group_by is None:
            return message.group_id
        if not group_by.startswith("$"):
            attribute = message.message_attributes.get(group_by)
            return None if attribute is None else attribute.value
        try:
            value = json.loads(message.body)
            for name in group_by.split(".")[1:]:
                value = value[int(name)] if isinstance(value, list) else value[name]
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return value

    def group_of(message: Message) -> str:
        value = found(message)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value:
            reason = "it has no group; give --group-by or --group"
            if group_by is not None:
                reason = f"--group-by {group_by} finds no text or whole number in it"
            raise InvalidParameterValue(f"message {message.message_id}: {reason}.")
        return value

    return group_of
