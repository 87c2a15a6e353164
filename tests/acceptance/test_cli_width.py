"""What commands print on narrow terminals: ids and names in one piece, units, meanings of columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from insides import place_of
from lakequeue import CompactionSummary, LakeQueue, Queue, SendEntry
from lakequeue.cli import app, output, render, watch
from lakequeue.serve.console.api import ConsoleApi
from lakequeue.serve.console.parameters import Parameters
from lakequeue.serve.sqs.actions import Actions

LONG = "orders-of-the-northern-and-southern-regions-of-the-whole-world"  # 62 characters


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    lake = LakeQueue(str(tmp_path / "root"))
    lake.create_queue("dead", tags={"team": "x" * 70})
    queue = lake.create_queue(LONG, rewind_range=3_600, tags={"team": "x" * 70})
    queue.send_batch([SendEntry(f"{number} " + "word " * 60) for number in range(3)])
    queue.send("unbroken" * 30, delay=600)
    return queue


def shown(queue: Queue, columns: int, *args: str) -> str:
    env = {"LAKEQUEUE_ROOT": place_of(queue), "COLUMNS": str(columns)}
    result = CliRunner(env=env).invoke(app, [*args])
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["list"], lambda queue: [queue.name, "dead"]),
        (["show", LONG], lambda queue: [queue.name, queue.arn, "x" * 70, "message_retention_period"]),
        (["counts"], lambda queue: [queue.name, "oldest"]),
        (["counts", LONG], lambda queue: [queue.name, "rewindable"]),
        (["watch", "--count", "1"], lambda queue: [queue.name, "in flight"]),
        (["peek", LONG], lambda queue: [message.message_id for message in queue.peek()]),
        (["tag", LONG, "a=b"], lambda queue: ["x" * 70]),
        (["receive", LONG, "--max", "3"], lambda queue: [message.message_id for message in queue.peek(limit=3)]),
        (["export", LONG], lambda queue: [message.message_id for message in queue.peek()]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_ids_and_names_are_never_split(
    queue: Queue, columns: int, args: list[str], wanted: Callable[[Queue], list[str]]
) -> None:
    expected = wanted(queue)
    lines = shown(queue, columns, *args).splitlines()
    for text in expected:
        assert any(text in line for line in lines), (text, lines)


def test_a_list_counts_messages_as_the_console_does(queue: Queue) -> None:
    found = ConsoleApi(Actions(LakeQueue(place_of(queue)))).queues(Mock(), "", Parameters({}))["queues"]
    in_console = {row["name"]: row["counts"] | {"oldest_age": 0} for row in found}
    listed = json.loads(shown(queue, 160, "list", "--json"))
    assert {row["name"]: row["counts"] | {"oldest_age": 0} for row in listed} == in_console


def test_compact_prints_what_it_did() -> None:
    done = [
        CompactionSummary("orders", expired=12_000, segments_merged=1, files_freed=3, bytes_freed=1_234_567),
        CompactionSummary("idle"),
        CompactionSummary("old", deleted=True, segments_dropped=2, ledgers_rewritten=1, failures=["x"]),
        CompactionSummary(None, segments_cut=1),
    ]
    assert render.compacted(done).splitlines() == [
        "orders: 12,000 messages expired, 1 segment merged, 3 files removed (1.2 MB)",
        "old (deleted): 2 segments dropped, 1 ledger rewritten, 1 step failed",
        "the root's own tables: 1 segment cut",
    ]
    assert render.compacted(done[1:2]) == "nothing to do"


@pytest.mark.parametrize(("lines", "queues"), [(24, 100), (24, 3), (60, 30)])
def test_watch_fits_a_screen(tmp_path: Path, lines: int, queues: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": 80, "LINES": lines}.items():
        monkeypatch.setenv(name, str(value))
    counts = dict.fromkeys(("visible", "in_flight", "delayed", "held"), 0)
    rows = [
        {"queue": f"queue-{number}", "oldest_age": 93_784.5, "sent_per_second": 12.25, "error": None}
        | {"consumed_per_second": 1_235}
        | (counts | {"visible": 1_234_567, "delayed": number, "held": number // 2})
        for number in range(queues)
    ]
    rows[1] |= {"queue": LONG, "visible": 2_000_000}
    shown = output.rendered(watch._screen({"queues": rows}, lines)).splitlines()
    assert max(map(len, shown)) <= 80 and len(shown) <= lines
    row = shown.index(f" {LONG}") + 1
    assert shown[row].split() == ["2000000", "0", "1", "0", "12.25", "1235", "1d2h"]
    assert shown[-1].endswith("with fewer messages; --prefix chooses") == (queues == 100)
    assert any(f"queue-{queues - 1} " in line for line in shown)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-1, "0s"), (0.25, "0.2s"), (6.24, "6.2s"), (59, "59s"), (60, "1m"), (90, "1m30s"), (3_605, "1h")]
    + [(3_725.4, "1h2m"), (93_784.5, "1d2h"), (345_600, "4d"), (8_640_000, "100d")],
)
def test_ages_and_durations_have_one_format(seconds: float, text: str) -> None:
    assert render.age(seconds) == text and render.age(None) == ""
