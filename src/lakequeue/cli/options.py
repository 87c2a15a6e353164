"""Arguments and options that several commands share, and parsers of their values."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from lakequeue.cli.session import usage
from lakequeue.cli.values import INSTANT_HELP, duration, moment, size
from lakequeue.model.attributes import ATTRIBUTE_NAMES, kind_of, unknown
from lakequeue.model.profiles import PROFILES

_NAMES = {"retention": "message_retention_period", "wait": "receive_wait_time", "max_size": "maximum_message_size"}
_NO_ATTRIBUTES = {"queue", "attribute", "dead_letter_queue", "max_receive_count", "tag"}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?")


def _queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of queues in a local root. Skips object stores because they are too slow. Prints nothing."""
    options = ctx.find_root().params
    root = options.get("root")
    if not root:
        return []
    logging.disable()  # a warning would appear in the middle of the user's line
    try:
        from lakequeue import LakeQueue
        from lakequeue.entry_verbs import local_path

        if local_path(str(root)) is None:
            return []
        lake = LakeQueue(str(root), region=options.get("region") or "local")
        return [queue.name for queue in lake.list_queues(incomplete)]
    except Exception:  # the command itself will report it
        return []
    finally:
        logging.disable(logging.NOTSET)


def _attribute_names(incomplete: str) -> list[str]:
    return [f"{name}=" for name in ATTRIBUTE_NAMES if name.startswith(incomplete)]


def profile_names(incomplete: str) -> list[str]:
    return [name for name in PROFILES if name.startswith(incomplete)]


# the default of a parameter comes first, as in typer; ... means no default, or a default in the signature


def argument(default: Any, help: str, metavar: str, **more: Any) -> Any:
    """Declares an argument, named ``metavar`` in the help."""
    return typer.Argument(default, metavar=metavar, help=help, **more)


def option(default: Any, help: str, metavar: str, *names: str, **more: Any) -> Any:
    """Declares an option with a value, which the help calls ``metavar``."""
    return typer.Option(default, *names, metavar=metavar, help=help, **more)


