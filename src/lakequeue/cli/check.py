"""Commands that look for damage and mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from lakequeue.cli import render
from lakequeue.cli.options import OptionalName, Yes
from lakequeue.cli.session import REFUSED, Session, usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakequeue import Finding, Repair
    from lakequeue.entry_verbs import Health

SHOWN = 20
"""Ranges of offsets, and ids, that are printed of each kind."""


def check(ctx: typer.Context, queue: OptionalName = None) -> None:
    """Read every file of a queue, or of all, and tell what is wrong; change nothing. Exit code 1: damage."""
    session: Session = ctx.obj
    lake = session.lake()
    with render.spinner(f"checking {queue or lake.root}"):
        found = lake.check(queue)
    document = {
        "damaged": any(each.damage for each in found),
        "findings": [attrs.asdict(each) for each in found],
        "versions": versions(),
    }
    session.answer(document, "\n".join([*map(finding_text, found), _verdict(found)]))
    if document["damaged"]:
        raise typer.Exit(REFUSED)


def doctor(ctx: typer.Context) -> None:
    """Check all queues, and tell how the root is doing: space, compaction, clock, shards. Exit code 1: damage."""
    from rich.console import Group

    from lakequeue import entry_verbs

    session: Session = ctx.obj
    lake = session.lake()
    with render.spinner(f"examining {lake.root}"):
        health = entry_verbs.doctor(lake)
    damaged = any(each.damage for each in health.findings)
    document = {"damaged": damaged, "warnings": health.warnings, **attrs.asdict(health), "versions": versions()}
    session.answer(document, Group("\n".join(_health_lines(health)), _shards(health), _verdict(health.findings)))
    if damaged:
        raise typer.Exit(REFUSED)


def _health_lines(health: Health) -> Iterator[str]:
    yield from map(finding_text, health.findings)
    for warning in health.warnings:
        yield f"warning: {warning}"
    free = "unlimited" if health.free_bytes is None else f"{health.free_bytes / 2**30:,.1f} GiB"
    places = "" if health.free_files is None else f", room for {health.free_files:,} files"
    ago = health.compacted_seconds_ago
    yield f"free space       {free}{places}"
    yield f"last compaction  {'never' if ago is None else f'{render.age(max(0.0, ago))} ago'}"
    behind = health.clock_behind
    yield f"clock            {f'{behind:.1f} s behind the newest commit' if behind else 'not behind any commit'}"
    more = len(health.shards) - SHOWN
    yield f"queues           {health.queues}{f'; the {SHOWN} largest shards, --json has all' if more > 0 else ''}"


def _shards(health: Health) -> render.Fitting:
    columns = [
        "queue",
        "shard",
        "visible",
        "in flight",
        "delayed",
        "ledger runs",
        "files",
        "commits",
        "lost races",
    ]
    rows: list[list[object]] = []
    for each in health.shards[:SHOWN]:
        counts = each.counts
        rows.append([each.queue, counts.shard, counts.visible, counts.in_flight, counts.delayed + counts.held])
        rows[-1] += [each.ledger_runs, each.ledger_files, counts.commits, counts.lost_races]
    return render.table(columns, rows)


def repair(
    ctx: typer.Context,
    queue: OptionalName = None,
    everything: Annotated[bool, typer.Option("--all", help="All queues of the root, and the catalog.")] = False,
    yes: Yes = False,
) -> None:
    """Mend what check finds: show what would be done and what is lost, ask, do it. Exit code 1: some is left."""
    session: Session = ctx.obj
    if (queue is not None) == everything:
        usage("name a queue, or give --all")
    lake = session.lake()
    with render.spinner(f"reading {queue or lake.root}"):
        planned = lake.repair(queue)
    if any(each.steps for each in planned) and not yes:
        session.note("\n".join(map(repair_text, planned)))
        session.ask("Do this?")
    with render.spinner(f"repairing {queue or lake.root}"):
        done = lake.repair(queue, apply=True)
    last = "nothing was repaired" if done else "nothing to repair"
    if any(each.applied for each in done):
        last = "repaired; lakequeue check looks again"
    session.answer([attrs.asdict(each) for each in done], "\n".join([*map(repair_text, done), last]))
    if any(not each.steps for each in done):
        raise typer.Exit(REFUSED)


def repair_text(repair: Repair) -> str:
    """What is done to a shard, and what is lost and comes again, as lines."""
    done = "done" if repair.applied else "would be done" if repair.steps else "cannot be mended"
    shard = "" if repair.shard is None else f", shard {repair.shard}"
    ids = [f"{offset} {message_id}" for offset, message_id in repair.lost_ids.items()]
    lines = [
        f"{repair.queue or 'the catalog'}{shard}: {done}",
        *(f"  {step}" for step in repair.steps),
        *_messages("lost", repair.lost),
        *(f"    id of the message at offset {each}" for each in ids[:SHOWN]),
        *_messages("may come again", repair.again),
        *(f"  note: {note}" for note in repair.notes),
    ]
    return "\n".join(lines)


def _messages(what: str, ranges: list[tuple[int, int]]) -> list[str]:
    if not ranges:
        return []
    number = sum(last - first + 1 for first, last in ranges)
    parts = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges[:SHOWN])
    if len(ranges) > SHOWN:
        parts += f" and {render.count(len(ranges) - SHOWN, 'more range')}; --json has all"
    return [f"  {what}: {render.count(number, 'message')}, offset{'s' if number > 1 else ''} {parts}"]


def finding_text(finding: Finding) -> str:
    """A finding as lines: what is wrong where, and what repair does."""
    place = f"{finding.table}/{finding.file}" if finding.file else finding.table
    kind = "damage" if finding.damage else "warning"
    return "\n".join(
        [
            f"{kind}: {finding.queue or 'the root'}: {finding.problem}",
            f"  in      {place}",
            f"  repair  {finding.repair}",
        ]
    )


def _verdict(found: list[Finding]) -> str:
    damaged = sum(each.damage for each in found)
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    if damaged:
        return f"{render.count(damaged, 'finding')} of damage; lakequeue repair shows what can be mended ({used})"
    return f"sound ({used})"


def versions() -> dict[str, str]:
    """Versions in use, of this package and those that read and write its files."""
    from importlib.metadata import version

    from lakequeue import __version__

    return {"lakequeue": __version__} | {name: version(name) for name in ("pyarrow", "obstore", "duckdb")}
