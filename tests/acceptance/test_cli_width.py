"""What commands print on narrow terminals: ids and names in one piece, units, meanings of columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from insides import place_of
from lakequeue import LakeQueue, Queue, RedrivePolicy, SendEntry
from lakequeue.cli import app

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
        (["show", LONG], lambda queue: [queue.name, queue.arn, "x" * 70, "ApproximateNumberOfMessagesNotVisible"]),
        (["counts"], lambda queue: [queue.name, "oldest message"]),
        (["counts", LONG], lambda queue: [queue.name, "rewindable"]),
        (["watch", "--count", "1"], lambda queue: [queue.name, "rewindable"]),
        (["compact"], lambda queue: [queue.name, "bytes freed", "(the root's own tables)"]),
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


@pytest.mark.parametrize("columns", [60, 80])
def test_a_table_that_fits_stays_a_table(tmp_path: Path, columns: int) -> None:
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders")
    queue.send("x")
    table = shown(queue, columns, "list")
    assert " queue    kind       messages   created" in table and max(map(len, table.splitlines())) <= columns
    if columns == 80:
        counted = shown(queue, columns, "counts").splitlines()
        assert counted[-1].split()[:5] == ["orders", "1", "0", "0", "0"] and max(map(len, counted)) <= 80


def test_a_row_that_does_not_fit_is_a_block_of_lines(queue: Queue) -> None:
    first, second, *_ = shown(queue, 80, "peek", LONG).split("\n\n")
    names = [line.split("  ")[0] for line in first.splitlines()]
    assert names == ["message", "state", "received", "sent", "visible at", "body"]
    assert second.startswith(f"message     {queue.peek()[1].message_id}")


def test_one_long_name_leaves_a_table_a_table(queue: Queue) -> None:
    above = shown(queue, 90, "counts").splitlines()
    row = above.index(f" {LONG}") + 1
    assert above[row].split()[:4] == ["3", "0", "1", "0"] and max(map(len, above)) <= 90
    assert above[1].split()[:2] == ["queue", "visible"]
    dead = next(line for line in above if line.startswith(" dead"))
    assert dead.index("0") == above[row].index("3")


def test_a_list_tells_kind_depth_and_dead_letters(queue: Queue) -> None:
    lake = LakeQueue(place_of(queue))
    lake.queue("dead").send("buried")
    lake.create_queue("jobs.fifo", fifo=True)
    queue.set_attributes(redrive_policy=RedrivePolicy("dead", 3))
    lines = [line.split() for line in shown(queue, 160, "list").splitlines()]
    assert lines[1] == ["queue", "kind", "messages", "dead", "letters", "created"]
    assert [line[:-2] for line in lines[3:]] == [
        ["dead", "standard", "1"],
        ["jobs.fifo", "FIFO", "0"],
        [LONG, "standard", "4", "1", "in", "dead"],
    ]
    [listed] = json.loads(shown(queue, 160, "list", "--json", "--prefix", "orders"))
    assert (listed["messages"], listed["dead_letter_queue"], listed["dead_letters"]) == (4, "dead", 1)


def test_show_prints_units(queue: Queue) -> None:
    text = " ".join(shown(queue, 160, "show", LONG).split())
    for wanted in (
        "VisibilityTimeout 30 s ",
        "MessageRetentionPeriod 345600 s (4d) ",
        "RewindSeconds 3600 s (1h) ",
        "DelaySeconds 0 s ",
        "MaximumMessageSize 1048576 bytes (1 MiB) ",
        f"CreatedTimestamp {queue.created_at:%Y-%m-%d %H:%M:%S}",
    ):
        assert wanted in text
    queue.set_attributes(maximum_message_size=1_500, visibility_timeout=90.5)
    text = " ".join(shown(queue, 160, "show", LONG).split())
    assert "MaximumMessageSize 1500 bytes M" in text or "MaximumMessageSize 1500 bytes " in text
    assert "VisibilityTimeout 90.5 s " in text


def test_compact_says_what_its_columns_mean(queue: Queue) -> None:
    text = " ".join(shown(queue, 80, "compact").split())
    for column in ("expired", "dropped", "merged", "cut", "ledgers", "freed", "failed"):
        assert f"{column}: " in text or f"{column}, " in text
    assert "messages older than the retention" in text


@pytest.mark.parametrize("columns", [60, 80])
def test_the_help_of_every_command_fits(columns: int) -> None:
    names = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--help"]).stdout
    for name in ("create", "drain", "export", "rewind", "send", "watch"):
        assert name in names
        text = (
            CliRunner(env={"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)})
            .invoke(app, [name, "-h"])
            .stdout
        )
        assert max(map(len, text.splitlines())) <= columns
