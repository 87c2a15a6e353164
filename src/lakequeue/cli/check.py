"""Commands that find and repair damage."""

from __future__ import annotations

import shlex
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs
import typer

from lakequeue.cli import render
from lakequeue.cli.options import OptionalName, Yes, flag, queue_argument
from lakequeue.cli.session import REFUSED, CommandContext, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from lakequeue import Finding, Repair
    from lakequeue.entry_verbs import Advice, Remedy, RootHealth

SHOWN = 20
"""Maximum number of offset ranges, ids or problems that are printed."""
SHARDS = 5
"""Maximum number of shards that ``doctor`` prints. More lines would push the problems out of view."""


def check(ctx: CommandContext, queue: OptionalName = None) -> None:
    """Read every file, report damage, and change nothing. Exit code 1: damage."""
    lake = ctx.obj.lake()
    with render.spinner(f"checking {queue or lake.root}"):
        found = lake.check(queue)
    document = {
        "damaged": any(each.damage for each in found),
        "findings": [attrs.asdict(each) for each in found],
        "versions": versions(),
    }
    repair = ctx.obj.pasted(f"lakequeue repair {_target(queue)}")
    ctx.obj.answer(document, "\n".join([*map(finding_text, found), _verdict(found, repair)]))
    if document["damaged"]:
        raise typer.Exit(REFUSED)


def doctor(
    ctx: CommandContext,
    strict: bool = flag(
        False, "Exit code 1 for warnings, too, but not for notices, such as a pause of today.", "--strict"
    ),
) -> None:
    """Check all queues, and report what needs attention. Exit code 1: damage, or a full disk."""
    from rich.console import Group
    from rich.text import Text

    from lakequeue import entry_verbs

    lake = ctx.obj.lake()
    with render.spinner(f"examining {lake.root}"):
        health = entry_verbs.doctor(lake)
    damaged = any(each.damage for each in health.findings)
    texts = {"warnings": health.warnings, "notices": health.notices}
    problems = [*problems_of(health, ctx.obj.pasted)]
    document = {"damaged": damaged, **texts, "problems": problems, **attrs.asdict(health), "versions": versions()}

    def whole(lines: Iterator[str]) -> Text:  # not wrapped, so that commands can be copied
        return Text("\n".join(lines), no_wrap=True, overflow="ignore")

    shown = whole(health_lines(health, ctx.obj.pasted)), whole(_figures(health))
    shards = [] if health.queues is None else [_shards(health)]
    ctx.obj.answer(document, Group(*shown, *shards, f"({_used()})"))
    full = health.shortage is not None and health.shortage.full
    if damaged or full or (strict and document["warnings"]):
        raise typer.Exit(REFUSED)


