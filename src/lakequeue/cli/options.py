"""Arguments and options that several commands share, and how their values are parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from lakequeue.cli import completion
from lakequeue.cli.session import usage
from lakequeue.cli.values import INSTANT_HELP, duration, moment, size
from lakequeue.model.attributes import fields, kind_of, unknown

_NUMBER = re.compile(r"-?[0-9.]*")


def duration_option(help: str, *names: str, **more: Any) -> Any:
    """An option whose value is a duration."""
    return typer.Option(*names, metavar="DURATION", parser=duration, help=help, **more)


def instant_option(help: str, *names: str) -> Any:
    """An option whose value is an instant."""
    return typer.Option(*names, metavar="INSTANT", parser=moment, help=f"{help}, {INSTANT_HELP}.")


def queue_option(help: str, *names: str) -> Any:
    """An option that names a queue."""
    return typer.Option(*names, metavar="QUEUE", autocompletion=completion.queues, help=help)


Name = Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=completion.queues, help="Name of the queue.")]
OptionalName = Annotated[
    str | None,
    typer.Argument(metavar="[QUEUE]", autocompletion=completion.queues, help="All queues if not given."),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[QUEUE]...", autocompletion=completion.queues, help="All queues if none is given."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")]
VisibilityTimeout = Annotated[float | None, duration_option("How long a received message stays hidden.")]
Retention = Annotated[float | None, duration_option("How long messages are kept.")]
Delay = Annotated[float | None, duration_option("How long a new message stays hidden.")]
Wait = Annotated[float | None, duration_option("How long a receive waits for messages.")]
MaxSize = Annotated[
    int | None, typer.Option(metavar="SIZE", parser=size, help="Maximum size of a message, such as 256KiB.")
]
DeadLetterQueue = Annotated[
    str | None, queue_option("Dead-letter queue, for messages that were received too often.")
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
        autocompletion=completion.attributes,
        help="Any attribute, in snake_case or as SQS names it; repeatable.",
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag; repeatable.")]


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


def key_values(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parses the ``KEY=VALUE`` texts of an option, and never shows them: they may be secret."""
    pairs = [text.partition("=") for text in texts or ()]
    if not all(key and equals for key, equals, _ in pairs):
        usage(f"{option}: must be KEY=VALUE")
    return {key: value for key, _, value in pairs}


def attribute_arguments(
    attribute: list[str] | None, max_receive_count: int | None, dead_letter_queue: str | None, **options: Any
) -> dict[str, Any]:
    """Arguments for ``create_queue`` and ``set_attributes``: those of ``--attribute``, and the options by name."""
    arguments: dict[str, Any] = {}
    for name, value in parse_pairs(attribute, "--attribute").items():
        if name == name.lower() and name not in fields():
            raise unknown(name)  # other arguments of the Python API
        arguments[name] = _parsed(name, value)
    if (dead_letter_queue is None) != (max_receive_count is None):
        usage("--dead-letter-queue and --max-receive-count go together")
    if dead_letter_queue is not None and max_receive_count is not None:
        from lakequeue.model.redrive_policies import RedrivePolicy

        options["redrive_policy"] = RedrivePolicy(dead_letter_queue, max_receive_count)
    named = {name: value for name, value in options.items() if value is not None}
    for name in arguments.keys() & named.keys():
        usage(f"{name} is given twice")
    return arguments | named


def _parsed(name: str, value: str) -> str:
    """The value of an attribute, with its duration or size as a number; the queue checks the rest."""
    try:
        if kind_of(name) == "seconds":
            return value if _NUMBER.fullmatch(value) else f"{duration(value):.6f}".rstrip("0").rstrip(".")
        return str(size(value)) if name in ("maximum_message_size", "MaximumMessageSize", "MaxMsgSize") else value
    except typer.BadParameter as error:
        usage(f"--attribute {name}: {error.message}")
