"""Commands about whole queues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakequeue.cli import output, render
from lakequeue.cli.frame import Session, usage
from lakequeue.errors import InvalidAttributeName, QueueClientError, QueueDoesNotExist

if TYPE_CHECKING:
    from lakequeue import LakeQueue, Queue

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
VisibilityTimeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="How long a received message stays hidden.")
]
Retention = Annotated[float | None, typer.Option(metavar="SECONDS", help="How long messages are kept.")]
Delay = Annotated[float | None, typer.Option(metavar="SECONDS", help="How long a new message stays hidden.")]
Wait = Annotated[float | None, typer.Option(metavar="SECONDS", help="How long a receive waits for messages.")]
MaxSize = Annotated[int | None, typer.Option(metavar="BYTES", help="Largest message.")]
DeadLetterQueue = Annotated[
    str | None, typer.Option(metavar="NAME", help="Queue that takes what was received too often.")
]
MaxReceiveCount = Annotated[int | None, typer.Option(metavar="N", help="Receives before that, 1 to 1,000.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        "-a",
        metavar="NAME=VALUE",
        help="Any attribute, in snake_case or by wire name; repeatable.",
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag; repeatable.")]


def create(
    ctx: typer.Context,
    queue: Name,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="lake (the default), sqs, sqs-2018 or cmq.")
    ] = None,
    fifo: Annotated[bool, typer.Option("--fifo", help="Make it a FIFO queue; its name ends in .fifo.")] = False,
    content_based_deduplication: Annotated[
        bool,
        typer.Option(
            "--content-based-deduplication", help="FIFO: equal bodies within five minutes are sent once."
        ),
    ] = False,
    deduplication_scope: Annotated[
        str | None,
        typer.Option(metavar="SCOPE", help="FIFO: where a deduplication id counts, queue or message_group."),
    ] = None,
    shards: Annotated[int | None, typer.Option(metavar="N", help="Independent parts of the queue.")] = None,
    visibility_timeout: VisibilityTimeout = None,
    retention: Retention = None,
    delay: Delay = None,
    wait: Wait = None,
    max_size: MaxSize = None,
    dead_letter_queue: DeadLetterQueue = None,
    max_receive_count: MaxReceiveCount = None,
    attribute: Attributes = None,
    tag: Tags = None,
) -> None:
    """Create a queue, and the root if it is missing."""
    session: Session = ctx.obj
    given = _given(visibility_timeout, retention, delay, wait, max_size, attribute)
    given = _merged(given, _redrive_policy(dead_letter_queue, max_receive_count))
    own = {
        "profile": profile,
        "fifo": fifo or None,
        "content_based_deduplication": content_based_deduplication or None,
        "deduplication_scope": deduplication_scope,
        "shards": shards,
    }
    given = _merged(given, own)
    made = session.lake().create_queue(queue, tags=dict(pairs(tag, "--tag")), **given)
    session.answer(render.queue_document(made), f"queue {made.name} is ready")


def list_(
    ctx: typer.Context,
    prefix: Annotated[str, typer.Option(help="Only names that begin so.")] = "",
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most so many.")] = None,
    after: Annotated[str | None, typer.Option(metavar="NAME", help="Only names behind this one.")] = None,
) -> None:
    """List the queues by name."""
    session: Session = ctx.obj
    found = list(listed(session.lake(), prefix, limit, after))
    session.answer(
        [render.queue_document(queue) for queue in found],
        render.table(["queue", "created"], [[queue.name, queue.created_at] for queue in found]),
    )


def show(ctx: typer.Context, queue: Name) -> None:
    """Show a queue's attributes and tags."""
    session: Session = ctx.obj
    shown = session.lake().queue(queue)
    attributes, tags = shown.attributes(), shown.tags()
    rows = [*attributes.items(), *((f"tag {key}", value) for key, value in tags.items())]
    session.answer(
        render.queue_document(shown) | {"attributes": attributes, "tags": tags},
        render.table(["attribute", "value"], rows, title=shown.name),
    )