def flag(default: Any, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(default, *names, help=help, **more)


def duration_option(default: Any, help: str, *names: str, parser: Any = duration, **more: Any) -> Any:
    return option(default, help, "DURATION", *names, parser=parser, **more)


def instant_option(default: Any, help: str, *names: str) -> Any:
    return option(default, f"{help}, {INSTANT_HELP}.", "INSTANT", *names, parser=moment)


def queue_argument(default: Any, help: str, metavar: str) -> Any:
    return argument(default, help, metavar, autocompletion=_queue_names)


def queue_option(default: Any, help: str, *names: str) -> Any:
    return option(default, help, "QUEUE", *names, autocompletion=_queue_names)


Name = Annotated[str, queue_argument(..., "Name of the queue.", "QUEUE")]
MessageId = Annotated[str, argument(..., "Id of the message.", "MESSAGE_ID")]
Group = Annotated[str | None, option(..., "Message group; required for FIFO queues.", "ID")]
OptionalName = Annotated[str | None, queue_argument(..., "All queues if not given.", "[QUEUE]")]
Names = Annotated[list[str] | None, queue_argument(..., "All queues if none is given.", "[QUEUE]...")]
Yes = Annotated[bool, flag(..., "Do not ask.", "--yes", "-y")]
DryRun = Annotated[bool, flag(..., "Only show the effect, and change nothing.", "--dry-run")]
VisibilityTimeout = Annotated[float | None, duration_option(..., "How long a received message stays hidden.")]
Retention = Annotated[float | None, duration_option(..., "Retention period: how long messages are kept.")]
Delay = Annotated[float | None, duration_option(..., "How long a new message stays hidden.")]
Wait = Annotated[float | None, duration_option(..., "How long a receive waits for messages.")]
MaxSize = Annotated[int | None, option(..., "Maximum size of a message, such as 256KiB.", "SIZE", parser=size)]
DeadLetterQueue = Annotated[
    str | None, queue_option(..., "Dead-letter queue, for messages that were received too often.")
]
MaxReceiveCount = Annotated[int | None, option(..., "Receives before a message moves there, 1 to 1,000.", "N")]
DeliveryTable = Annotated[
    str | None,
    option(
        ...,
        "Delivery table, into which consumers write what handlers return: a path, URI or name in a catalog.",
        "TABLE",
        "--table",
    ),
]
Attributes = Annotated[
    list[str] | None,
    option(
        ...,
        "Any attribute, in snake_case or as SQS names it; repeatable.",
        "NAME=VALUE",
        "--attribute",
        "-a",
        autocompletion=_attribute_names,
    ),
]
Where = Annotated[
    str | None,
    option(
        ..., "Only messages for which this condition is true, such as \"state = 'visible' AND age > 60\".", "SQL"
    ),
]
Parameter = Annotated[
    list[str] | None,
    option(..., "Value of the next ? in --where, without quotes of its own; repeatable.", "VALUE"),
]
OfError = Annotated[
    str | None,
    option(..., "Only dead letters that failed last with this error, such as ValueError.", "CLASS", "--error"),
]
Tags = Annotated[list[str] | None, option(..., "A tag; repeatable.", "KEY=VALUE", "--tag")]


def chosen(where: str | None, parameters: list[str] | None, error: str | None) -> tuple[str | None, list[str]]:
    """Returns the condition of ``--where`` and ``--error``, and the values of its parameters."""
    if error is None:
        return where, parameters or []
    rest = f" AND ({where}\n)" if where else ""
    return f"dead_letter_reason->>'$.error' = ?{rest}", [error, *(parameters or [])]


def parse_pairs(texts: Iterable[str] | None, what: str, secret: bool = False) -> dict[str, str]:
    """Parses texts NAME=VALUE. Refuses a repeated name. With ``secret``, uses the last value of a repeated name,
    and shows no values in errors.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            usage(f"{what}: must be KEY=VALUE" if secret else f"{what} is written NAME=VALUE, not {text!r}")
        if name in found and not secret:
            usage(f"{name} is given twice")
        found[name] = value
    return found


_OPTIONS = ("--dead-letter-queue", "--max-receive-count")
"""Options that users may give as attributes by mistake. The error for an unknown attribute suggests them."""


def attribute_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts command options to arguments of ``create_queue`` and ``set_attributes``."""
    dead_letter_queue, most = given["dead_letter_queue"], given["max_receive_count"]
    named = {_NAMES.get(name, name): value for name, value in given.items() if name not in _NO_ATTRIBUTES}
    named = {name: value for name, value in named.items() if value is not None and value is not False}
    arguments: dict[str, Any] = {}
    for name, value in parse_pairs(given["attribute"], "--attribute").items():
        if name == name.lower() and name not in ATTRIBUTE_NAMES:
            raise unknown(name, (*ATTRIBUTE_NAMES, *_OPTIONS))  # also other arguments of the Python API
        arguments[name] = _parsed(name, value)
    if (dead_letter_queue is None) != (most is None):
        usage("--dead-letter-queue and --max-receive-count go together")
    if dead_letter_queue is not None:
        from lakequeue.model.redrive_policies import RedrivePolicy

        named["redrive_policy"] = RedrivePolicy(dead_letter_queue, most)
    for name in arguments.keys() & named.keys():
        usage(f"{name} is given twice")
    return arguments | named


def _parsed(name: str, value: str) -> str | int | float:
    if not value:
        return value
    try:
        if kind_of(name) == "seconds":
            seconds = float(value) if _NUMBER.fullmatch(value[:20]) else round(duration(value), 6)
            return int(seconds) if seconds.is_integer() else seconds
        if name in ("maximum_message_size", "MaximumMessageSize", "MaxMsgSize"):
            return size(value)
        return int(value) if kind_of(name) == "count" and re.fullmatch("-?[0-9]{1,18}", value) else value
    except typer.BadParameter as error:
        usage(f"--attribute {name}: {error.message}")
