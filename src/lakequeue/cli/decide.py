"""The command that decides undecided deliveries, after showing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from lakequeue.cli import render
from lakequeue.cli.options import DryRun, Name, Yes, flag
from lakequeue.cli.session import CommandContext, usage

if TYPE_CHECKING:
    from lakequeue import UndecidedDelivery


def decide(
    ctx: CommandContext,
    queue: Name,
    delivered: bool = flag(False, "The rows are in the table: delete the messages.", "--delivered"),
    again: bool = flag(False, "The rows are not in the table: make the messages visible.", "--again"),
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete the messages of undecided deliveries, or make them visible again. First show the deliveries, and ask.

    A delivery is undecided while nobody knows whether its rows are in the table.
    """
    if delivered == again:
        usage("give either --delivered or --again")
    owner = ctx.obj.queue(queue)
    found = owner.undecided()
    count = sum(each.messages for each in found)
    what = f"{render.count(count, 'undecided message')} of {queue}"
    document = {"queue": queue, "delivered": delivered, "messages": count}
    if dry_run:
        document["deliveries"] = [attrs.asdict(each) for each in found]
        would = f"would delete {what}" if delivered else f"would make {what} visible"
        ctx.obj.answer(document | {"dry_run": True}, "\n".join([*_lines(found), would]))
        return
    if found and not yes:
        ctx.obj.note("\n".join(_lines(found)))
        risk = "Messages whose rows are not in the table are lost"
        if again:
            risk = "Rows that are in the table, or that a process still appends, are stored twice"
        ctx.obj.ask(f"{'Delete' if delivered else 'Make visible'} {what}? {risk}.")
    count = owner.decide(delivered=delivered)
    done = "deleted" if delivered else "visible again"
    ctx.obj.changed(document | {"messages": count}, f"{render.count(count, 'message')} of {queue} {done}")


def _lines(found: list[UndecidedDelivery]) -> list[str]:
    return [
        f"{render.count(each.messages, 'message')} since {render.instant(each.since)}: "
        f"the rows are in the table if its log has {each.application_id} with version {each.version}"
        for each in found
    ]