def set_(
    ctx: typer.Context,
    queue: Name,
    visibility_timeout: VisibilityTimeout = None,
    retention: Retention = None,
    delay: Delay = None,
    wait: Wait = None,
    max_size: MaxSize = None,
    dead_letter_queue: DeadLetterQueue = None,
    max_receive_count: MaxReceiveCount = None,
    attribute: Attributes = None,
) -> None:
    """Change attributes of a queue."""
    session: Session = ctx.obj
    changes = _given(visibility_timeout, retention, delay, wait, max_size, attribute)
    changes = _merged(changes, _redrive_policy(dead_letter_queue, max_receive_count))
    if not changes:
        usage("nothing to set: name at least one attribute")
    changed = session.lake().queue(queue)
    changed.set_attributes(**changes)
    attributes = changed.attributes() if session.json else {}
    session.answer({"queue": changed.name, "attributes": attributes}, f"queue {changed.name} is changed")


def tag(
    ctx: typer.Context, queue: Name, tags: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")]
) -> None:
    """Add or overwrite tags of a queue."""
    session: Session = ctx.obj
    added = pairs(tags, "a tag")
    tagged = session.lake().queue(queue)
    tagged.set_tags(added)
    _answer_tags(session, tagged)


def untag(ctx: typer.Context, queue: Name, keys: Annotated[list[str], typer.Argument(metavar="KEY...")]) -> None:
    """Remove tags of a queue."""
    session: Session = ctx.obj
    untagged = session.lake().queue(queue)
    untagged.remove_tags(*keys)
    _answer_tags(session, untagged)


def counts(
    ctx: typer.Context,
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="All queues if not given.")] = None,
) -> None:
    """Count the messages of one queue or of all, by state."""
    session: Session = ctx.obj
    counted: list[dict[str, Any]] = []
    if queue is not None:
        counted.append(render.counts_document(queue, session.lake().queue(queue).counts()))
    else:
        queues = list(listed(session.lake()))
        with render.progress("counting", len(queues)) as advance:
            for each in queues:
                advance(1, each.name)
                try:
                    counted.append(render.counts_document(each.name, each.counts()))
                except QueueDoesNotExist:  # deleted since it was listed
                    continue
    columns = ["queue", "visible", "in_flight", "delayed", "rewindable"]
    if any(each["held"] for each in counted):  # few queues ever have any
        columns.insert(4, "held")
    rows = [[*(each[name] for name in columns), render.age(each["oldest_age"])] for each in counted]
    titles = [name.replace("_", " ") for name in columns]
    session.answer(
        counted if queue is None else counted[0],
        render.table([*titles, "oldest message"], rows),
    )


def rewind(
    ctx: typer.Context,
    queue: Name,
    to: Annotated[
        str | None, typer.Argument(metavar="[INSTANT]", help="As in 2026-01-31T08:00Z; UTC if it names no zone.")
    ] = None,
    ago: Annotated[float | None, typer.Option(metavar="SECONDS", help="So long before now instead.")] = None,
) -> None:
    """Make deleted messages visible again that were sent at an instant or later."""
    session: Session = ctx.obj
    if (to is None) == (ago is None):
        usage("give either an INSTANT or --ago SECONDS")
    lake = session.lake()
    instant = lake.clock.now() - timedelta(seconds=ago) if ago is not None else parsed_instant(to or "")
    count = lake.queue(queue).rewind(instant)
    document = {"queue": queue, "rewound_to": instant, "messages": count}
    session.answer(document, f"{render.count(count, 'message')} of {queue} visible again")


def redrive(
    ctx: typer.Context,
    queue: Name,
    max_messages: Annotated[
        int | None, typer.Option("--max", metavar="N", help="At most so many; all if not given.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only messages that the condition is true for, as for peek.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Take them all to this queue, wherever they come from.")
    ] = None,
) -> None:
    """Move messages of a dead-letter queue back to the queues that they come from."""
    session: Session = ctx.obj
    lake = session.lake()
    letters = lake.queue(queue)
    destination = None if to is None else lake.queue(to)
    with render.progress("redriving", max_messages) as advance:
        done = 0

        def tell(moved: int) -> None:
            nonlocal done
            advance(moved - done, render.count(moved, "message"))
            done = moved

        moved = letters.redrive(max_messages, where, tell, destination)
    where_to = "moved back" if to is None else f"moved to {to}"
    session.answer({"queue": queue, "messages": moved}, f"{render.count(moved, 'message')} of {queue} {where_to}")


