"""The pairs of pyspark and delta-spark: the same in the docs, in .ci/versions and in pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lakequeue.errors import QueueClientError
from lakequeue.spark.session import JARS, delta_jar, installed_delta_jar, installed_hadoop
from lakequeue.storage.engines.spark_access import packages

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs/operation/spark.md").read_text(encoding="utf-8")
TABLE = re.findall(r"^\| (4[\d.]+) \| (4[\d.]+) \| `(io\.delta:\S+)` \|$", PAGE, re.MULTILINE)


def tried() -> list[list[str]]:
    lines = subprocess.check_output([sys.executable, PROJECT / ".ci/versions", "--list"], text=True)
    return [line.split() for line in lines.splitlines()]


def test_the_table_has_the_pairs_that_are_tried_with_the_jars_that_sessions_get() -> None:
    assert sorted((spark, delta) for spark, delta, _ in TABLE) == sorted((pair[0], pair[1]) for pair in tried())
    assert len(TABLE) >= 12
    for spark, delta, jar in TABLE:
        assert delta_jar(spark, delta) == jar


def test_each_minor_version_with_jars_is_tried_whenever_the_checks_run() -> None:
    main = [pair[0].rpartition(".")[0] for pair in tried()[: len(JARS)]]
    assert sorted(main) == sorted(JARS)


def test_pip_s_choice_is_said_to_be_what_it_is() -> None:
    [plain] = [pair for pair in tried() if pair[2:] == ["plain"]]
    assert f"chooses PySpark {plain[0]} and delta-spark\n{plain[1]}." in PAGE
    [requirement] = re.findall(r'"delta-spark(\S+)"', (PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    assert requirement.startswith(">=4.0,<5,")


def test_the_readme_supports_the_versions_that_pip_accepts() -> None:
    project, readme = ((PROJECT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "README.md"))
    [required] = re.findall(r'^requires-python = ">=(.+)"$', project, re.MULTILINE)
    assert set(re.findall(r"Python (3\.\d+) (?:or|and) later", readme)) == {required}
    assert re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)[0] == required
    first, *_, last = sorted(JARS)
    assert set(re.findall(r"4\.\d+ to 4\.\d+", readme)) == {f"{first} to {last}"}
    pyspark, delta_spark = (
        SpecifierSet(re.findall(rf'"{name}([<>=][^"]+)"', project)[0]) for name in ("pyspark", "delta-spark")
    )
    assert all(spark in pyspark and delta in delta_spark for spark, delta, _ in TABLE)
    major, minor = last.split(".")
    assert f"{major}.{int(minor) + 1}.0" not in pyspark and "3.5.9" not in pyspark


@pytest.mark.parametrize(
    ("spark", "delta", "jar"),
    [
        ("4.2.0", "4.4.1", "delta-spark_4.2_2.13:4.4.0"),  # a wheel without jars
        ("4.2.7", "4.0.0", "delta-spark_4.2_2.13:4.4.0"),  # what an old delta-spark allows
        ("4.1.4", "4.0.1", "delta-spark_4.1_2.13:4.4.0"),
        ("4.1.4", "4.1.0", "delta-spark_4.1_2.13:4.4.0"),  # has a jar, which this Spark cannot load
        ("4.0.0", "4.0.1", "delta-spark_2.13:4.0.1"),
        ("4.0.3.dev1", "4.1.0", "delta-spark_4.0_2.13:4.1.0"),
        ("4.3.1", "4.5.0", "delta-spark_4.3_2.13:4.5.0"),  # newer than this package
    ],
)
def test_the_jar_fits_spark_and_is_published(spark: str, delta: str, jar: str) -> None:
    assert delta_jar(spark, delta) == f"io.delta:{jar}"


def test_a_spark_without_jars_is_named_in_one_line() -> None:
    with pytest.raises(
        QueueClientError, match=r"Spark 4\.3 .*delta-spark 4\.4\.0.*install pyspark 4\.2"
    ) as caught:
        delta_jar("4.3.0", "4.4.0")
    assert "\n" not in str(caught.value)


def test_the_installed_pair_has_a_jar_and_a_hadoop() -> None:
    assert installed_delta_jar() in {jar for _, _, jar in TABLE}
    hadoop = installed_hadoop()
    assert hadoop is not None
    assert packages("abfss", hadoop) == (f"org.apache.hadoop:hadoop-azure:{hadoop}",)


def test_file_systems_are_of_spark_s_own_hadoop() -> None:
    assert packages("s3", "3.4.1")[:2] == (
        "org.apache.hadoop:hadoop-aws:3.4.1",
        "software.amazon.awssdk:s3-transfer-manager:2.24.6",
    )
    assert packages("", "3.4.1") == ()
    with pytest.raises(QueueClientError, match=r"Hadoop 3\.4\.2 .*gs://.*pyspark 4\.2"):
        packages("gs", "3.4.2")


def test_the_versions_that_were_tested_are_those_that_pip_accepts() -> None:
    project, lines = (
        (PROJECT / "pyproject.toml").read_text(encoding="utf-8"),
        (PROJECT / "conf/constraints.txt").read_text(),
    )
    tested = dict(re.findall(r"^([a-z0-9-]+)==([0-9][0-9a-z.]*)$", lines, re.MULTILINE))
    assert len(tested) + 2 == len(lines.splitlines()), "a comment of two lines, then names and versions alone"
    required = [
        Requirement(text)
        for text in re.findall(r'^    "([A-Za-z][^"]*)",$', extras_of_tests(project), re.MULTILINE)
    ]
    assert len(required) > 30
    for one in required:
        if one.name != "lakequeue":
            assert tested[one.name.lower()] in one.specifier, (
                f"{one} in pyproject.toml, {tested[one.name.lower()]} in conf/"
            )


def extras_of_tests(project: str) -> str:
    """The lists of requirements that the README's test command installs."""
    [dependencies] = re.findall(r"^dependencies = \[$.*?^\]$", project, re.MULTILINE | re.DOTALL)
    lists = dict(re.findall(r"^([a-z]+) = (\[$.*?^\]$)", project, re.MULTILINE | re.DOTALL))
    [everything] = re.findall(r'^all = \["lakequeue\[([a-z,]+)\]"\]$', project, re.MULTILINE)
    return "\n".join([dependencies, *(lists[name] for name in (*everything.split(","), "test"))])
