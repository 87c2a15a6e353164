"""Help of commands: examples below each, and a type only where an option takes a value."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from typer.core import TyperCommand

EXAMPLES = {
    "create": (
        "create orders --visibility-timeout 5m",
        "create orders.fifo --fifo",
        "create jobs --dead-letter-queue dead --max-receive-count 5",
    ),
    "list": ("list --prefix ord", "list --json"),
    "show": ("show orders",),
    "set": ("set orders --retention 7d", "set orders -a rewind_range=1d"),
    "tag": ("tag orders team=shop cost-center=42",),
    "untag": ("untag orders team",),
    "counts": ("counts", "counts orders --json"),
    "watch": ("watch --prefix ord --every 5s",),
    "plot": ("plot orders --out orders.png --since '2h ago'",),
    "rewind": ("rewind orders -10m --dry-run", "rewind orders 2026-01-31T08:00Z"),
    "redrive": ("redrive dead --dry-run", "redrive dead --max 100 --where 'age > 60'"),
    "drain": ("drain orders archive", "drain orders jobs.fifo --group-by customer"),
    "purge": ("purge orders --yes",),
    "erase": ("erase orders 0b6f8a4e-5d3c-4f0e-9a57-3f1d2c4b5a69",),
    "compact": ("compact", "compact orders"),
    "check": ("check", "check orders"),
    "repair": ("repair orders", "repair --all"),
    "doctor": ("doctor",),
    "deploy-files": ("deploy-files lakequeue-deploy",),
    "delete-queue": ("delete-queue orders",),
    "send": (
        "send orders 'a body' --delay 5m -a language=en",
        "send orders.fifo 'a body' --group customer-7",
        "send orders --lines messages.txt",
    ),
    "receive": ("receive orders --max 10 --wait 20s", "receive orders --delete"),
    "delete": ("delete orders HANDLE",),
    "change-visibility": ("change-visibility orders HANDLE 10m",),
    "peek": ("peek orders --where \"state = 'in_flight'\"",),
    "consume": (
        "consume orders shop.handlers:handle",
        "consume orders shop.handlers:handle --until-empty --fail-on-error",
    ),
    "export": ("export orders --out orders.jsonl", "export orders --state visible"),
    "sql": (
        "sql 'SELECT * FROM queues'",
        "sql 'SELECT state, count(*) FROM messages GROUP BY 1'",
    ),
    "copy": ("copy my-queues s3://backups/monday",),
    "upgrade": ("upgrade --yes",),
    "serve": ("serve --port 9324", "serve --keys keys.json --host 0.0.0.0"),
    "views": ("views",),
    "demo": ("demo --no-spark",),
}
"""What follows ``lakequeue``, by command; no longer than fits into 60 characters with it, where possible."""


def epilog(command: str) -> str:
    """The examples of a command, as the end of its help."""
    lines = [f"lakequeue {example}" for example in EXAMPLES[command]]
    return "\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])


class _Conversion:
    """Typer's conversion of values. Those that need none do not load pydantic, which takes 60 ms."""

    def __init__(self, param: Any) -> None:
        self._converting = type(param).get_runtime_param
        described = param.type_descriptor
        self._is_text = described.annotation is str and described.parameter_info.parser is None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._is_text and isinstance(value, str) and value.isascii():
            return value
        return self._converting(param).coerce(value, param=param, ctx=ctx)


def plain(params: list[Any]) -> list[Any]:
    """Has options without a value, and arguments, show no type of Python; values of others are in capitals."""
    for each in params:
        each.get_runtime_param = partial(_Conversion, each)
        if each.param_type_name == "argument":
            each.display_type_rich = lambda ctx: None
        elif each.is_flag:
            each.metavar = ""
        elif each.metavar is None and not each.type_descriptor.is_choice:
            each.metavar = each.name.rpartition("_")[2].upper()
    return params


class Command(TyperCommand):
    """A command whose help shows no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        return plain(super().get_params(ctx))


class RewindCommand(Command):
    """Takes ``-10m`` as an instant, not as options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"{arg[1:]} ago" if re.match(r"-\d", arg) else arg for arg in args])
