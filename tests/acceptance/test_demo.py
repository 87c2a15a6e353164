"""The demo, on a few files: some parse, some do not, and every failure it makes on purpose is made good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from lakequeue import InvalidOptions, LakeQueue
from lakequeue.cli.demo import run_demo
from lakequeue.cli.demo_files import QUEUE, parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Twelve files of two lines and one class each, an empty one, a broken one, and one that is no Python."""
    where = tmp_path / "some files"
    (where / "deep er").mkdir(parents=True)
    for number in range(12):
        (where / "deep er" / f"m{number:02}.py").write_text(f"class C{number}:\n    def f(self): ...\n")
    (where / "empty.py").write_text("")
    (where / "broken.py").write_bytes(b"def \x00\x0c\xff(:\n")
    (where / "notes.txt").write_text("def f(): ...")
    return where


@pytest.mark.spark
@pytest.mark.spec("EXM-4", "STA-14", "RCV-6", "RCV-8", "DEL-1")
def test_demo_works_off_every_file_and_leaves_an_empty_queue(
    spark: SparkSession, files: Path, tmp_path: Path
) -> None:
    root = str(tmp_path / "root")
    console = Console(quiet=True)

    assert run_demo(root, str(files), console) == 0

    results = spark.read.format("delta").load(f"{root}-demo-results").orderBy("path").collect()
    modules = [row for row in results if row["path"].startswith("deep er/")]
    assert [(row["lines"], row["functions"], row["classes"]) for row in modules] == [(2, 1, 1)] * 12
    assert {row["path"]: row["problem"] is not None for row in results if row not in modules} == {
        "broken.py": True,
        "empty.py": False,
    }
    counts = LakeQueue(root).queue(QUEUE).counts()
    assert (counts.visible, counts.in_flight, counts.delayed) == (0, 0, 0)
    # 14 messages in batches of 3: the first file fails in the first batch, comes back with the second, and
    # that one loses its worker
    assert results[0]["path"] == "broken.py" and results[0]["receive_count"] == 3
    assert sum(row["receive_count"] > 1 for row in results) >= 3


def test_demo_wants_a_directory_with_python_files(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidOptions, match="--input"):
            run_demo(str(tmp_path / "root"), str(where), Console(quiet=True))
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", (0, 0, 0, False)),
        ("def f(): ...\nasync def g(): ...\nclass C:\n    def h(self): ...", (4, 3, 1, False)),
        ("print 'two'\n", (1, 0, 0, True)),
        ("x = '\\d'\n", (1, 0, 0, False)),
        ("\x00", (1, 0, 0, True)),
        ("-" * 100_000 + "1", (1, 0, 0, True)),
    ],
)
def test_whatever_a_file_holds_parsing_it_gives_a_result(
    source: str, expected: tuple[int, int, int, bool]
) -> None:
    found = parse(source)
    assert (found["lines"], found["functions"], found["classes"], found["problem"] is not None) == expected
