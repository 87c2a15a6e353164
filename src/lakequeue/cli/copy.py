"""``lakequeue copy``: queues in use to another root."""

from __future__ import annotations

from typing import Annotated

import attrs
import typer

from lakequeue.cli import render
from lakequeue.cli.options import key_values, queue_option
from lakequeue.cli.session import Context


def copy(
    ctx: Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="Root to copy.")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="Root that takes the queues; made if it is missing.")
    ],
    queue: Annotated[str | None, queue_option("Only this queue.", "--queue")] = None,
    to_storage_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option for the object store of TO, as --storage-option for FROM."),
    ] = None,
) -> None:
    """Copy the queues of a root to another while they are in use: backup, restore, move to an object store."""
    ctx.obj.root = source
    lake = ctx.obj.lake()
    to = attrs.evolve(
        ctx.obj, root=target, storage_options=key_values(to_storage_option, "--to-storage-option")
    ).lake()
    with render.progress("copying", None) as advance:
        copied = lake.copy(to, queue, lambda done, total, name: advance(done, name, total))
    columns = [field.name for field in attrs.fields(type(copied[0]))] if copied else []
    ctx.obj.answer(
        [attrs.asdict(each) for each in copied],
        render.table(columns, [attrs.astuple(each) for each in copied], empty="no queues"),
    )
