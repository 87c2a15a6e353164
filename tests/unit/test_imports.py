"""The rooms of the package: who may import whom, who may ask what time it is, and how large a module may get."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import attrs
import pytest

pytestmark = pytest.mark.xdist_group("imports")  # so that one process parses the modules

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "lakequeue"

ROOMS = [
    *("errors", "model", "shard", "renewal", "storage", "conditions", "runtime", "operations"),
    *("lease", "sender", "queue", "schedules", "client", "entry_verbs", "frame_verbs"),
    *("aio", "consumer", "otel", "", "spark", "integrations", "serve", "cli", "__main__", "jobs"),
]
"""From the bottom to the top; a room knows itself and those below it. The room "" is the package itself."""
RANK = {room: rank for rank, room in enumerate(ROOMS)}
ENTRIES = {"aio", "consumer", "spark", "integrations", "serve", "cli"}
OFFERED = {"errors", "model", "renewal", "lease", "sender", "queue", "schedules", "client"}
OFFERED |= {"entry_verbs", "frame_verbs", "otel", "", *ENTRIES}
"""Modules that entries may import: the faces, their arguments and results, and other entries."""
BELOW = {
    "cli.serve": "conditions",  # the worker processes of its conditions yield to requests
    "cli.sql": "conditions",  # a connection of DuckDB that reads no files
    "spark.session": "storage",  # the jars of a root's file system, which `allow` names to other sessions, too
    "serve.cancellation": "conditions",  # ends the condition of a client that has gone
}
"""Imports from lower rooms that an entry's module needs all the same."""
ASIDE = {"testing"}
"""Part of no room: for users' tests, and never imported by the package."""
DELTA = {"deltalake", "delta"}
HEAVY = {"pyspark", "pyarrow", "deltalake", "delta", "numpy", "pandas"}

LARGEST, LONGEST = 400, 50
"""Lines of code in a module, and in the body of a function, without docstrings, comments and blank lines."""

TIME = {"now", "utcnow", "today", "time", "time_ns", "gmtime", "localtime"}
CLOCKS = {"datetime", "date", "time"}


@attrs.frozen
class Module:
    path: Path
    name: str
    """Dotted, without the package's own name; ``jobs.…`` for scripts."""
    _tree: ast.Module | None = None

    @cached_property
    def tree(self) -> ast.Module:
        return self._tree or ast.parse(self.path.read_text())

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


@attrs.frozen
class Import:
    module: str
    names: tuple[str, ...]
    line: int


