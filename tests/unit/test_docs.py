"""The pages about conditions, permissions and security tell what the sources say."""

from __future__ import annotations

import re
from pathlib import Path

from lakequeue.conditions import evaluator, predicate, sandbox
from lakequeue.operations import browse

HERE = Path(__file__).parents[2]
CONDITIONS = (HERE / "docs" / "conditions.md").read_text(encoding="utf-8")


def listed(kind: str) -> list[str]:
    """What a row of the tables of conditions names in code."""
    [row] = re.findall(rf"^\| {re.escape(kind)} \| (.*) \|$", CONDITIONS, re.MULTILINE)
    return [name.replace("\\", "") for name in re.findall("`([^`]+)`", row)]


def test_the_page_names_what_a_condition_may_use():
    assert listed("operators") == list(evaluator.OPERATORS)
    for kind, names in evaluator.FUNCTIONS.items():
        assert listed(kind) == list(names), kind
    assert listed("types to cast to") == list(evaluator.TYPES)


def test_the_page_names_the_columns():
    table = CONDITIONS.split("| column |")[1].split("\n\n")[0]
    first_cells = " ".join(line.split("|")[1] for line in table.splitlines()[2:])
    assert re.findall("`([a-z_]+)`", first_cells) == browse.SCHEMA.names


def test_the_page_names_the_limits():
    assert f"{predicate.LONGEST:,} characters" in CONDITIONS
    batch = f"{browse.ROWS:,} to {browse.GROWTH * browse.ROWS:,} messages or {browse.BYTES // 2**20} MiB"
    assert f"| judging one batch, {batch} | {sandbox.SECONDS:g} s |" in CONDITIONS
    assert f"{sandbox.MEMORY // 2**20} MiB in all" in CONDITIONS
    assert f"| {sandbox.AT_ONCE}; others wait for {sandbox.WAIT_SECONDS:g} s |" in CONDITIONS


def test_links_between_the_pages_lead_somewhere():
    for page in [*HERE.glob("*.md"), *(HERE / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"
