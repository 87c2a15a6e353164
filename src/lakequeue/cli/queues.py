"""Commands that create, list, change and delete queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from lakequeue.cli import documents, render
from lakequeue.cli.options import (
    Attributes,
    DeadLetterQueue,
    Delay,
    DeliveryTable,
    MaxReceiveCount,
    MaxSize,
    Name,
    Retention,
    Tags,
    VisibilityTimeout,
    Wait,
    Yes,
    argument,
    attribute_arguments,
    flag,
    option,
    parse_pairs,
    profile_names,
    queue_option,
)
from lakequeue.cli.session import CommandContext, Session, usage
from lakequeue.errors import LakeQueueError, QueueDoesNotExist, QueueNameExists
from lakequeue.model.attributes import FIXED

if TYPE_CHECKING:
    from lakequeue import LakeQueue, Queue
    from lakequeue.entry_verbs import Depth


def create(
    ctx: CommandContext,
    queue: Name,
    profile: str | None = option(
        None,
        "Rules and defaults: lake (the default), sqs, sqs-2018 or cmq.",
        "NAME",
        autocompletion=profile_names,
    ),
    fifo: bool = flag(False, "Make it a FIFO queue; its name ends in .fifo.", "--fifo"),
    content_based_deduplication: bool = flag(
        False, "FIFO: equal bodies within five minutes are one message.", "--content-based-deduplication"
    ),
    deduplication_scope: str | None = option(
        None,
        "FIFO: scope of deduplication ids, queue or message_group.",
        "SCOPE",
        autocompletion=lambda: ["queue", "message_group"],
    ),
    shards: int | None = option(None, "Number of shards: parts that work independently.", "N"),
    visibility_timeout: VisibilityTimeout = None,
    retention: Retention = None,
    delay: Delay = None,
    wait: Wait = None,
    max_size: MaxSize = None,
    dead_letter_queue: DeadLetterQueue = None,
    max_receive_count: MaxReceiveCount = None,
    table: DeliveryTable = None,
    attribute: Attributes = None,
    tag: Tags = None,
) -> None:
    """Create a queue, and the root if it is missing."""
    arguments = attribute_arguments(ctx.params)
    try:
        created = ctx.obj.lake().create_queue(queue, tags=parse_pairs(tag, "--tag"), **arguments)
    except QueueNameExists as error:
        if not FIXED.intersection(error.names):
            error.hint = f"lakequeue show {queue} shows its attributes, lakequeue set {queue} changes them"
        raise
    ctx.obj.changed(documents.queue(created), f"queue {created.name} is ready")


def list_(
    ctx: CommandContext,
    prefix: str = typer.Option("", help="Only names with this prefix."),
    limit: int | None = option(None, "Maximum number of queues.", "N"),
    after: str | None = queue_option(None, "Only names after this one."),
) -> None:
    """List the queues by name, with the numbers of messages and dead letters."""
    from lakequeue.entry_verbs import settings

    lake = ctx.obj.lake()
    found = lake.list_queues(prefix, limit, after)
    targets = {queue.name: arn.rpartition(":")[2] for queue in found if (arn := queue.dead_letter_queue)}
    listed = lake.list_queues() if targets and (prefix or limit or after) else found
    sources = Counter(arn.rpartition(":")[2] for queue in listed if (arn := queue.dead_letter_queue))
    known = {queue.name: queue for queue in found}
    known |= {queue.name: queue for queue in named(lake, set(targets.values()) - known.keys())}
    counted, failed = depths_of([*known.values()])
    for name, error in failed.items():
        ctx.obj.note(f"{name}: {error}")  # the other queues are listed
    stored = {name: depth.stored for name, depth in counted.items()}
    counts = {name: attrs.asdict(depth.counts) for name, depth in counted.items()}
    answer = [
        documents.queue(queue)
        | {"messages": stored.get(queue.name), "counts": counts.get(queue.name)}
        | {"dead_letter_queue": (dead := targets.get(queue.name)), "dead_letters": stored.get(dead or "")}
        | {"dead_letter_sources": sources.get(dead or "")}
        | {"rate_limit": (own := settings(queue)).rate_limit, "paused": own.paused, "paused_groups": own.reasons}
        | {"pauses": documents.pauses(own)}
        for queue in found
    ]
    slowed = [name for name in ("rate_limit", "pauses") if any(each[name] for each in answer)]
    states = render.states(each["counts"] for each in answer)
    rows = [
        [
            each["name"],
            *((each["counts"] or {}).get(state) for state in states),
            render.age((each["counts"] or {}).get("oldest_age")),
            *([_letters(each, sources)] if targets else []),
            *(render.paused(queue) if name == "pauses" else each[name] for name in slowed),
        ]
        for queue, each in zip(found, answer, strict=True)
    ]
    columns = ["queue", *render.titles(states), "oldest", *(["dead letters"] if targets else [])]
    columns += ["paused" if name == "pauses" else "rate limit" for name in slowed]
    if found.next_after is not None:
        ctx.obj.note(f"more queues follow: --after {found.next_after}")
    ctx.obj.answer(answer, render.table(columns, rows))


def _letters(queue: dict[str, Any], sources: Counter[str]) -> object:
    """Returns the number of dead letters of a queue. If other queues share them, the text says so."""
    number, sharing = queue["dead_letters"], sources[queue["dead_letter_queue"]]
    return number if sharing < 2 or number is None else f"{number:,} of {sharing} queues"


def show(
    ctx: CommandContext,
    queue: Name,
    message_id: str | None = argument(None, "Show this message instead, in whatever state.", "[MESSAGE_ID]"),
) -> None:
    """Show a queue's attributes, tags and shards. Also show the largest message groups, if groups are tenants."""
    if message_id is not None:
        return _show_message(ctx.obj, queue, message_id)
    from rich.console import Group

    from lakequeue.entry_verbs import settings

    shown = ctx.obj.queue(queue)
    attributes, tags, shards = shown.attributes(), shown.tags(), shown.shard_counts()
    rows = [(name, render.setting(name, value)) for name, value in attributes.items()]
    rows += [("pause", str(pause)) for pause in settings(shown).pauses]
    rows += [("created", render.instant(shown.created_at)), ("ARN", shown.arn)]
    rows += [(f"tag {key}", value) for key, value in tags.items()]
    parts = [attrs.asdict(shard) for shard in shards]
    groups = [attrs.asdict(group) for group in shown.groups()] if settings(shown).groups_are_tenants else []
    if not any(group["group_id"] is not None for group in groups):
        groups = []
    tables = [render.table(["attribute", "value"], rows, title=shown.name)]
    tables += [_parts(each) for each in (parts, groups) if each]
    ctx.obj.answer(
        documents.queue(shown)
        | {"arn": shown.arn, "attributes": attributes, "tags": tags, "shards": parts, "groups": groups},
        Group(*tables),
    )