def _module(path: Path) -> Module:
    if PACKAGE in path.parents:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
    else:
        parts = path.relative_to(PROJECT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return Module(path, name)


MODULES = [_module(path) for path in sorted([*PACKAGE.rglob("*.py"), *(PROJECT / "jobs").rglob("*.py")])]


def modules(which: Callable[[Module], bool]) -> Callable[[Callable[[Module], None]], Callable[[], None]]:
    """One test that checks all these modules, as 2,000 tests would take longer than what they do."""

    def test_of(check: Callable[[Module], None]) -> Callable[[], None]:
        def test() -> None:
            for module in filter(which, MODULES):
                try:
                    check(module)
                except AssertionError as error:
                    raise AssertionError(f"{module.name or 'lakequeue'}: {error}") from error

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.pytestmark = getattr(check, "pytestmark", [])
        return test

    return test_of


every_module = modules(lambda module: True)


def imports(tree: ast.AST) -> Iterator[Import]:
    """Every import of a module, those for type checkers and those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.lineno)


def own_modules(found: Import) -> set[str]:
    """Rooms of the package that an import reaches; "" is the package itself."""
    root, _, rest = found.module.partition(".")
    if root != "lakequeue":
        return set()
    if rest:
        return {rest.partition(".")[0]}
    return {name if name in RANK or name in ASIDE else "" for name in found.names} or {""}


def outside(found: Import) -> str:
    return found.module.partition(".")[0]


def test_every_module_has_a_room():
    homeless = {module.top for module in MODULES} - set(RANK) - ASIDE
    assert not homeless, f"say in ROOMS where these belong: {homeless}"


def against_the_way(module: Module) -> list[str]:
    allowed = RANK["model"] if module.top in ASIDE else RANK[module.top]
    return [
        f"line {found.line}: {module.name} imports {target or 'lakequeue'}"
        for found in imports(module.tree)
        for target in own_modules(found)
        if target not in ASIDE and RANK[target] > allowed
    ]


@every_module
def test_imports_go_one_way(module: Module):
    assert not against_the_way(module)


def test_the_police_of_imports_sees_what_it_should():
    source = """
from lakequeue import errors, LakeQueue
import lakequeue.storage.ledger
from lakequeue.shard.runs import Run
if TYPE_CHECKING:
    from lakequeue.cli import main
def later():
    from lakequeue.queue import Queue
"""
    module = Module(PACKAGE / "shard" / "x.py", "shard.x", ast.parse(source))
    assert against_the_way(module) == [
        "line 2: shard.x imports lakequeue",
        "line 3: shard.x imports storage",
        "line 6: shard.x imports cli",
        "line 8: shard.x imports queue",
    ]


def graph(modules: Sequence[Module]) -> dict[str, set[str]]:
    """For each module the modules of the package that it imports."""
    names = {module.name for module in modules}
    edges: dict[str, set[str]] = {}
    for module in modules:
        reached = edges.setdefault(module.name, set())
        for found in imports(module.tree):
            root, _, name = found.module.partition(".")
            if root == "lakequeue":
                inner = {f"{name}.{each}".lstrip(".") for each in found.names} & names
                reached.update(inner if len(inner) == len(found.names) > 0 else inner | {name})
    return edges


def circles(edges: dict[str, set[str]]) -> str | None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return " -> ".join(error.args[1])
    return None


def test_no_module_imports_itself_over_others():
    assert circles(graph([module for module in MODULES if module.top not in ASIDE])) is None


def test_the_police_of_circles_sees_what_it_should():
    sources = {
        "shard.a": "from lakequeue.shard import b",
        "shard.b": "def later():\n    import lakequeue.shard.c",
        "shard.c": "if TYPE_CHECKING:\n    from lakequeue.shard.a import A",
    }
    modules = [Module(PACKAGE, name, ast.parse(source)) for name, source in sources.items()]
    assert circles(graph(modules)) is not None
    assert circles(graph(modules[:2])) is None


def test_what_tests_share_lies_in_no_test():
    """Mutations alone import tests, whose scenarios they run without a safeguard."""
    shared = {
        line
        for path in (PROJECT / "tests").rglob("*.py")
        if not path.stem.endswith("_mutations")
        for line in re.findall(r"^ *(?:from|import) .*\btest_\w+.*", path.read_text(), re.MULTILINE)
    }
    assert not shared


@every_module
def test_nothing_in_the_package_imports_its_test_helpers(module: Module):
    assert not [found for found in imports(module.tree) if own_modules(found) & ASIDE]


@modules(lambda module: RANK.get(module.top, len(ROOMS)) <= RANK["renewal"])
def test_vocabulary_and_state_machine_know_no_table_and_no_session(module: Module):
    found = list(imports(module.tree))
    assert not {outside(each) for each in found} & HEAVY
    assert not [each for each in found if "storage" in own_modules(each)]


def below_the_faces(module: Module) -> set[str]:
    reached = {room for found in imports(module.tree) for room in own_modules(found)}
    looked_into = {
        f"{ast.unparse(node)} in line {node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr == "_runtime"
    }
    return reached - OFFERED - {BELOW.get(module.name)} | looked_into


@modules(lambda module: module.top in ENTRIES)
def test_entries_know_the_faces_and_nothing_below(module: Module):
    assert not below_the_faces(module)
    reached = {room for found in imports(module.tree) for room in own_modules(found)}
    assert BELOW.get(module.name) in {None, *reached}, "it is no exception any more"


def test_the_police_of_entries_sees_what_it_should():
    source = """
from lakequeue import LakeQueue
from lakequeue.entry_verbs import depth
def later(queue):
    from lakequeue.storage import stats
    return depth(queue._runtime)
"""
    module = Module(PACKAGE / "cli" / "x.py", "cli.x", ast.parse(source))
    assert below_the_faces(module) == {"storage", "queue._runtime in line 6"}


@modules(lambda module: module.top == "integrations")
def test_integrations_import_only_the_faces(module: Module):
    reached = {room for found in imports(module.tree) for room in own_modules(found)}
    assert reached <= {"", "aio", "errors", "model", "integrations"}


@modules(lambda module: module.top != "storage")
def test_only_storage_knows_delta(module: Module):
    found = [each for each in imports(module.tree) if outside(each) in DELTA]
    if module.top == "jobs":  # what the benchmark compares with is bare Delta
        found = [each for each in found if "benchmark" not in module.name]
    assert not found


def test_one_module_reaches_into_delta_in_the_jvm():
    """Others use the JVM for what is Spark's or Hadoop's: their public classes, which Connect does not have."""
    source = {module.name: module.path.read_text() for module in MODULES}
    assert {name for name, text in source.items() if "spark.sql.delta.DeltaLog" in text} == {
        "storage.engines.delta_internals"
    }
    jvm = {
        module.name
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in ("_jvm", "_jsparkSession", "_jdf")
    }
    assert jvm == {
        *("storage.engines.delta_internals", "storage.engines.spark_access"),
        "spark.session",
    }


def test_the_program_of_a_worker_process_starts_without_this_package():
    [program] = [module for module in MODULES if module.name == "conditions.evaluator"]
    assert not [found for found in imports(program.tree) if own_modules(found)]


@modules(lambda module: module.name != "spark.session")
def test_only_sessions_code_builds_sessions(module: Module):
    builders = [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("builder", "getOrCreate")
        and "SparkSession" in ast.unparse(node.value)
    ]
    assert not builders


def clock_reads(tree: ast.AST, where: tuple[str, ...] = ()) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Uses of the machine's clock: what, line, and the classes and functions around it."""
    for node in ast.iter_child_nodes(tree):
        inside = where
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = (*where, node.name)
        if isinstance(node, ast.Attribute) and node.attr in TIME:
            of = ast.unparse(node.value).rpartition(".")[2]
            if of in CLOCKS:
                yield f"{of}.{node.attr}", node.lineno, where
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            for alias in node.names:
                if alias.name in TIME:
                    yield f"from time import {alias.name}", node.lineno, where
        named = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else named
        if text and "current_timestamp" in str(text).lower():
            yield "current_timestamp", getattr(node, "lineno", 0), where
        yield from clock_reads(node, inside)


def may_read(module: Module, what: str, where: tuple[str, ...]) -> bool:
    if module.name == "model.clock":
        return where == ("SystemClock", "now")
    if module.top == "storage":
        return what == "time.time"  # Delta stamps files and commits with machine time, which no rule reads
    if module.name == "operations.sql_views":
        return what == "current_timestamp"  # a view without a `now` is judged at the time of each query
    return False


@every_module
@pytest.mark.spec("DLT-2")
def test_time_comes_from_the_clock(module: Module):
    wrong = [
        f"line {line}: {what}"
        for what, line, where in clock_reads(module.tree)
        if not may_read(module, what, where)
    ]
    assert not wrong


@pytest.mark.spec("DLT-2")
def test_the_clock_police_sees_what_it_should():
    source = """
import time, datetime as dt
from time import time_ns
from datetime import datetime
def f():
    return datetime.now(), dt.datetime.utcnow(), time.time(), time.monotonic(), self.clock.now()
sql = "SELECT CURRENT_TIMESTAMP()"
"""
    assert [what for what, _, _ in clock_reads(ast.parse(source))] == [
        "from time import time_ns",
        "datetime.now",
        "datetime.utcnow",
        "time.time",
        "current_timestamp",
    ]


def lines_of_code(tree: ast.Module) -> int:
    lines: set[int] = set()
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    skipped = {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            lines.update((node.lineno, node.end_lineno or node.lineno))
    return len(lines - skipped)


@every_module
def test_no_module_grows_without_bounds(module: Module):
    assert lines_of_code(module.tree) <= LARGEST
    functions = (
        node for node in ast.walk(module.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    assert not [node.name for node in functions if lines_of_code(ast.Module(node.body, [])) > LONGEST]


@pytest.mark.parametrize("entry", ["lakequeue", "lakequeue.testing", "lakequeue.cli"])
def test_importing_starts_nothing_and_loads_no_spark(entry):
    script = (
        f"import sys, threading; import {entry}; "
        "heavy = {'pyspark', 'delta', 'py4j'} & set(sys.modules); "
        "assert not heavy, heavy; assert threading.active_count() == 1, threading.enumerate()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_point_engine_works_without_pyspark(tmp_path):
    script = f"""
import sys
sys.modules.update(dict.fromkeys(["pyspark", "delta", "py4j"]))  # importing any of them raises
from lakequeue import LakeQueue
queue = LakeQueue({str(tmp_path / "root")!r}).create_queue("orders")
queue.send("A")
(message,) = queue.receive()
queue.delete(message.receipt_handle)
assert queue.counts().in_flight == 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.spec("DUR-8")
@every_module
def test_one_module_makes_readers_and_writers_of_parquet(module: Module):
    made = {"ParquetFile", "ParquetWriter", "read_table", "write_table", "read_metadata", "read_schema"}
    calls = [ast.unparse(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    assert module.name == "storage.parquet_files" or not [
        each for each in calls if each in {f"pq.{x}" for x in made}
    ]