def problems_of(health: RootHealth, pasted: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    """Yields each problem for programs: severity, kind, queue (None for the root), text and commands."""
    for found in health.findings:
        kind, command = "damage" if found.damage else "warning", f"lakequeue repair {_target(found.queue)}"
        yield {
            **{"severity": kind, "kind": "damage" if found.damage else None, "queue": found.queue},
            "text": finding_text(found).partition("\n")[0].removeprefix(f"{kind}: "),
            "commands": [pasted(command)] if found.damage else [],
        }
    for each in health.advice():
        commands = [pasted(step.command) for step in each.steps]
        about = {"severity": each.severity, "kind": each.kind or None, "queue": each.queue}
        yield {**about, "text": "; ".join((each.text, *each.details)), "commands": commands}


def _target(queue: str | None) -> str:
    return "--all" if queue is None else shlex.quote(queue)


def health_lines(health: RootHealth, pasted: Callable[[str], str]) -> Iterator[str]:
    """Yields the lines of ``doctor``: the verdict, then each problem with a cure, most urgent first."""
    advice, damage = [*health.advice()], _by_place(each for each in health.findings if each.damage)
    urgent, notices = sum(each.urgent for each in advice), sum(each.notice for each in advice)
    warnings = len(advice) - urgent - notices + sum(not each.damage for each in health.findings)
    if damage or advice or warnings:
        found = [*_damaged(damage)] or ["no damage"]
        found += [f"{urgent:,} urgent"] * bool(urgent) + [render.count(warnings, "warning")] * bool(warnings)
        found += [render.count(notices, "notice")] * bool(notices)
        several = len(damage) + urgent + warnings + notices > 1
        yield f"{', '.join(found)}{', the most urgent first' if several else ''}"
    else:
        yield "sound: nothing needs attention"
    full = health.shortage is not None and health.shortage.full
    if damage:
        yield from _step_lines([] if health.copies is None else [health.copies], pasted)
        first = "make room first; it " * full
        yield f"  {pasted('lakequeue repair --all')}  # {first}shows what it would do, and asks"
    yield ""
    if full:  # a repair needs room, too
        yield from _advice_lines(advice.pop(0), pasted)
    for findings in damage.values():
        yield finding_text(worst := findings[0])
        if worst.queue in health.met:
            yield f"  met by  {health.met[worst.queue]}"
        if more := len(findings) - 1:
            command = f"lakequeue check {shlex.quote(worst.queue)}" if worst.queue else "lakequeue check"
            yield f"  {pasted(command)}  # lists {render.count(more, 'more problem')} of it"
    warned = [each for each in health.findings if not each.damage]
    of_kind = Counter[str]()
    for each in advice:
        if each.notice:
            yield from map(finding_text, warned)
            warned = []
        of_kind[each.kind] += 1
        if not each.kind or of_kind[each.kind] <= SHOWN:
            yield from _advice_lines(each, pasted)
    yield from map(finding_text, warned)
    for kind, number in of_kind.items():
        if kind and number > SHOWN:
            yield f"and {number - SHOWN:,} more of {kind}; --json has all"
    if full or advice or health.findings:
        yield ""


def _by_place(findings: Iterable[Finding]) -> dict[tuple[str | None, str | None], list[Finding]]:
    """Groups findings by region and queue, or by root table. A group begins with the worst finding."""
    found: dict[tuple[str | None, str | None], list[Finding]] = {}
    for each in findings:
        found.setdefault((each.region, each.queue) if each.queue else (None, each.table), []).append(each)
    for group in found.values():  # a whole table is missing, before files and what follows from them
        group.sort(key=lambda each: each.file is not None or each.problem != "is missing")
    return found


def _damaged(places: Collection[tuple[str | None, str | None]]) -> Iterator[str]:
    queues = sum(region is not None for region, _ in places)
    if queues:
        yield render.count(queues, "damaged queue")
    if len(places) > queues:
        yield "a damaged root"


def _advice_lines(advice: Advice, pasted: Callable[[str], str]) -> Iterator[str]:
    yield f"{advice.severity}: {advice.text}"
    yield from (f"  {detail}" for detail in advice.details)
    if advice.hint:
        yield f"  {advice.hint}"
    yield from _step_lines(advice.steps, pasted)


def _step_lines(steps: Sequence[Remedy], pasted: Callable[[str], str]) -> Iterator[str]:
    commands = [pasted(step.command) for step in steps]
    width = max(map(len, commands), default=0)
    for command, step in zip(commands, steps, strict=True):
        yield f"  {command:{width}}  # {step.effect}" if step.effect else f"  {command}"


def _figures(health: RootHealth) -> Iterator[str]:
    free = "unlimited" if health.free_bytes is None else f"{health.free_bytes / 2**20:,.0f} MiB"
    places = "" if health.free_files is None else f", room for {health.free_files:,} files"
    ago = health.compacted_seconds_ago
    yield f"free space       {free}{places}"
    yield f"last compaction  {'never' if ago is None else f'{render.age(ago)} ago'}"
    behind = f"{render.age(health.clock_behind)} behind the newest" if health.clock_behind else "not behind any"
    yield f"clock            {behind} commit"
    if health.longest_handler is not None:
        yield f"longest handler  {health.longest_handler}"
    if health.store_use is not None:
        yield f"requests         {health.store_use}"
    some = f"; shards with the {SHARDS} largest ledgers, --json has all" if len(health.shards) > SHARDS else ""
    number = "unknown, because the catalog is damaged" if health.queues is None else health.queues
    oldest = health.oldest_queue_seconds_ago  # after a deployment that made an emptied root anew, it is young
    young = "" if oldest is None or oldest > 86_400 else f"; the oldest was created {render.age(oldest)} ago"
    yield f"queues           {number}{young}{some}"


def _shards(health: RootHealth) -> render.Fitting | str:
    columns = ["queue", "shard", "messages", "ledger runs", "files", "commits", "lost races"]
    rows: list[list[object]] = []
    for each in health.shards[:SHARDS]:
        counts = each.counts
        stored = counts.visible + counts.in_flight + counts.delayed + counts.held + counts.undecided
        rows.append([each.queue, counts.shard, stored])
        rows[-1] += [each.ledger_runs, each.ledger_files, counts.commits, counts.lost_races]
    return render.table(columns, rows)


def repair(
    ctx: CommandContext,
    queue: str | None = queue_argument(None, "Name of the queue, or give --all.", "[QUEUE]"),
    everything: bool = flag(False, "All queues of the root, and the catalog.", "--all"),
    clock: bool = flag(False, "Only set back the time that a wrong clock set ahead.", "--clock"),
    force: bool = flag(False, "Repair even if it is uncertain which messages are lost or come again.", "--force"),
    adopt: bool = flag(False, "Give the name back to a queue that the catalog lost.", "--adopt"),
    new_delivery_id: bool = flag(False, "Only deliver under a new id, in a copied root.", "--new-delivery-id"),
    yes: Yes = False,
) -> None:
    """Repair damage, after showing the steps and the losses. Exit code 1: some damage is left."""
    if (queue is not None) == everything:
        usage("name a queue, or give --all")
    if adopt and (clock or queue is None):
        usage("--adopt goes with the name of a queue, and not with --clock")
    if new_delivery_id and (clock or adopt or queue is None):
        usage("--new-delivery-id goes with the name of a queue, and alone")
    lake = ctx.obj.lake()
    with render.spinner(f"reading {queue or lake.root}"):
        planned = lake.repair(queue, clock=clock, adopt=adopt, new_delivery_id=new_delivery_id)
    if any(each.steps and (force or not each.unknown) for each in planned) and not yes:
        ctx.obj.note("\n".join(map(repair_text, planned)))
        if "://" in lake.root and not (clock or new_delivery_id):
            ctx.obj.note(
                "first stop producers, consumers, servers and the compactor: nothing keeps them out on a store"
            )
        ctx.obj.ask("Do this?")
    with render.spinner(f"repairing {queue or lake.root}"):
        done = lake.repair(
            queue, apply=True, clock=clock, force=force, adopt=adopt, new_delivery_id=new_delivery_id
        )
    last = "nothing was repaired" if done else "nothing to repair"
    if any(each.applied for each in done):
        last = f"repaired; {ctx.obj.pasted('lakequeue check')} verifies it"
    left = [each for each in done if each.steps and each.unknown and not each.applied]
    if left:
        target = f"{_target(queue)}{' --adopt' * adopt} --force"
        last = "the rest is not done" if any(each.applied for each in done) else "nothing was repaired"
        last += (
            ", because nobody knows which messages are lost or come again; if handlers may see a message twice: "
        )
        last += ctx.obj.pasted(f"lakequeue repair {target}")
    ctx.obj.changed([attrs.asdict(each) for each in done], "\n".join([*map(repair_text, done), last]))
    if not all(each.applied for each in done):
        raise typer.Exit(REFUSED)


def repair_text(repair: Repair) -> str:
    """Describes a repair in lines: the steps, the lost messages, and the messages that may come again."""
    done = "would be done with --force" if repair.unknown else "would be done"
    done = "done" if repair.applied else done if repair.steps else "cannot be repaired"
    shard = "" if repair.shard is None else f", shard {repair.shard}"
    lines = [
        f"{repair.queue or 'the catalog'}{shard}: {done}",
        *(f"  {step}" for step in repair.steps),
        *(f"  note: {note}" for note in repair.notes),
        *(f"  not certain: {why}" for why in repair.unknown),
        *_messages("lost", repair.lost, repair.lost_ids),
        *_sent(repair),
        *_messages("may come again", repair.again, repair.again_ids),
    ]
    return "\n".join(lines)


def _messages(what: str, ranges: list[tuple[int, int]], ids: dict[int, str]) -> Iterator[str]:
    if not ranges:
        return
    number = sum(last - first + 1 for first, last in ranges)
    parts = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges[:SHOWN])
    if len(ranges) > SHOWN:
        parts += f" and {render.count(len(ranges) - SHOWN, 'more range')}; --json has all"
    yield f"  {what}: {render.count(number, 'message')}, offset{'s' if number > 1 else ''} {parts}"
    for offset, message_id in islice(ids.items(), SHOWN):
        yield f"    id of the message at offset {offset} {message_id}"
    if len(ids) > SHOWN:
        yield f"    and {render.count(len(ids) - SHOWN, 'more id')}; --json has all"


