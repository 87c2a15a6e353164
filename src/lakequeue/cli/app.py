"""Builds the command ``lakequeue`` from its global options and all commands."""

from __future__ import annotations

import re
import shlex
from functools import partial
from importlib import import_module
from typing import Any

import typer
import typer.main

from lakequeue.cli.errors import Commands
from lakequeue.cli.help import COMMANDS, Command, RewindCommand, epilog, name_of
from lakequeue.cli.options import duration_option, flag, option, parse_pairs
from lakequeue.cli.session import USAGE, CommandContext, usage
from lakequeue.cli.values import DURATION_HELP
from lakequeue.model.secrets import command_prefix

app = typer.Typer(
    cls=Commands,
    name="lakequeue",
    help=f"Message queues in Delta tables. These options may also follow the command. {DURATION_HELP}",
    epilog="Exit codes: 0 done, 1 refused by the service, 2 usage, 3 storage or environment, 130 Ctrl-C.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from lakequeue import __version__

        typer.echo(f"lakequeue {__version__}")
        raise typer.Exit


def _mode(text: str) -> int:
    if not re.fullmatch("[0-7]{3,4}", text):
        usage(f"--root-mode {text}: must be octal permissions, such as 700 or 2770")
    return int(text, 8)


@app.callback(invoke_without_command=True)
def options(
    ctx: CommandContext,
    root: str | None = option(None, "Directory or URI that holds the queues.", "DIR", envvar="LAKEQUEUE_ROOT"),
    root_mode: str | None = option(
        None,
        "Permissions of a new local root, 700 by default; 2770 shares it with a group.",
        "OCTAL",
        envvar="LAKEQUEUE_ROOT_MODE",
    ),
    storage_option: list[str] | None = option(
        None,
        "Option for an object store, such as AWS_ENDPOINT_URL=…; may be repeated. Put secrets into the "
        "environment instead: others see the command line.",
        "KEY=VALUE",
    ),
    network_file_system: bool = flag(
        False,
        "Allow a root on a network file system, which only one machine may use.",
        "--network-file-system",
        envvar="LAKEQUEUE_NETWORK_FILE_SYSTEM",
    ),
    durability: str | None = option(
        None,
        "What acknowledged messages survive on local disks: power (default) or process (scratch data).",
        "LEVEL",
        envvar="LAKEQUEUE_DURABILITY",
    ),
    poll_interval: float | None = duration_option(
        None,
        "Longest interval between polls of a waiting receive for changes by other processes: 0.5 by "
        "default, 1 on an object store.",
        envvar="LAKEQUEUE_POLL_INTERVAL",
    ),
    region: str = option("local", "Region of the queues.", "NAME"),
    json: bool = flag(False, "Print one JSON document.", "--json"),
    verbose: bool = flag(False, "Print stack traces of errors.", "--verbose", "-v"),
    version: bool = flag(False, "Print the version.", "--version", callback=_version, is_eager=True),
) -> None:
    ctx.obj.root, ctx.obj.region, ctx.obj.json, ctx.obj.verbose = root, region, json, verbose
    ctx.obj.storage_options = parse_pairs(storage_option, "--storage-option", secret=True)
    ctx.obj.network_file_system = network_file_system
    ctx.obj.durability, ctx.obj.poll_interval = durability, poll_interval
    ctx.obj.root_mode = None if root_mode is None else _mode(root_mode)
    source = ctx.get_parameter_source("root")
    if root and source is not None and source.name == "COMMANDLINE":
        ctx.obj.prefix = command_prefix(root)
    if region != "local":
        ctx.obj.prefix += f" --region {shlex.quote(region)}"
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(USAGE)


def _command(place: str, panel: str) -> Any:
    name, alone = name_of(place), typer.Typer(add_completion=False)
    module, _, function = place.partition(".")
    found = getattr(import_module(f"lakequeue.cli.{module}"), function)
    told: dict[str, Any] = {"rich_help_panel": panel, "epilog": epilog(COMMANDS[panel][place])}
    if isinstance(found, typer.Typer):
        alone.add_typer(found, **told)
        return typer.main.get_group(alone).commands[name]
    cls = RewindCommand if name == "rewind" else Command
    alone.command(name, cls=cls, **told)(found)
    return typer.main.get_command(alone)


Commands.builders = {
    name_of(place): partial(_command, place, panel) for panel, places in COMMANDS.items() for place in places
}


def main() -> None:
    app()
