"""``lakequeue sql`` without a JVM: what it answers, and what a query cannot do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lakequeue import LakeQueue
from lakequeue.cli import app
from lakequeue.storage import ledger

Run = Callable[..., Result]


@pytest.fixture
def lq(tmp_path: Path) -> LakeQueue:
    lq = LakeQueue(str(tmp_path / "root"))
    orders = lq.create_queue("orders", tags={"team": "a"})
    for body in ("one", "two", '{"x": 3}'):
        orders.send(body, attributes={"n": 1})
    orders.receive(visibility_timeout=600)
    return lq


@pytest.fixture
def run(lq: LakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``sql``, which must leave the working directory empty."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def command(*args: str, json: bool = False) -> Result:
        options = ["--root", lq.root, *(["--json"] if json else [])]
        result = CliRunner(env={"LAKEQUEUE_ROOT": None}).invoke(app, [*options, "sql", *args])
        assert os.listdir() == []
        return result

    return command


@pytest.fixture
def ask(run: Run) -> Callable[..., list[dict[str, Any]]]:
    def rows(*args: str) -> list[dict[str, Any]]:
        result = run(*args, json=True)
        assert (result.exit_code, result.stderr) == (0, "")
        found: list[dict[str, Any]] = json.loads(result.stdout)
        return found

    return rows


def refused(result: Result) -> tuple[int, str]:
    """Exit code and the one line of an error."""
    assert result.stdout == "" and result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    return result.exit_code, result.stderr.strip()


@pytest.mark.spec("DLT-5", "EXM-10")
def test_the_relations_are_queried(run: Run, ask: Callable[..., list[dict[str, Any]]]) -> None:
    shown = run("SELECT body, state FROM messages ORDER BY sent_at")
    assert [line.split()[-1] for line in shown.stdout.splitlines()[3:]] == ["in_flight", "visible", "visible"]
    [row] = ask("SELECT sum(visible) AS v, any_value(tags) AS t, min(created_at) < now() AS past FROM queues")
    assert row == {"v": 2, "t": {"team": "a"}, "past": True}
    [row] = ask("SELECT TIMESTAMP '2026-01-31 08:00' AS at, TIME '10:00' AS time, 1.5 AS half, [1] AS list")
    assert row == {"at": "2026-01-31T08:00:00Z", "time": "10:00:00.000000", "half": "1.5", "list": [1]}
    [row] = ask(
        "SELECT 170141183460469231731687303715884105727 AS large, count_if(state = 'visible') AS n FROM messages"
    )
    assert row == {"large": "170141183460469231731687303715884105727", "n": 2}
    assert ask("SELECT body->>'x' AS x FROM messages WHERE body LIKE '{%' -- a comment") == [{"x": "3"}]
    assert ask("WITH m AS (FROM messages) SELECT m.message_attributes['n'] AS n FROM m LIMIT 1") == [{"n": "1"}]
    assert ask("PIVOT (SELECT state FROM messages) ON state USING count(*)") == [{"in_flight": 1, "visible": 2}]
    assert [row["name"] for row in ask("SHOW TABLES")] == [
        "groups",
        "history",
        "messages",
        "queues",
        "receipts",
        "stats",
    ]
    assert ask("DESCRIBE history")[0]["column_name"] == "queue"
    assert "queue" in run("EXPLAIN SELECT * FROM messages WHERE queue = 'orders'").stdout
    assert ask("SELECT * FROM stats") == ask("SELECT * FROM history") == []
    assert ask("SELECT count(*) AS n FROM receipts WHERE state = 'head'") == [{"n": 1}]
    few = run("--limit", "2", "SELECT * FROM messages", json=True)
    assert len(json.loads(few.stdout)) == 2 and few.stderr == "only the first 2 rows; --limit shows more\n"


def test_the_past_is_queried(lq: LakeQueue, ask: Callable[..., list[dict[str, Any]]]) -> None:
    before = datetime.now(timezone.utc).isoformat()
    lq.queue("orders").purge()
    query = "SELECT count(*) AS n FROM messages"
    assert (ask(query), ask("--as-of", before, query)) == ([{"n": 0}], [{"n": 3}])


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC" at line 1, column 1; --spark runs Spark SQL'),
        ("SELECT 1 +", "at line 1, column 10; --spark"),
        ("SELECT body,\n  nosuch FROM messages", "at line 2, column 3; --spark runs Spark SQL"),
        (
            "SELECT * FROM nowhere",
            "no relation nowhere at line 1, column 15; there are queues, messages, receipts, his",
        ),
        ("SELECT * FROM main.Mesages", "no relation Mesages at line 1, column 15; did you mean messages?; see"),
        ("SELECT from_unixtime(0)", "at line 1, column 8; --spark runs Spark SQL"),
        (
            "SELECT dead_letter_reason.error FROM messages",
            "a field of JSON is dead_letter_reason->>'$.error'; --sp",
        ),
        ("", "give one statement, not 0"),
        ("SELECT 1; SELECT 2", "give one statement, not 2"),
        ("CREATE TABLE mine AS SELECT 1", "only SELECT and EXPLAIN are allowed, not CREATE"),
        ("COPY (SELECT 1) TO 'out.csv'", "only SELECT and EXPLAIN are allowed, not COPY"),
        ("ATTACH 'out.db'", "only SELECT and EXPLAIN are allowed, not ATTACH"),
        ("SET threads = 1", "only SELECT and EXPLAIN are allowed, not SET"),
        ("INSTALL httpfs", "only SELECT and EXPLAIN are allowed, not LOAD"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO 'out.csv'", "only SELECT and EXPLAIN are allowed, not COPY"),
        (
            "explain (analyze, format json) COPY (SELECT 1) TO 'out.csv'",
            "only SELECT and EXPLAIN are allowed, not COPY",
        ),
        ("/**/ EXPLAIN ANALYZE COPY (SELECT 1) TO 'out.csv'", "only SELECT and EXPLAIN are allowed, not EXPLAIN"),
        ("EXPLAIN ANALYZE SELECT * FROM 'out.csv'", "a query reads only queues, messages, receipts"),
        ("SELECT * FROM read_text('/etc/hostname')", "a query reads only queues, messages, receipts"),
        ("SELECT * FROM read_csv('/etc/hostname')", "a query reads only queues, messages, receipts"),
        ("SELECT * FROM glob('/*')", "a query reads only queues, messages, receipts"),
    ],
)
def test_what_is_no_query_of_the_relations_is_refused_in_one_line(run: Run, query: str, told: str) -> None:
    code, line = refused(run(query))
    assert code == 2 and told in line and line.endswith("; see lakequeue sql --help")


def test_a_query_or_a_root_that_fails_is_reported_in_one_line(
    lq: LakeQueue, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line = refused(run("SELECT body::INT FROM messages"))
    assert (code, "Could not convert string 'one'" in line, "line" in line) == (3, True, False)

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(ledger.Ledger, "rows", fail)
    code, line = refused(run("SELECT * FROM messages"))
    assert (code, line) == (3, f"error: storage: {lq.root}: the disk is gone")

    def too_large(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ledger.Ledger, "rows", too_large)
    code, line = refused(run("SELECT * FROM messages"))
    assert (code, line) == (3, "error: storage: MemoryError: there is not enough memory")
    nowhere = CliRunner().invoke(app, ["--root", f"{lq.root}-not", "sql", "SELECT 1"])
    code, line = refused(nowhere)
    assert code == 3 and "does not exist" in line


def test_either_a_query_or_a_schema_is_given(lq: LakeQueue, run: Run) -> None:
    for arguments in ([], ["--register", "shown", "SELECT 1"]):
        code, line = refused(run(*arguments))
        assert (code, "give either a QUERY or --register SCHEMA" in line) == (2, True)
