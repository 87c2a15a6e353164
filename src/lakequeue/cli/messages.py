"""Commands that send, receive, delete and peek at messages."""

from __future__ import annotations

import base64
import binascii
import sys
from collections import Counter
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import typer

from lakequeue.cli import documents, render
from lakequeue.cli.lines import Parse, Reader, max_batch, send_lines
from lakequeue.cli.options import (
    DryRun,
    Group,
    MessageId,
    Name,
    OfError,
    Parameter,
    Where,
    Yes,
    argument,
    chosen,
    duration_option,
    flag,
    instant_option,
    option,
    parse_pairs,
)
from lakequeue.cli.output import OutputFailed
from lakequeue.cli.session import REFUSED, CommandContext, Session, usage
from lakequeue.cli.values import Moment, duration, from_now
from lakequeue.errors import InvalidParameterValue
from lakequeue.model.clock import shown_duration
from lakequeue.model.messages import SendEntry

if TYPE_CHECKING:
    from lakequeue import BatchFailure, BatchResult, Queue

TAKEN = 10_000
"""Maximum number of messages that one command takes from consumers."""
SHOWN = 10
"""Maximum number of refused entries that an error names."""


def send(
    ctx: CommandContext,
    queue: Name,
    body: str | None = argument(None, "Body of the message; - reads one message per line from stdin.", "[BODY]"),
    lines: Path | None = option(
        None, "Send each line of a file as a message.", "FILE", exists=True, dir_okay=False
    ),
    jsonl: bool = flag(
        False,
        "Lines are JSON objects with body and, if needed, attributes, group_id, dedup_id and delay; "
        "export writes them so.",
        "--jsonl",
    ),
    delay: float | None = duration_option(None, "How long the message stays hidden."),
    attribute: list[str] | None = option(
        None, "A message attribute, such as k=v, k:Number=42 or k:Binary=BASE64; repeatable.", "NAME[:TYPE]=VALUE"
    ),
    group: Group = None,
    dedup_id: str | None = option(
        None, "Deduplication id, accepted once in five minutes or in the queue's own interval.", "ID"
    ),
    priority: int | None = option(
        None, "Higher ones are received first; for queues created with priorities.", "N"
    ),
) -> None:
    """Send a message, or one for each line; skips empty lines."""
    if (body is None) == (lines is None):
        usage("give either a BODY (- for stdin) or --lines FILE")
    if dedup_id is not None and (lines is not None or body == "-"):
        usage("--dedup-id is for one message: lines that share it would be duplicates of the first")
    if jsonl and lines is None and body != "-":
        usage("--jsonl is for lines: give - or --lines FILE")
    options: dict[str, Any] = {"delay": delay, "attributes": _attributes(attribute), "group_id": group}
    options |= {"priority": priority}
    target = ctx.obj.queue(queue)
    parse = (
        Reader(target, options).entry if jsonl else lambda number, line: SendEntry(line, str(number), **options)
    )
    if lines is not None:
        with lines.open("rb") as stream:
            _send_lines(ctx.obj, target, stream, lines.stat().st_size, parse)
    elif body == "-":
        if sys.stdin.isatty():
            ctx.obj.note("one message per line; Ctrl-D ends")
        _send_lines(ctx.obj, target, cast(BufferedIOBase, sys.stdin.buffer), None, parse)
    else:
        sent = target.send(body or "", dedup_id=dedup_id, **options)
        ctx.obj.changed(documents.sent(sent), render.sent_text(sent, group))


def receive(
    ctx: CommandContext,
    queue: Name,
    max_messages: int = option(1, "Maximum number of messages.", "N", "--max"),
    visibility_timeout: float | None = duration_option(None, "How long the messages stay hidden from others."),
    wait: float | None = duration_option(None, "Maximum time to wait for a message."),
    attempt_id: str | None = option(
        None, "Receive request attempt id: a retry returns the same messages; FIFO queues only.", "ID"
    ),
    delete: bool = flag(False, "Delete the messages after printing them.", "--delete"),
) -> None:
    """Receive messages; they become visible again after the visibility timeout unless deleted."""
    source = ctx.obj.queue(queue)
    with render.spinner("waiting for messages"):
        messages = source.receive(max_messages, visibility_timeout, wait, attempt_id)
    printed = True
    if messages or ctx.obj.json:
        printed = ctx.obj.changed(
            [documents.message(message) for message in messages],
            "\n".join(render.message_text(message) for message in messages),
        )
    else:
        ctx.obj.note("no messages")
        ctx.obj.note_pauses(source)
    if delete and messages:
        if not printed:
            raise OutputFailed("the messages are not deleted, because standard output does not have them")
        failed = source.delete_batch([message.receipt_handle for message in messages]).failed
        _fail_if_refused(ctx.obj, _numbered(failed, 0), len(messages), "message")


