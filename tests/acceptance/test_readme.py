"""The pages keep their word: their code runs and prints what they say, and CI runs the README's own lines.

A ``python`` or ``shell`` block is executed, an ``sh`` block is not. A ``text`` block behind one is what it
prints, in which ``…`` stands for anything. A ``log`` block is a part of what the Python before it logs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from codeop import compile_command
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from lakequeue import LakeQueue
from lakequeue.cli import app
from lakequeue.model.clock import SystemClock
from pages import DEMO_LINE, TEST_LINE, Block, agrees, blocks
from serve.serving import answers, free_port, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parents[2]
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

WITH_CODE = {
    page: found
    for path in [HERE / "README.md", *sorted((HERE / "docs").rglob("*.md"))]
    if (found := blocks(page := str(path.relative_to(HERE))))
}
README = WITH_CODE["README.md"]
PAGES = {
    page: found
    for page, found in WITH_CODE.items()
    if found is not README and not any(block.scheduler for block in found)  # tests/schedulers runs those
}
CORE = {re.findall(r"^[\w-]+", line)[0] for line in metadata.requires("lakequeue") or [] if "extra ==" not in line}
"""Packages that lakequeue brings without extras; those that the pages import have the same name as a module."""
BEYOND = {
    "lakequeue.spark": "spark",
    "fastapi.testclient": "httpx",
    " serve ": "serve",
    " plot ": "plot",
    " --metrics-port ": "metrics",
}
"""Extras and packages that a block needs besides the packages that it imports."""
READING = timedelta(seconds=70)
"""What a slow reader takes for each block: longer than most visibility timeouts. All blocks of a page take less
than the 15 minutes by which a clock may be behind the storage's.
"""
UPGRADING = "docs/operation/upgrading.md"
OLDER = Path(__file__).parents[1] / "data" / "root-5.tar.gz"
RULES = {
    "docs/tutorial.md": ("RCP-4", "STA-14"),
    "docs/guides/dead-letters.md": ("DLQ-2", "DLQ-8"),
    "docs/guides/fair-queues.md": ("FAI-1", "FAI-2", "FAI-4"),
    "docs/guides/priorities.md": ("JOB-5",),
    "docs/guides/unique-sends.md": ("JOB-6",),
    "docs/guides/schedules.md": ("JOB-7",),
    "docs/guides/rewind.md": ("RWD-4", "RWD-9"),
    "docs/reference/cli.md": ("EXM-10",),
    UPGRADING: ("DUR-43",),
}


def pages(spark: bool) -> list[Any]:
    """Pages that need Spark, or those that do not."""
    return [
        pytest.param(page, marks=pytest.mark.spec(*RULES.get(page, ())), id=page)
        for page, found in PAGES.items()
        if any(block.needs_spark for block in found) == spark
    ]


def blocks_of_the_readme(spark: bool) -> list[Any]:
    """Each block, and the one that starts the server before it if it is about that."""
    server = next(block for block in README if " serve " in block.source)
    return [
        pytest.param(
            [server, block] if "9324" in block.source and block != server else [block], id=f"block-{place}"
        )
        for place, block in enumerate(README)
        if block.needs_spark == spark
    ]


@contextmanager
def served(command: str, port: str) -> Iterator[None]:
    """Runs the server of a page."""
    [_, *arguments] = shlex.split(command)
    server = subprocess.Popen([Path(sys.executable).with_name("lakequeue"), *arguments])
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}"))
        yield
    finally:
        server.terminate()
        server.wait(60)


def run_shell(script: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=os.environ | {"PATH": PATH},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def follow(
    page: str, chosen: list[Block], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Executes blocks one after another, as a slow reader pastes them.

    The clock begins in the past and is right at the last block, so that later commands agree with it.
    """
    left = READING * sum(block.language != "log" for block in chosen)

    def now(_: SystemClock) -> datetime:
        return datetime.now(timezone.utc) - left

    names: dict[str, Any] = {}
    exports = ""
    port = str(free_port())  # the reader's own may be taken here
    with ExitStack() as servers, pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "now", now)
        for block in chosen:
            if block.language == "log":
                assert agrees(caplog.text, f"…{block.source}…"), caplog.text
                continue
            left -= READING
            caplog.clear()
            source = block.source.replace("9324", port)
            capsys.readouterr()
            if block.language == "python":
                exec(compile(source, page, "exec"), names)
                printed = capsys.readouterr().out
            elif " serve " in source:
                servers.enter_context(served(source, port))
                printed = ""
            else:
                printed = run_shell(exports + source)
                exports += "".join(re.findall(r"^export .*\n", source, re.MULTILINE))
            if block.output is not None:
                assert agrees(printed.replace(port, "9324"), block.output), printed


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the pages create belongs into a directory of the test; a umask that they set ends with it."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.mark.slow  # as those with Spark: together a fifth of what the README's test command would take
@pytest.mark.parametrize("page", pages(spark=False))
def test_the_code_of_a_page_runs(
    page: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    if page == UPGRADING:
        with tarfile.open(OLDER) as archive:
            archive.extractall(filter="data")
        Path("root").rename("my-queues")
    follow(page, PAGES[page], capsys, caplog)


@pytest.mark.spec("RCP-1")
@pytest.mark.parametrize("chosen", blocks_of_the_readme(spark=False))
def test_a_block_of_the_readme_runs_on_its_own(
    chosen: list[Block], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    follow("README.md", chosen, capsys, caplog)


@pytest.mark.spark
@pytest.mark.parametrize("page", pages(spark=True))
def test_the_code_of_a_page_with_spark_runs(
    page: str, spark: SparkSession, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    follow(page, PAGES[page], capsys, caplog)


@pytest.mark.core
@pytest.mark.spark
@pytest.mark.parametrize("chosen", blocks_of_the_readme(spark=True))
def test_a_block_of_the_readme_with_spark_runs_on_its_own(
    chosen: list[Block],
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    follow("README.md", chosen, capsys, caplog)


@pytest.mark.parametrize("page", WITH_CODE)
def test_a_page_says_what_to_install_before_a_block_needs_it(page: str) -> None:
    text = (HERE / page).read_text(encoding="utf-8")
    for block in WITH_CODE[page]:
        lines = re.findall(r"pip install ([^`\n&]+)", text[: text.index(block.source)])
        told = {name for line in lines for name in re.findall(r"[\w-]+", line)}
        modules = re.findall(r"^ *(?:from|import) (\w+)", block.source if block.language == "python" else "", re.M)
        wanted = set(modules) - sys.stdlib_module_names - CORE - {"lakequeue"}
        wanted |= {name for word, name in BEYOND.items() if word in block.source}
        assert wanted <= told, block.source


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_a_block_of_python_can_be_pasted_line_by_line(page: str) -> None:
    for block in WITH_CODE[page]:
        pasted: list[str] = []
        for line in [*block.source.splitlines(), "", ""] if block.language == "python" else []:
            pasted.append(line)
            if compile_command("\n".join(pasted), page, "single"):
                pasted.clear()


def test_the_pages_say_what_is_printed() -> None:
    assert agrees("one 17\ntwo  \n\n", "one …\ntwo\n")
    assert not agrees("one\nthree\n", "one\ntwo\n")
    assert (
        len(PAGES) > 10
        and len(README) >= 5
        and sum(block.output is not None for found in PAGES.values() for block in found) > 20
    )


@pytest.mark.spec("RCP-1", "RCP-4")
def test_the_commands_of_the_pages_have_the_options_that_are_written_there() -> None:
    root: Any = typer.main.get_command(app)
    checked, wrong = 0, []
    for path in [*HERE.glob("*.md"), *(HERE / "docs").rglob("*.md")]:
        text = re.sub(r"\$\(date [^)]*\)", "", path.read_text(encoding="utf-8").replace("\\\n", " "))
        for line, name, rest in re.findall(
            r"(?<![\w./-])(lakequeue (?:--?[a-z-]+ \S+ )*([a-z-]+)([^`\n]*))", text
        ):
            command = root.get_command(typer.Context(root), name)
            if command is not None:
                for word in rest.split():
                    command = getattr(command, "commands", {}).get(word, command)
                known = {option for of in (root, command) for each in of.params for option in each.opts}
                given = set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", rest)) - {"--help", "-h"}
                checked, wrong = checked + 1, [*wrong, *((path.name, line) for _ in given - known)]
    assert checked > 200 and not wrong


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.spec("DLT-5")
def test_spark_sql_opens_the_views() -> None:
    LakeQueue("my-queues").create_queue("orders").send("a book")
    shutil.copytree(HERE / "conf", "conf")
    page = (HERE / "docs" / "reference" / "sql.md").read_text(encoding="utf-8")
    [script] = re.findall(r"^```sh\n(lakequeue.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert "orders\t1" in run_shell(script)
    assert not Path("metastore_db").exists()


def test_ci_runs_the_readmes_own_lines() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert f"```shell\n{DEMO_LINE}\n```" in readme and f"```shell\n{TEST_LINE}\n```" in readme
    ci = HERE / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert {TEST_LINE, DEMO_LINE} <= {line.strip() for line in ci.read_text(encoding="utf-8").splitlines()}


def test_the_readme_is_short() -> None:
    assert len((HERE / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("name", ["local", "standalone", "kubernetes", "s3", "azure", "gcs"])
def test_settings_for_spark_submit_have_a_reason_each(name: str) -> None:
    lines = (HERE / "conf" / f"{name}.conf").read_text(encoding="utf-8").splitlines()
    for before, line in zip(lines, lines[1:], strict=False):
        if line and not line.startswith("#"):
            setting, _, value = line.partition(" ")
            assert setting.startswith("spark.") and value.strip()
            assert before.startswith(("#", "spark.")), f"no reason for {setting}"