def purge(
    ctx: typer.Context,
    queue: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove all messages of a queue."""
    session: Session = ctx.obj
    purged = session.lake().queue(queue)
    if not yes:
        now = purged.counts()
        number = now.visible + now.in_flight + now.delayed + now.held
        question = f"Remove {render.count(number, 'message')} from {queue}?"
        typer.confirm(output.printable(question), abort=True, err=True)
    purged.purge()
    session.answer({"queue": queue, "purged": True}, f"queue {queue} is purged")


def compact(
    ctx: typer.Context,
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="All queues if not given.")] = None,
) -> None:
    """Free the space of what is gone, and keep tables and logs short."""
    session: Session = ctx.obj
    lake = session.lake()
    if queue is not None:
        with render.spinner(f"compacting {queue}"):
            done = [lake.queue(queue).compact()]
    else:
        with render.progress("compacting", len(lake.runtime.rows())) as advance:
            done = lake.compact(lambda number, total, name: advance(int(number > 0), name))
    documents = [render.summary_document(summary) for summary in done]
    session.answer(documents if queue is None else documents[0], render.summary_table(done))
    failed = [f"{summary.queue or 'root'}: {failure}" for summary in done for failure in summary.failures]
    if failed:
        raise QueueClientError(
            f"{render.count(len(failed), 'step')} failed, {failed[0]}; the next pass tries again"
        )


def parsed_instant(text: str) -> datetime:
    """An instant of the command line."""
    try:
        # Python 3.10 knows no Z
        instant = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        usage(f"{text} is no instant; write it as 2026-01-31T08:00Z")
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=timezone.utc)


def delete_queue(ctx: typer.Context, queue: Name) -> None:
    """Delete a queue with everything in it."""
    session: Session = ctx.obj
    session.lake().delete_queue(queue)
    session.answer({"queue": queue, "deleted": True}, f"queue {queue} is deleted")


def pairs(given: Iterable[str] | None, what: str) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dict; the value may hold further equals signs."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            usage(f"{what} is written NAME=VALUE, not {text!r}")
        if name in found:
            usage(f"{name} is given twice")
        found[name] = value
    return found


def _given(
    visibility_timeout: float | None,
    retention: float | None,
    delay: float | None,
    wait: float | None,
    max_size: int | None,
    attribute: list[str] | None,
) -> dict[str, Any]:
    """The attributes that the command line names."""
    given: dict[str, Any] = {}
    for name, value in pairs(attribute, "--attribute").items():
        if name == name.lower() and name not in _snake_case_names():
            raise InvalidAttributeName(f"Unknown Attribute {name}.")  # never a parameter of the Python API
        given[name] = value
    own = {
        "visibility_timeout": visibility_timeout,
        "message_retention_period": retention,
        "delay": delay,
        "receive_wait_time": wait,
        "maximum_message_size": max_size,
    }
    return _merged(given, own)


def _redrive_policy(dead_letter_queue: str | None, max_receive_count: int | None) -> dict[str, Any]:
    if dead_letter_queue is None and max_receive_count is None:
        return {}
    if dead_letter_queue is None or max_receive_count is None:
        usage("--dead-letter-queue and --max-receive-count go together")
    from lakequeue.model.redrive_policies import RedrivePolicy

    return {"redrive_policy": RedrivePolicy(dead_letter_queue, max_receive_count)}


def _merged(given: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & named.keys():
        usage(f"{name} is given twice")
    return given | named


def _snake_case_names() -> set[str]:
    import attrs

    from lakequeue.model.attributes import QueueAttributes

    return {field.name for field in attrs.fields(QueueAttributes)}


def listed(
    lake: LakeQueue, prefix: str = "", limit: int | None = None, after: str | None = None
) -> Iterator[Queue]:
    """Queues by name, however many: the API lists them a page at a time."""
    from lakequeue import client

    page = lake.list_queues(prefix, limit, after)
    yield from page
    while limit is None and len(page) == client.MAX_LISTED:
        page = lake.list_queues(prefix, limit, page[-1].name)
        yield from page


def _answer_tags(session: Session, queue: Queue) -> None:
    tags = queue.tags()
    session.answer({"queue": queue.name, "tags": tags}, render.table(["tag", "value"], tags.items()))
