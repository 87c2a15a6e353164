"""The words of the package: class names with one meaning, and docstrings that name their subjects."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakequeue

SOURCE = Path(lakequeue.__file__).parent
MIRROR = "aio.py"  # the faces for asyncio have the names of the faces that they mirror
REPEATED: dict[str, str] = {}
TELLTALES = (
    *(r"\bthat of\b", r"\bthose of\b", r"\b(is|are) none\b", r"\bof which\b", r"\bof whom\b", r"\bwhoever\b"),
    *(
        r"\bbeside\b",
        r"\blikewise\b",
        r"\bas far as\b",
        r"\btold\b",
        r"\btells?\b",
        r"\bthe one that\b",
        r"\bnobody's\b",
    ),
    *(
        r"\bwho(se)? (calls|reads|commits|loses|finds|waits)\b",
        r"\bthe same[,.;]",
        r"^What (comes|becomes|came|became)\b",
    ),
)
MOST = 0.03


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_bytes()) for path in SOURCE.rglob("*.py")}


def repeated_names(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and module != MIRROR:
                places[node.name.lstrip("_")].append(module)
    return {name: modules for name, modules in places.items() if len(modules) > 1}


def docstrings(tree: ast.AST) -> Iterator[str]:
    """The docstrings of modules, classes and functions, and the strings below assignments."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield " ".join(node.value.value.split())


def test_each_class_name_has_one_meaning(trees: dict[str, ast.Module]):
    assert len(REPEATED) <= 5
    assert repeated_names(trees).keys() == REPEATED.keys()


def test_a_second_class_of_a_name_is_found_whether_private_or_not():
    parsed = {"a.py": ast.parse("class Part: ..."), "b.py": ast.parse("def f():\n    class _Part: ...")}
    assert repeated_names(parsed) == {"Part": ["a.py", "b.py"]}


def test_few_docstrings_have_a_phrase_that_needs_a_second_reading(trees: dict[str, ast.Module]):
    telltale = re.compile("|".join(TELLTALES))
    texts = [text for tree in trees.values() for text in docstrings(tree)]
    found = [text for text in texts if telltale.search(text)]
    assert len(found) <= MOST * len(texts), "\n".join(found)
