"""The README keeps its word: its code runs, its command lines are the ones CI runs, its tables are the rules."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakequeue import LakeQueue
from lakequeue.model.profiles import PROFILES
from model.model import LEGAL
from serve.running import answers
from serve.serving import free_port, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parents[2]
README = (HERE / "README.md").read_text(encoding="utf-8")
TEST_LINE = "python3 -m venv .venv && .venv/bin/pip install -q '.[test]' && .venv/bin/pytest"
DEMO_LINE = "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/lakequeue demo"


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def section(title: str) -> str:
    """The text below a heading, up to the next one of the same level."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of the first table in a text, without its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def run(sources: list[str]) -> dict[str, Any]:
    """Executes blocks one after another, as a reader would paste them."""
    names: dict[str, Any] = {}
    for source in sources:
        exec(compile(source, "README.md", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the README creates belongs into a directory of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.spec("RCP-1", "RCP-4", "STA-14")
def test_python_without_spark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run([source for source in blocks("python") if "spark" not in source and "boto3" not in source])
    printed = capsys.readouterr().out
    assert "one book" in printed and "two pens" in printed
    assert "ReceiptHandleIsInvalid" in printed
    assert names["orders"].counts().visible == 1  # the lamp, handed back
    lamp = names["message"]
    assert len({names["orders"].name, lamp.message_id, lamp.receipt_handle}) == 3
    [unreceived] = names["orders"].peek()
    assert not hasattr(unreceived, "receipt_handle")


@pytest.mark.spec("RWD-4", "RWD-9")
def test_the_counts_around_a_rewind_are_those_of_the_table() -> None:
    text = README.split("\n### Rewind\n")[1].split("\n### ")[0]
    opening, *_ = blocks("python")
    names = run([opening, *re.findall(r"```python\n(.*?)```", text, re.DOTALL)])
    told = {name: [int(cell) for cell in cells] for name, *cells in rows(text)}
    shown = {name: names[name] for name in ("before", "after")}
    assert told == {name: [counts.visible, counts.in_flight, counts.rewindable] for name, counts in shown.items()}


@pytest.mark.spec("DLQ-2", "DLQ-8")
def test_the_counts_around_dead_letters_are_those_of_the_table() -> None:
    text = README.split("\n### Dead letters\n")[1].split("\n### ")[0]
    opening, *_ = blocks("python")
    names = run([opening, *re.findall(r"```python\n(.*?)```", text, re.DOTALL)])
    told = {name: [int(cell) for cell in cells] for name, *cells in rows(text)}
    shown = {name: names[name] for name in ("before", "after", "redriven")}
    assert told == {
        name: [invoices.visible, failed.visible, failed.in_flight] for name, (invoices, failed) in shown.items()
    }


@pytest.mark.spec("RCV-9")
def test_receive_takes_no_group() -> None:
    with pytest.raises(TypeError):
        LakeQueue("root").create_queue("orders").receive(group_id="a")  # type: ignore[call-arg]


@pytest.mark.core
@pytest.mark.spark
def test_python_with_spark_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    names = run([source for source in blocks("python") if "spark" in source])
    counts = names["events"].counts()
    assert (counts.visible, counts.in_flight) == (0, 0)  # purged, after its 10,100 were counted
    printed = capsys.readouterr().out
    assert "Deleted" in printed and "|   Grace|  100|" in printed
    assert "0 ['one book', 'two pens']" in printed and "Row(messages=2, deleted=2, lost=0)" in printed
    assert not any(names[name].counts().visible for name in ("nightly", "letters"))


@pytest.mark.spec("EXM-10")
def test_command_line_runs() -> None:
    [script] = [block for block in blocks("shell") if "LAKEQUEUE_ROOT" in block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Dear reader" in done.stdout
    assert "3 messages of letters visible again" in done.stdout


def test_an_sqs_client_works_on_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    [command] = [block for block in blocks("shell") if " serve " in block]
    [program] = [block for block in blocks("python") if "boto3" in block]
    port = str(free_port())  # the reader's own may be taken here
    assert command.count("9324") == program.count("9324") == 1
    [_, *arguments] = shlex.split(command.replace("9324", port))
    server = subprocess.Popen([Path(sys.executable).with_name("lakequeue"), *arguments])
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}"))
        names = run([program.replace("9324", port)])
    finally:
        server.terminate()
        server.wait(60)
    assert "one parcel" in capsys.readouterr().out
    assert names["url"] == f"http://127.0.0.1:{port}/000000000000/parcels"
    counts = LakeQueue("my-queues").queue("parcels").counts()
    assert (counts.visible, counts.in_flight) == (0, 0)


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.spec("DLT-5")
def test_spark_sql_opens_the_views() -> None:
    LakeQueue("my-queues").create_queue("orders").send("a book")
    shutil.copytree(HERE / "conf", "conf")
    [script] = [block for block in blocks("shell") if "spark-sql" in block]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "orders\t1" in done.stdout
    assert not Path("metastore_db").exists()


def test_install_lines_stand_alone() -> None:
    assert f"{DEMO_LINE}\n" in blocks("shell")
    assert f"{TEST_LINE}\n" in blocks("shell")


def test_ci_runs_the_readmes_own_test_line() -> None:
    ci = HERE / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert TEST_LINE in [line.strip() for line in ci.read_text(encoding="utf-8").splitlines()]


@pytest.mark.spec("STA-13")
def test_state_diagram_and_table_show_the_transitions_that_the_rules_allow() -> None:
    text = section("States of a message")
    table = [(before, after) for before, after, _ in rows(text)]
    arrows = re.findall(r"^ +(\w+) --> (\w+)$", text, re.MULTILINE)
    assert len(table) == len(set(table)) and len(arrows) == len(set(arrows))
    assert set(table) == set(arrows) == LEGAL


def test_profiles_are_told_as_they_are() -> None:
    def number(value: float | None) -> str:
        return "any" if value is None else f"{value:,}"

    def span(low: float, high: float | None) -> str:
        return "up to the retention" if high is None else f"{low:,}-{high:,}"

    names = ["lake", "sqs", "sqs-2018", "cmq"]
    profiles = [PROFILES[name] for name in names]
    told = {name: cells for name, *cells in rows(section("Profiles and limits"))}
    assert told == {
        "entries in a batch": [number(p.max_batch) for p in profiles],
        "messages in flight": [number(p.max_inflight_messages.default) for p in profiles],
        "delayed messages": [number(p.max_delayed_messages.default) for p in profiles],
        "largest message (bytes)": [number(p.maximum_message_size.high) for p in profiles],
        "delay (s)": [span(p.delay.low, p.delay.high) for p in profiles],
        "wait of a receive (s)": [span(p.receive_wait_time.low, p.receive_wait_time.high) for p in profiles],
        "visibility timeout (s)": [span(p.visibility_timeout.low, p.visibility_timeout.high) for p in profiles],
        "retention (s)": [span(p.message_retention_period.low, p.message_retention_period.high) for p in profiles],
        "handle after its timeout": [
            "works until received again" if p.receipt_policy == "lenient" else "refused" for p in profiles
        ],
    }


def test_links_inside_the_repository_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (HERE / target).exists(), target


@pytest.mark.parametrize("name", ["local", "standalone", "kubernetes", "s3"])
def test_settings_for_spark_submit_have_a_reason_each(name: str) -> None:
    lines = (HERE / "conf" / f"{name}.conf").read_text(encoding="utf-8").splitlines()
    for before, line in zip(lines, lines[1:], strict=False):
        if line and not line.startswith("#"):
            setting, _, value = line.partition(" ")
            assert setting.startswith("spark.") and value.strip()
            assert before.startswith(("#", "spark.")), f"no reason for {setting}"