def delete(
    ctx: CommandContext,
    queue: Name,
    handles: list[str] = argument(..., "Receipt handles.", "HANDLE..."),
) -> None:
    """Delete received messages by their receipt handles."""
    source = ctx.obj.queue(queue)
    if len(handles) == 1:
        source.delete(handles[0])
        ctx.obj.changed({"queue": queue, "deleted": 1, "failed": []}, "deleted 1 message")
        return
    failed: list[BatchFailure] = []
    size = max_batch(source)
    for start in range(0, len(handles), size):
        part = handles[start : start + size]
        failed += _numbered(source.delete_batch(part).failed, start)
        if deleted := start + len(part) - len(failed):
            ctx.obj.done = f"{render.count(deleted, 'message')} deleted"
    ctx.obj.changed(
        {"queue": queue, "deleted": deleted, "failed": [documents.failure(each) for each in failed]},
        f"deleted {render.count(deleted, 'message')}",
    )
    _fail_if_refused(ctx.obj, failed, len(handles), "handle")


def change_visibility(
    ctx: CommandContext,
    queue: Name,
    handle: str = argument(..., "Receipt handle.", "HANDLE"),
    seconds: float = argument(
        ..., "Time from now; 0 makes the message visible at once.", "DURATION", parser=duration
    ),
) -> None:
    """Change how long a received message stays hidden."""
    ctx.obj.queue(queue).change_visibility(handle, seconds)
    text = "the message is visible" if seconds == 0 else f"the message stays hidden for {shown_duration(seconds)}"
    ctx.obj.changed({"queue": queue, "receipt_handle": handle, "visibility_timeout": seconds}, text)


def cancel(ctx: CommandContext, queue: Name, message_id: MessageId) -> None:
    """Delete one message by its id, even while a consumer has it."""
    cancelled = ctx.obj.queue(queue).cancel(message_id)
    outcome = "is cancelled" if cancelled else "was gone before"
    ctx.obj.changed(
        {"queue": queue, "message_id": message_id, "cancelled": cancelled}, f"message {message_id} {outcome}"
    )