def _show_message(session: Session, queue: str, message_id: str) -> None:
    from lakequeue.entry_verbs import settings

    found = session.queue(queue)
    message = found.get(message_id)
    retention = timedelta(seconds=settings(found).message_retention_period)
    stored = message.state not in ("deleted", "undecided")  # marks keep messages past the retention period
    document = documents.peeked(message) | {"expires_at": message.sent_at + retention if stored else None}
    hidden = ("attempts",) if message.priority else ("attempts", "priority")
    shown = {name: value for name, value in document.items() if name not in hidden and value not in (None, {})}
    rows = [(name, render.setting(name, value)) for name, value in shown.items()]
    rows += [("failed attempt", str(each)) for each in message.attempts]
    session.answer(document, render.table(["field", "value"], rows))


def _parts(parts: list[dict[str, Any]]) -> render.Fitting | str:
    names = [name for name in parts[0] if name != "undecided" or any(part[name] for part in parts)]
    rows = [[render.age(part[name]) if name == "oldest_age" else part[name] for name in names] for part in parts]
    return render.table(render.titles(names), rows)


def set_(
    ctx: CommandContext,
    queue: Name,
    visibility_timeout: VisibilityTimeout = None,
    retention: Retention = None,
    delay: Delay = None,
    wait: Wait = None,
    max_size: MaxSize = None,
    dead_letter_queue: DeadLetterQueue = None,
    max_receive_count: MaxReceiveCount = None,
    table: DeliveryTable = None,
    shards: int | None = option(None, "Raise the number of shards of a standard queue.", "N"),
    attribute: Attributes = None,
) -> None:
    """Change attributes of a queue."""
    changes = attribute_arguments(ctx.params)
    if not changes:
        usage("nothing to set: name at least one attribute")
    changed = ctx.obj.queue(queue)
    changed.set_attributes(**changes)
    attributes = changed.attributes() if ctx.obj.json else {}
    ctx.obj.changed({"queue": changed.name, "attributes": attributes}, f"queue {changed.name} is changed")


