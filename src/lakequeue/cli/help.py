"""Formats the help of commands: adds examples, and hides the types of Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup

COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "To try it": {
        "demo.demo": ("demo --no-spark",),
    },
    "Queues": {
        "queues.create": (
            "create orders --visibility-timeout 5m",
            "create orders.fifo --fifo",
            "create jobs --dead-letter-queue dead --max-receive-count 5",
            "create orders --table s3://lake/silver/orders",
        ),
        "queues.list_": ("list --prefix ord", "list --json"),
        "queues.show": ("show orders", "show orders 0b6f8a4e-5d3c-4f0e-9a57-3f1d2c4b5a69"),
        "queues.set_": ("set orders --retention 7d", "set orders -a rewind_range=1d"),
        "queues.tag": ("tag orders team=shop cost-center=42",),
        "queues.untag": ("untag orders team",),
        "maintenance.counts": ("counts", "counts orders --json"),
        "watch.watch": ("watch --prefix ord --every 5s",),
        "plot.plot": ("plot orders --out orders.png --since '2h ago'",),
        "moves.rewind": ("rewind orders -10m --dry-run", "rewind orders 2026-01-31T08:00Z"),
        "moves.redrive": (
            "redrive dead --error ValueError --dry-run",
            "redrive dead --max 100 --where 'age > 60'",
        ),
        "drain.drain": ("drain orders archive", "drain orders jobs.fifo --group-by customer"),
        "relay.relay": ("relay silver/orders orders --once", "relay --files 'landing/*.json' orders --every 30s"),
        "decide.decide": ("decide orders --delivered --dry-run", "decide orders --again"),
        "queues.pause": ("pause orders --reason 'the bank is down'",),
        "queues.resume": ("resume orders",),
        "schedules.schedule": (
            "schedule add nightly --queue jobs --body report --cron '0 2 * * *'",
            "schedule list",
            "schedule run",
        ),
        "maintenance.consumers": ("consumers", "consumers orders"),
        "maintenance.purge": ("purge orders --yes",),
        "maintenance.erase": ("erase orders 0b6f8a4e-5d3c-4f0e-9a57-3f1d2c4b5a69",),
        "queues.delete_queue": ("delete-queue orders",),
    },
    "Messages": {
        "messages.send": (
            "send orders 'a body' --delay 5m --attribute lang=en",
            "send orders.fifo 'a body' --group customer-7",
            "send orders --lines messages.txt",
        ),
        "messages.receive": ("receive orders --max 10 --wait 20s", "receive orders --delete"),
        "messages.delete": ("delete orders HANDLE",),
        "messages.change_visibility": ("change-visibility orders HANDLE 10m",),
        "messages.reschedule": ("reschedule orders 0b6f8a4e-5d3c-4f0e-9a57-3f1d2c4b5a69 --in 2h",),
        "messages.cancel": ("cancel orders 0b6f8a4e-5d3c-4f0e-9a57-3f1d2c4b5a69",),
        "messages.peek": ("peek orders --where \"state = 'in_flight'\"",),
        "consume.consume": (
            "consume orders shop.handlers:handle",
            "consume orders shop.handlers:handle --until-empty",
        ),
        "export.export": ("export orders --out orders.jsonl", "export orders --state visible"),
    },
    "In SQL": {
        "sql.views": ("views",),
        "sql.sql": ("sql 'SELECT * FROM queues'", "sql 'SELECT state, count(*) FROM messages GROUP BY 1'"),
    },
    "Roots": {
        "maintenance.compact": ("compact", "compact orders"),
        "check.check": ("check", "check orders"),
        "check.repair": ("repair orders", "repair --all"),
        "check.doctor": ("doctor", "doctor --strict"),
        "maintenance.copy": ("copy my-queues s3://backups/monday",),
        "maintenance.upgrade": ("upgrade --yes",),
    },
    "For other clients": {
        "serve.serve": ("serve --port 9324", "serve --keys keys.json --host 0.0.0.0"),
        "serve.deploy_files": ("deploy-files lakequeue-deploy",),
    },
}
"""The commands of each section of the help, with examples of up to 60 characters."""


def name_of(place: str) -> str:
    return place.partition(".")[2].rstrip("_").replace("_", "-")


def epilog(examples: Sequence[str]) -> str:
    lines = [f"lakequeue {example}" for example in examples]
    return "\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])


class _Conversion:
    """Converts values as typer does, but returns plain text unchanged, without loading pydantic (60 ms)."""

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
    """Hides Python's types in the help of options and arguments. Writes names of values in capitals."""
    for each in params:
        each.get_runtime_param = partial(_Conversion, each)
        each.min = each.max = None  # errors name the ranges, which take too much space in the help
        if each.param_type_name == "argument":
            each.display_type_rich = lambda ctx: None
            each.get_usage_pieces = lambda ctx, written=each.metavar: [written]
        elif each.is_flag:
            each.metavar = ""
        elif each.metavar is None and not each.type_descriptor.is_choice:
            each.metavar = each.name.rpartition("_")[2].upper()
    return params


class _PlainHelp:
    def get_params(self, ctx: Any) -> list[Any]:
        return plain(super().get_params(ctx))  # type: ignore[misc]  # of typer's classes


class Command(_PlainHelp, TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        for each in (*ctx.find_root().command.params, *self.params):
            if each.param_type_name == "option":
                flag = each.opts[0]
                ctx.obj.flags |= {each.name: flag, flag.removeprefix("--").replace("-", "_"): flag}
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils

        padding: Any = (0, 1, 0, 0)  # with typer's padding, long options are cut at 80 columns
        rich_utils.STYLE_OPTIONS_TABLE_PADDING = padding
        super().format_help(ctx, formatter)


class CommandGroup(_PlainHelp, TyperGroup): ...


class RewindCommand(Command):
    """A command that reads ``-10m`` as an instant, not as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        after = zip(["", *args], args, strict=False)
        return super().parse_args(
            ctx,
            [f"{arg[1:]} ago" if re.match(r"-\d", arg) and last != "--ago" else arg for last, arg in after],
        )