def reschedule(
    ctx: CommandContext,
    queue: Name,
    message_id: str | None = argument(None, "Id of the message. Not needed with --in-flight.", "[MESSAGE_ID]"),
    at: Moment | None = instant_option(None, "When"),
    within: float | None = duration_option(None, "Time from now, instead of an instant.", "--in", parser=from_now),
    in_flight: bool = flag(
        False,
        "Make it visible at once, even while a consumer has it, who is not informed. Without id: all in flight.",
        "--in-flight",
    ),
    where: Where = None,
    parameter: Parameter = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Change when a waiting message becomes visible, or take messages from a hanging consumer."""
    if [at is None, within is None, not in_flight].count(False) != 1:
        usage("give either --at INSTANT, --in DURATION or --in-flight")
    if message_id is None and not in_flight:
        usage("give a MESSAGE_ID, which lakequeue peek lists")
    if message_id is not None and (where or parameter or dry_run):
        usage("--where, --parameter and --dry-run go with --in-flight, without a MESSAGE_ID")
    source = ctx.obj.queue(queue)
    if message_id is None:
        return _take_all_back(ctx.obj, source, chosen(where, parameter, None), yes, dry_run)
    if in_flight:
        return _take_back(ctx.obj, source, message_id)
    instant = (at or Moment(ago=-(within or 0))).instant(source.clock)
    if not source.reschedule(message_id, instant):
        raise InvalidParameterValue(f"Message {message_id} does not wait; lakequeue show {queue} {message_id}")
    text = f"message {message_id} is visible from {render.instant(instant)} on"
    ctx.obj.changed({"queue": queue, "message_id": message_id, "visible_at": instant}, text)


def _take_back(session: Session, queue: Queue, message_id: str) -> None:
    from lakequeue.entry_verbs import make_visible

    if not make_visible(queue, [message_id], in_flight=True).done:
        problem = f"Message {message_id} is neither in flight nor delayed"
        raise InvalidParameterValue(f"{problem}; lakequeue show {queue.name} {message_id}")
    document = {"queue": queue.name, "message_id": message_id, "visible_at": queue.clock.now()}
    session.changed(document, f"message {message_id} is visible")


def _take_all_back(
    session: Session, queue: Queue, condition: tuple[str | None, list[str]], yes: bool, dry_run: bool
) -> None:
    """Makes visible all messages in flight that meet a condition. First shows which consumers hold them."""
    from lakequeue.entry_verbs import make_visible

    where, parameters = condition
    in_flight = "state = 'in_flight'" + (f" AND ({where}\n)" if where else "")
    with render.spinner("reading messages"):
        found = queue.peek(in_flight, TAKEN, parameters=parameters)
    names = Counter(each.consumer or "a consumer without a name" for each in found)
    held = ", ".join(f"{number:,} of {name}" for name, number in names.most_common(SHOWN))
    held += f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
    what = f"{render.count(len(found), 'message')} in flight of {queue.name}{held and f' ({held})'}"
    document = {"queue": queue.name, "messages": len(found), "consumers": dict(names)}
    if dry_run:
        session.answer(document | {"dry_run": True}, f"would make {what} visible")
        return
    if found and not yes:
        session.ask(f"Make {what} visible? What a consumer still works on is handled twice.")
    done = make_visible(queue, [each.message_id for each in found], in_flight=True).done
    more = "; there may be more: repeat the command" if len(found) == TAKEN else ""
    session.changed(
        document | {"messages": done}, f"{render.count(done, 'message')} of {queue.name} visible{more}"
    )


def peek(
    ctx: CommandContext,
    queue: Name,
    where: Where = None,
    parameter: Parameter = None,
    error: OfError = None,
    limit: int = option(10, "Maximum number of messages.", "N"),
) -> None:
    """Show the oldest messages without receiving them."""
    source = ctx.obj.queue(queue)
    condition, parameters = chosen(where, parameter, error)
    with render.spinner("reading messages"):
        messages = source.peek(condition, limit, parameters=parameters)
    columns = ["message", "state", "received", "sent", "visible at", "body"]
    rows: list[list[object]] = [
        [m.message_id, m.state, m.receive_count, m.sent_at, m.visible_at, render.preview(m.body)] for m in messages
    ]
    for column, shown in (
        ("priority", [m.priority or None for m in messages]),
        ("failed", [len(m.attempts) or None for m in messages]),
        ("reason", [m.dead_letter_reason for m in messages]),
        ("consumer", [m.consumer for m in messages]),
    ):
        if any(shown):
            columns.append(column)
            rows = [[*row, value] for row, value in zip(rows, shown, strict=True)]
    ctx.obj.answer([documents.peeked(message) for message in messages], render.table(columns, rows))


def _attributes(given: list[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for left, value in parse_pairs(given, "--attribute").items():
        name, _, type_ = left.partition(":")
        type_ = type_ or "String"
        if name in found:
            usage(f"{name} is given twice")
        if not type_.startswith("Binary"):
            found[name] = (type_, value)
            continue
        try:
            found[name] = (type_, base64.b64decode(value, validate=True))
        except binascii.Error:
            usage(f"the value of {name} is not base64")
    return found


def _send_lines(session: Session, queue: Queue, stream: BufferedIOBase, size: int | None, parse: Parse) -> None:
    number = done = 0
    successful: list[dict[str, Any]] = []
    failed: list[BatchFailure] = []
    with render.progress("sending", size) as advance:

        def sent(result: BatchResult, read: int) -> None:
            nonlocal number, done
            number += len(result.successful)
            failed.extend(result.failed)
            if session.json:
                successful.extend({"id": done.id} | documents.sent(done) for done in result.successful)
            session.done = f"{render.count(number, 'message')} sent"
            done += read
            advance(done, session.done)

        send_lines(queue, stream, parse, sent)
    document = {"successful": successful, "failed": [documents.failure(each) for each in failed]}
    session.changed({"queue": queue.name} | document, f"sent {render.count(number, 'message')}")
    _fail_if_refused(session, failed, number + len(failed), "line")


def _fail_if_refused(session: Session, failed: list[BatchFailure], tried: int, noun: str) -> None:
    if failed:
        session.done = ""
        for other in failed[1:SHOWN]:
            session.note(f"{noun} {other.id}: {other.code}: {other.message}")
        first = failed[0]
        where = f"{noun} {first.id}; {len(failed):,} of {tried:,} refused" if tried > 1 else f"{noun} {first.id}"
        raise typer.Exit(session.fail(REFUSED, first.code, f"{first.message} ({where})"))


def _numbered(failed: list[BatchFailure], start: int) -> list[BatchFailure]:
    return [attrs.evolve(failure, id=str(start + int(failure.id) + 1)) for failure in failed]