def tag(ctx: CommandContext, queue: Name, tags: list[str] = typer.Argument(..., metavar="KEY=VALUE...")) -> None:
    """Add or overwrite tags of a queue."""
    added = parse_pairs(tags, "a tag")
    tagged = ctx.obj.queue(queue)
    tagged.set_tags(added)
    _answer_tags(ctx.obj, tagged)


def untag(ctx: CommandContext, queue: Name, keys: list[str] = typer.Argument(..., metavar="KEY...")) -> None:
    """Remove tags of a queue."""
    untagged = ctx.obj.queue(queue)
    untagged.remove_tags(*keys)
    _answer_tags(ctx.obj, untagged)


_Group = Annotated[str | None, option(..., "Only one message group.", "ID", "--group")]


def pause(
    ctx: CommandContext,
    queue: Name,
    reason: str = option("paused", "Reason, shown to users and consumers.", "TEXT"),
    group: _Group = None,
) -> None:
    """Pause a queue or one of its groups: consumers receive nothing until it is resumed; sends go on."""
    ctx.obj.queue(queue).pause(reason, group)
    _answer_pause(ctx.obj, queue, group, reason, "is paused")


def resume(ctx: CommandContext, queue: Name, group: _Group = None) -> None:
    """Let consumers receive again from a paused queue or group."""
    from lakequeue.entry_verbs import settings

    resumed = ctx.obj.queue(queue)
    was_paused = any(pause.group == group for pause in settings(resumed).pauses)
    resumed.resume(group)
    receivable = _receivable(ctx.obj.lake(), resumed) if was_paused and group is None else ""
    _answer_pause(ctx.obj, queue, group, None, f"is resumed{receivable}" if was_paused else "was not paused")


def _receivable(lake: LakeQueue, queue: Queue) -> str:
    """Describes what consumers can receive after a resume. Empty if nothing is visible, or if reads fail."""
    from lakequeue.entry_verbs import all_consumers, depth, running_consumers

    [active] = all_consumers([queue], running_consumers(lake))
    try:
        visible = depth(queue).counts.visible
    except LakeQueueError:  # the queue is resumed all the same
        return ""
    if not visible or isinstance(active, LakeQueueError):
        return ""
    idle = "" if any(each.is_active for each in active) else ", and no consumer of it is known to run: start one"
    return f": {render.count(visible, 'message')} can be received{idle}"


def _answer_pause(session: Session, queue: str, group: str | None, reason: str | None, outcome: str) -> None:
    document = {"queue": queue} | ({} if group is None else {"group_id": group}) | {"paused": reason}
    what = f"queue {queue}" if group is None else f"group {group} of {queue}"
    session.changed(document, f"{what} {outcome}")


def delete_queue(ctx: CommandContext, queue: Name, yes: Yes = False) -> None:
    """Delete a queue with everything in it."""
    deleted = ctx.obj.queue(queue)
    if not yes:
        from lakequeue.entry_verbs import depth

        ctx.obj.ask(f"Delete {queue} with {render.lost(depth(deleted))}?")
    ctx.obj.lake().delete_queue(queue)
    ctx.obj.changed({"queue": queue, "deleted": True}, f"queue {queue} is deleted")


def named(lake: LakeQueue, names: Iterable[str]) -> list[Queue]:
    """Returns the existing queues of these names, sorted by name."""
    return [queue for name in sorted(names) for queue in lake.list_queues(name, limit=1) if queue.name == name]


def depths_of(queues: Sequence[Queue]) -> tuple[dict[str, Depth], dict[str, LakeQueueError]]:
    """Returns depths, and errors of unreadable queues, by name. Skips deleted queues."""
    from lakequeue.entry_verbs import depths

    counted: dict[str, Depth] = {}
    failed: dict[str, LakeQueueError] = {}
    with render.progress("counting", len(queues)) as advance:
        for number, (queue, found) in enumerate(zip(queues, depths(queues), strict=True), 1):
            advance(number, queue.name)
            if not isinstance(found, LakeQueueError):
                counted[queue.name] = found
            elif not isinstance(found, QueueDoesNotExist):
                failed[queue.name] = found
    return counted, failed


def _answer_tags(session: Session, queue: Queue) -> None:
    tags = queue.tags()
    session.changed({"queue": queue.name, "tags": tags}, render.table(["tag", "value"], tags.items()))
