"""Commands for whole queues and roots, such as counts, purge, compact and copy."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import attrs
import typer

from lakequeue.cli import documents, render
from lakequeue.cli.options import (
    MessageId,
    Name,
    OptionalName,
    Yes,
    argument,
    duration_option,
    flag,
    option,
    parse_pairs,
    queue_option,
)
from lakequeue.cli.queues import depths_of
from lakequeue.cli.session import CommandContext, usage
from lakequeue.errors import LakeQueueError, QueueDoesNotExist
from lakequeue.model.secrets import command_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from lakequeue.entry_verbs import ActiveConsumer
    from lakequeue.model.consumer_processes import ConsumerProcess


def counts(
    ctx: CommandContext,
    queue: OptionalName = None,
    by_priority: bool = flag(False, "Count the messages of each priority.", "--by-priority"),
) -> None:
    """Count messages by state, of one queue or of all."""
    counted: list[dict[str, Any]] = []
    failed: dict[str, LakeQueueError] = {}
    if by_priority:
        if queue is None:
            usage("--by-priority is for one queue")
        for priority, active in reversed([*enumerate(ctx.obj.queue(queue).priority_counts())]):
            counted.append(documents.counts(queue, active) | {"priority": priority})
    elif queue is not None:
        counted.append(documents.counts(queue, ctx.obj.queue(queue).counts()))
    else:
        found, failed = depths_of(ctx.obj.lake().list_queues())
        counted = [documents.counts(name, depth.counts) for name, depth in found.items()]
    columns = ["queue", "visible", "in_flight", "delayed", "rewindable"]
    for rare in "held", "undecided":
        if any(each[rare] for each in counted):
            columns.insert(-1, rare)
    if by_priority:
        columns.insert(1, "priority")
    rows = [[*(each[name] for name in columns), render.age(each["oldest_age"])] for each in counted]
    ctx.obj.answer(
        counted if queue is None or by_priority else counted[0],
        render.table([*render.titles(columns), "oldest"], rows),
    )
    for error in failed.values():  # the other queues were counted
        raise error


def consumers(ctx: CommandContext, queue: OptionalName = None) -> None:
    """List the consumers of one queue or of all. Include idle consumers, and consumers killed within a day."""
    from lakequeue import entry_verbs

    lake = ctx.obj.lake()
    queues, now = lake.list_queues() if queue is None else [ctx.obj.queue(queue)], lake.clock.now()
    found: dict[str, list[ActiveConsumer]] = {}
    failed: dict[str, LakeQueueError] = {}
    read = entry_verbs.all_consumers(queues, entry_verbs.running_consumers(lake))
    with render.progress("reading", len(queues)) as advance:
        for number, (each, active) in enumerate(zip(queues, read, strict=True), 1):
            advance(number, each.name)
            if not isinstance(active, LakeQueueError):
                found[each.name] = active
            elif queue is not None or not isinstance(active, QueueDoesNotExist):  # deleted meanwhile
                failed[each.name] = active
    named = [(name, each) for name, active in found.items() for each in active]
    columns = ["consumer", "process", "in flight", "oldest receive", "newest receive", "handlers", "seen"]
    ctx.obj.answer(
        [({"queue": name} if queue is None else {}) | attrs.asdict(each) for name, each in named],
        render.table(
            [*(["queue"] if queue is None else []), *columns],
            [
                [*([name] if queue is None else []), *row]
                for name, each in named
                for row in _consumer_rows(each, now)
            ],
            empty="no consumer runs, or has messages in flight",
        ),
    )
    for error in failed.values():  # the other queues were listed
        raise error


def _consumer_rows(each: ActiveConsumer, now: datetime) -> Iterator[list[object]]:
    def since(instant: datetime | None) -> str:
        return "-" if instant is None else render.age((now - instant).total_seconds())

    held = [each.in_flight, since(each.oldest_receive), since(each.newest_receive)]
    name = each.consumer or "(no name)"
    if not each.processes and not each.silent:
        yield [name, "-", *held, "-", "-"]
    for process in each.processes:
        yield [name, f"{process.pid} on {process.host}", *held, _handlers(process), since(process.seen_at)]
        held = ["", "", ""]  # of all processes of that name together
    for process in each.silent:
        state = "killed" if process.ended else "stopped" if process.stopped else "killed?"
        gone = since(process.seen_at) if process.stopped else f"not since {process.seen_at:%F %T}Z"
        yield [name, f"{process.pid} on {process.host}", *held, state, gone]
        held = ["", "", ""]


def _handlers(process: ConsumerProcess) -> str:
    """Describes the handlers and the outage at the last report. They may have ended meanwhile."""
    if process.outage_since is not None:
        fails = "storage fails" if process.failing_table is None else "delivery table fails"
        return f"{fails}: outage since {process.outage_since:%F %T}Z"
    if process.oldest_handler is None:
        return "idle"
    lasted = render.age((process.seen_at - process.oldest_handler).total_seconds())
    return f"{process.handlers}, {'the oldest ' * (process.handlers > 1)}for {lasted} when seen"


def purge(ctx: CommandContext, queue: Name, yes: Yes = False) -> None:
    """Remove all messages of a queue."""
    purged = ctx.obj.queue(queue)
    if not yes:
        from lakequeue.entry_verbs import depth

        ctx.obj.ask(f"Remove {render.lost(depth(purged))} from {queue}?")
    purged.purge()
    freed = f"a compaction frees its space, at once: {ctx.obj.pasted('lakequeue compact --now 0')}"
    ctx.obj.changed({"queue": queue, "purged": True}, f"queue {queue} is purged; {freed}")


def erase(ctx: CommandContext, queue: Name, message_id: MessageId, yes: Yes = False) -> None:
    """Erase the content of one message for good, wherever it is in the queue."""
    owner = ctx.obj.queue(queue)
    if not yes:
        ctx.obj.ask(f"Erase message {message_id} from {queue}? Nothing brings it back.")
    erased = owner.erase(message_id)
    outcome = "is erased" if erased else "was erased before"
    ctx.obj.changed(
        {"queue": queue, "message_id": message_id, "erased": erased}, f"message {message_id} {outcome}"
    )


def upgrade(ctx: CommandContext, yes: Yes = False) -> None:
    """Convert a root of layout 5 to the present layout, in place."""
    lake = ctx.obj.lake()
    from lakequeue.entry_verbs import is_upgraded

    if not yes and not is_upgraded(lake):
        ctx.obj.ask(f"Upgrade {lake.root}? Older versions of lakequeue will refuse it.")
    with render.progress("upgrading", None) as advance:
        upgraded = lake.upgrade(lambda number, total, name: advance(number, name, total))
    outcome = (
        f"{render.count(upgraded, 'queue')} of {lake.root} upgraded" if upgraded else f"{lake.root} is up to date"
    )
    ctx.obj.changed({"root": lake.root, "upgraded": upgraded}, outcome)


def compact(
    ctx: CommandContext,
    queue: OptionalName = None,
    processes: int = option(1, "Processes that share the queues.", "N", min=1),
    now: float | None = duration_option(
        None, "Free space at once, but keep files for readers that began within this time."
    ),
) -> None:
    """Free the space of removed messages, and keep tables and logs small."""
    if queue is not None and processes > 1:
        raise typer.BadParameter("it shares the queues of a root, not one queue", param_hint="--processes")
    lake = ctx.obj.lake()
    if queue is not None:
        with render.spinner(f"compacting {queue}"):
            done = [ctx.obj.queue(queue).compact(now=now)]
    else:
        with render.progress("compacting", None) as advance:
            done = lake.compact(
                lambda number, total, name: advance(number, name, total), processes=processes, now=now
            )
    results = [attrs.asdict(summary) for summary in done]
    ctx.obj.changed(results if queue is None else results[0], render.compacted(done))
    render.require_done(done)


def copy(
    ctx: CommandContext,
    source: str = argument(..., "Root to copy.", "FROM"),
    target: str = argument(..., "Root that receives the queues; created if it is missing.", "TO"),
    queue: str | None = queue_option(None, "Only this queue.", "--queue"),
    to_storage_option: list[str] | None = option(
        None, "Option for the object store of TO, as --storage-option for FROM.", "KEY=VALUE"
    ),
) -> None:
    """Copy queues to another root while they are in use: backup, restore, move to an object store."""
    ctx.obj.root = source
    lake = ctx.obj.lake()
    to = attrs.evolve(
        ctx.obj, root=target, storage_options=parse_pairs(to_storage_option, "--to-storage-option", secret=True)
    ).lake()
    with render.progress("copying", None) as advance:
        copied = lake.copy(to, queue, lambda done, total, name: advance(done, name, total))
    columns = [field.name for field in attrs.fields(type(copied[0]))] if copied else []
    ctx.obj.changed(
        [attrs.asdict(each) for each in copied],
        render.table(columns, [attrs.astuple(each) for each in copied], empty="no queues"),
    )
    for each in (each for each in copied if each.in_flight):
        command = f"{command_prefix(target, each.region)} reschedule {shlex.quote(each.queue)} --in-flight"
        held, them = render.count(each.in_flight, "message"), "it" if each.in_flight == 1 else "them"
        ctx.obj.note(f"the copy has {held} of {each.queue} in flight, and no consumer: {command} frees {them}")
