"""The walks on docs/internals/walks.md match the imports: straight down, each room once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parents[2]
PACKAGE = HERE / "src" / "lakequeue"
PAGE = (HERE / "docs" / "internals" / "walks.md").read_text(encoding="utf-8")

ROOMS = ["face", "operations", "runtime", "storage", "shard", "model"]
"""From the top to the bottom."""
FACES = {"client", "queue", "lease"}
VERBS = ["opening a queue", "send", "receive", "settle", "bulk send", "lease", "compaction pass"]


class Step(NamedTuple):
    depth: int
    module: str
    caller: str | None
    """The module of the step above."""

    @property
    def room(self) -> str:
        return room_of(self.module)


def room_of(module: str) -> str:
    top = module.partition(".")[0]
    return "face" if top in FACES else top


def walk(verb: str) -> list[Step]:
    """The steps of a verb, each in a lower room than its caller."""
    text = PAGE.split(f"\n## {verb}\n")[1].split("\n## ")[0]
    steps: list[Step] = []
    above: list[str] = []
    for indent, module in re.findall(r"^( *)- `([a-z_.]+)`", text, re.MULTILINE):
        depth, rest = divmod(len(indent), 4)
        assert rest == 0 and depth <= len(above), f"{module} is indented by {len(indent)}"
        steps.append(Step(depth, module, above[depth - 1] if depth else None))
        above[depth:] = [module]
    return steps


def path_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported(module: str) -> set[str]:
    """Modules of the package that a module imports, those for type checking and inside functions too.

    A name that a room passes on counts as an import of the module where it stands.
    """
    found = set()
    for base, names in own_imports(module):
        found.add(base)
        for name in names:
            full = f"{base}.{name}".lstrip(".")
            passed_on = {at for at, passed in own_imports(base) if name in passed}
            found |= {full} if path_of(full).exists() else passed_on
    return found


@cache
def own_imports(module: str) -> list[tuple[str, list[str]]]:
    """Imports of the package's own modules, with the names that are taken from them."""
    return [
        ((node.module or "").partition(".")[2], [alias.name for alias in node.names])
        for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lakequeue"
    ]


def test_the_page_has_all_walks():
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_each_step_imports_the_next(verb: str):
    for step in walk(verb):
        assert path_of(step.module).exists(), step.module
        if step.caller:
            assert step.module in imported(step.caller), f"{step.caller} does not import {step.module}"


@pytest.mark.parametrize("verb", VERBS)
def test_a_walk_goes_down_and_enters_each_room_once(verb: str):
    steps = walk(verb)
    assert steps[0].room == "face"
    entries = set()
    for step in steps[1:]:
        assert step.caller is not None, f"{step.module} has nobody above"
        above = room_of(step.caller)
        assert ROOMS.index(above) <= ROOMS.index(step.room), f"{step.caller} calls up: {step.module}"
        entries |= {(above, step.room)} if above != step.room else set()
    from_above = Counter(room for _, room in entries)
    assert set(from_above.values()) == {1}, entries
    assert len({step.module for step in steps}) == len(steps)
    assert {"operations", "runtime", "storage"} <= from_above.keys()
