"""Arguments and options that several commands share, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Annotated, Any

import typer

from lakequeue.cli.session import usage
from lakequeue.errors import InvalidAttributeName
from lakequeue.model import clock

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
VisibilityTimeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="How long a received message stays hidden.")
]
Retention = Annotated[float | None, typer.Option(metavar="SECONDS", help="How long messages are kept.")]
Delay = Annotated[float | None, typer.Option(metavar="SECONDS", help="How long a new message stays hidden.")]
Wait = Annotated[float | None, typer.Option(metavar="SECONDS", help="How long a receive waits for messages.")]
MaxSize = Annotated[int | None, typer.Option(metavar="BYTES", help="Maximum size of a message.")]
DeadLetterQueue = Annotated[
    str | None, typer.Option(metavar="NAME", help="Dead-letter queue, for messages that were received too often.")
]
MaxReceiveCount = Annotated[
    int | None, typer.Option(metavar="N", help="Receives before a message moves there, 1 to 1,000.")
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        "-a",
        metavar="NAME=VALUE",
        help="Any attribute, in snake_case or as SQS names it; repeatable.",
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag; repeatable.")]


def parse_instant(text: str) -> datetime:
    """An instant on the command line; UTC if it has no time zone."""
    try:
        instant = clock.parse_instant(text)
    except ValueError:
        usage(f"{text} is not an instant; write it as 2026-01-31T08:00Z")
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=timezone.utc)


def parse_pairs(texts: Iterable[str] | None, what: str) -> dict[str, str]:
    """Parses ``NAME=VALUE`` texts; a value may contain further equals signs."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            usage(f"{what} is written NAME=VALUE, not {text!r}")
        if name in found:
            usage(f"{name} is given twice")
        found[name] = value
    return found


def attribute_arguments(
    attribute: list[str] | None, max_receive_count: int | None, dead_letter_queue: str | None, **options: Any
) -> dict[str, Any]:
    """Arguments for ``create_queue`` and ``set_attributes``: those of ``--attribute``, and the options by name."""
    arguments: dict[str, Any] = {}
    for name, value in parse_pairs(attribute, "--attribute").items():
        if name == name.lower() and name not in _snake_case_names():
            raise InvalidAttributeName(f"Unknown Attribute {name}.")  # other arguments of the Python API
        arguments[name] = value
    if (dead_letter_queue is None) != (max_receive_count is None):
        usage("--dead-letter-queue and --max-receive-count go together")
    if dead_letter_queue is not None and max_receive_count is not None:
        from lakequeue.model.redrive_policies import RedrivePolicy

        options["redrive_policy"] = RedrivePolicy(dead_letter_queue, max_receive_count)
    named = {name: value for name, value in options.items() if value is not None}
    for name in arguments.keys() & named.keys():
        usage(f"{name} is given twice")
    return arguments | named


def _snake_case_names() -> set[str]:
    import attrs

    from lakequeue.model.attributes import QueueAttributes

    return {field.name for field in attrs.fields(QueueAttributes)}
