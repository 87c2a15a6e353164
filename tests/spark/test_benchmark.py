"""The benchmark runs at tiny sizes, judges nothing then, and prints every row; times are not looked at."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "jobs" / "benchmark.py"


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), "--root", str(tmp_path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, COLUMNS="160"))


def measured(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The document of a run in which every row was measured."""
    done = run(tmp_path, *arguments, "--json")

    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["failed"] == []
    return document


def test_table_shows_machine_rows_and_no_judgement_when_quick(tmp_path: Path) -> None:
    done = run(tmp_path, "--quick", "--scale", "0.05", "--only", "point,commits,cli")

    assert done.returncode == 0, done.stderr
    header, *lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert " cores, " in header and "deltalake " in header
    assert lines[0].split() == ["measured", "unit", "lakequeue", "other", "side", "ratio", "bound", "verdict"]
    rows, legend = lines[2:-2], lines[-2:]
    assert "within is good" in legend[-1]
    assert [row.split("  ")[0].strip() for row in rows] == [
        "one send / append of a row by delta-rs",
        "one receive / MERGE of a row by delta-rs",
        "one delete / MERGE of a row by delta-rs",
        "one receive / append of a row by delta-rs",
        "one delete / append of a row by delta-rs",
        "CPU of one send / of its files alone",
        "CPU of one receive / of its files alone",
        "CPU of one delete / of its files alone",
        "lakequeue counts, whole process",
        "lakequeue list, whole process",
        "from lakequeue import LakeQueue",
        "memory of the process that has imported it",
    ]
    assert all(row.rstrip().endswith("not judged") for row in rows)
    assert os.listdir(tmp_path) == [], "what the benchmark made is still there"


@pytest.mark.slow
def test_json_holds_ratios_of_the_rows_without_spark(tmp_path: Path) -> None:
    only = "in-flight,age,search,concurrent,fifo,tenants,fair,heartbeat,steady,queues,arrow,margin,soak,compact"
    document = measured(tmp_path, "--quick", "--scale", "0.02", "--only", only)
    assert document["quick"]
    assert document["machine"]["cores"] >= 1 and document["machine"]["pyspark"]
    bounds = [2.5, 1.3, 1.2, *[None] * 6, *[300] * 3, *[3_000] * 3, 1.3, 1.3, None]
    bounds += [3, 40, 1.3, 1.3, 1.1, 0.9, 1, 1, 1.3, 1.5, 0.1, 0.2, 1.3, 1, None, 2.1]
    bounds += [150, 1.1, 1, 1.1, 0.9, 0.59, 0.59]
    assert [row["bound"] for row in document["rows"]] == bounds
    for row in document["rows"]:
        if row["bare"] is not None:
            assert row["ratio"] == pytest.approx(row["measured"] / row["bare"])


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_rows_of_dataframes_are_measured_and_judged_without_quick(tmp_path: Path) -> None:
    only = "bulk,source,backlog,mixed,sql,queries,extend,memory"
    document = measured(tmp_path, "--scale", "0.0005", "--only", only)
    assert not document["quick"]
    assert len(document["rows"]) == 50
    for row in document["rows"]:
        expected = {"no bound"} if row["bound"] is None else {"within", "over"}
        assert row["verdict"] in expected


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "pointless")

    assert done.returncode == 2
    assert "pointless" in done.stderr


@pytest.mark.slow
def test_rows_of_processes_have_rates_and_requests_with_their_bounds(tmp_path: Path) -> None:
    only = "consumers,fleet,producers,store,trickle,sends"
    document = measured(tmp_path, "--quick", "--scale", "0.2", "--only", only)
    consumers, requests = [1, 1, 1.3, 0.7, 3.5, 0.4, 1.5, 3], [6, 6, 12, 12, 9, 9, 2, 2]
    disk, remote = [0.975, 0.015, None, 0.015, 0.04, 0.003], [0.95, 0.15, None, 0.3, 0.6, None, 1]
    expected = [*consumers, 0.95, 0.95, *disk, *remote, *requests, 12, 2, None, None, None, 1.5, 1.3, 0.35]
    expected += [None] * 9
    assert [row["bound"] for row in document["rows"]] == expected
    rates = [row for row in document["rows"] if "messages of" not in row["row"]]
    assert all(row["measured"] > 0 for row in rates)
    assert os.listdir(tmp_path) == [], "what the benchmark made is still there"


@pytest.mark.slow
def test_rows_of_syncs_and_of_the_parts_of_a_commit_are_measured(tmp_path: Path) -> None:
    document = measured(tmp_path, "--quick", "--scale", "0.02", "--only", "durable,profile")
    rows = {row["row"]: row for row in document["rows"]}
    assert [row["bound"] for row in rows.values()][:3] == [None, 1, 0.7]
    for part in ("decide", "of that, the data file", "of that, the log entry"):
        assert rows[f"1 threads: one commit: {part}"]["measured"] > 0
        assert 0 < rows[f"a consumer: {part}"]["measured"] < rows["a consumer: claim"]["measured"]


@pytest.mark.slow
def test_rows_of_deliveries_have_their_bounds(tmp_path: Path) -> None:
    document = measured(tmp_path, "--quick", "--scale", "0.02", "--only", "deliveries")
    assert [row["bound"] for row in document["rows"]] == [1.1, 1.1, None, 1.3, 1.3, None, None]
    assert os.listdir(tmp_path) == [], "what the benchmark made is still there"


@pytest.mark.slow
def test_rows_of_the_server_have_their_latencies_and_bounds(tmp_path: Path) -> None:
    document = measured(tmp_path, "--quick", "--scale", "0.01", "--only", "serve")
    rows = {row["row"]: row for row in document["rows"]}
    for action in ("CreateQueue", "DeleteQueue"):
        row = rows.pop(f"wire: {action} beside 8 clients")
        assert row["unit"] == "ms" and row["measured"] > 0 and row["bound"] is None
    beside = {name: rows.pop(name)["bound"] for name in [*rows] if "wire: " in name}
    assert beside == {
        "wire: what a send takes more than the queue's own, one by one, 1 clients": 2,
        "wire: what a send takes more than the queue's own, in batches of 10, 1 clients": 2,
        "wire: sent one by one, 64 clients, beside 64 threads": 0.5,
        "wire: p99 of sends one by one, 64 clients, beside p50": 5,
        "wire: p99 of sends in batches of 10, 64 clients, beside p50": None,
        "wire: sent in batches of 10, 64 clients, beside 64 threads": 0.5,
    }
    assert len(rows) == 2 * 3 * 6
    bounds = {name: row["bound"] for name, row in rows.items() if row["bound"] is not None}
    assert bounds == {
        f"wire, FIFO: messages {verb} {how}, 256 clients": bound
        for verb in ("sent", "received", "deleted")
        for how, bound in (("one by one", 300), ("in batches of 10", 3_000))
    }
    for row in rows.values():
        half, most = re.fullmatch(r"p50 ([\d.]+) ms, p99 ([\d.]+) ms", row["remark"]).groups()
        assert 0 < float(half) <= float(most) and row["measured"] > 0
    assert os.listdir(tmp_path) == [], "what the benchmark made is still there"
