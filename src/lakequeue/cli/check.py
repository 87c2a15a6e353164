"""Commands that look for damage and mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import typer

from lakequeue.cli import render
from lakequeue.cli.options import OptionalName
from lakequeue.cli.session import REFUSED, Session

if TYPE_CHECKING:
    from lakequeue import Finding


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
        return f"{render.count(damaged, 'damage')} found; lakequeue repair shows what can be mended ({used})"
    return f"sound ({used})"


def versions() -> dict[str, str]:
    """Versions in use, of this package and those that read and write its files."""
    from importlib.metadata import version

    from lakequeue import __version__

    return {"lakequeue": __version__} | {name: version(name) for name in ("deltalake", "pyarrow", "obstore")}