def _sent(repair: Repair) -> Iterator[str]:
    """Yields lines with the send times of lost messages whose ids are unknown."""
    nameless = (
        (span, sent)
        for span, sent in zip(repair.lost, repair.lost_sent, strict=False)
        if any(offset not in repair.lost_ids for offset in range(span[0], min(span[1], span[0] + SHOWN) + 1))
    )
    for (first, last), (earliest, latest) in islice(nameless, SHOWN):
        what = f"offset {first} was" if first == last else f"offsets {first} to {last} were"
        since, until = (None if each is None else f"{each:%Y-%m-%d %H:%M:%S}" for each in (earliest, latest))
        if since is not None and since == until:
            yield f"    {what} sent at {since} UTC"
        elif since is not None:
            yield f"    {what} sent {f'between {since} and {until}' if until else f'after {since}'} UTC"
        elif until is not None:
            yield f"    {what} sent before {until} UTC"


def finding_text(finding: Finding) -> str:
    """Describes a finding in lines: problem, place, and effect of a repair."""
    place = f"{finding.table}/{finding.file}" if finding.file else finding.table
    kind, problem = "damage" if finding.damage else "warning", finding.problem
    if finding.file or problem.startswith(("is ", "has ")):  # a sentence without a subject
        problem = f"{finding.file or '/'.join(place.rsplit('/', 2)[1:])} {problem}"
    return "\n".join(
        [
            f"{kind}: {finding.queue or 'the root'}: {problem}",
            f"  in      {place}",
            f"  repair  {finding.repair}",
        ]
    )


def _verdict(found: list[Finding], repair: str) -> str:
    damaged = sum(each.damage for each in found)
    if damaged:
        found_damage = f"{render.count(damaged, 'finding')} of damage"
        return f"{found_damage}; {repair} shows its steps, and says if it needs --force ({_used()})"
    verdict = f"no damage, {render.count(len(found), 'warning')}" if found else "sound"
    return f"{verdict} ({_used()})"


def _used() -> str:
    return ", ".join(f"{name} {version}" for name, version in versions().items())


def versions() -> dict[str, str]:
    """Returns the versions of lakequeue, pyarrow, obstore and duckdb."""
    from importlib.metadata import version

    from lakequeue import __version__

    return {"lakequeue": __version__} | {name: version(name) for name in ("pyarrow", "obstore", "duckdb")}
