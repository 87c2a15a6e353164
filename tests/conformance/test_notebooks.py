"""What notebooks show for a root, a queue, its counts and its messages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from lakequeue import LakeQueue, Queue
from lakequeue.testing import ManualClock


def cells(shown: object) -> list[list[str]]:
    """The caption of a table, then its rows, the titles first."""
    html = shown._repr_html_()  # type: ignore[attr-defined]
    assert html.count("<table>") == 1
    rows = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", html)]
    return [re.findall("<caption>(.*?)</caption>", html), *rows]


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Queue:
    return LakeQueue(str(tmp_path / "root"), clock=clock).create_queue("orders")


TITLES = ["visible", "in flight", "delayed", "held", "rewindable", "oldest"]


def test_a_queue_and_its_counts_are_tables(queue: Queue, clock: ManualClock) -> None:
    for body in "abc":
        queue.send(body)
    queue.receive()
    clock.advance(90)
    queue.receive()
    counts = ["2", "1", "0", "0", "0", "1m30s"]
    assert cells(queue.counts()) == [["messages"], TITLES, counts]
    assert cells(queue) == [["queue orders"], TITLES, counts]
    queue.pause("it is <late>")
    assert ": it is &lt;late&gt;" in cells(queue)[0][0]


def test_a_root_shows_some_of_its_queues(queue: Queue, tmp_path: Path, clock: ManualClock) -> None:
    lake = LakeQueue(str(tmp_path / "root"), clock=clock)
    queue.send("a")
    _, titles, row = cells(lake)
    assert titles == ["queue", *TITLES] and row == ["orders", "1", "0", "0", "0", "0", "0s"]
    for number in range(25):
        lake.create_queue(f"q{number:02}")
    assert [row[0] for row in cells(lake)[2:]] == ["orders", *(f"q{each:02}" for each in range(19)), "and more"]
    assert LakeQueue(str(tmp_path / "none"))._repr_html_() is None and not (tmp_path / "none").exists()


def test_peeked_messages_are_a_table_and_a_list(queue: Queue) -> None:
    assert cells(queue.peek()) == [["0 messages"], ["message", "state", "received", "sent", "visible at", "body"]]
    sent = queue.send("<b>" + "x" * 200)
    [message] = queue.peek()
    row = cells(queue.peek())[2]
    assert row[:3] == [sent.message_id, "visible", "0"] and re.fullmatch("&lt;b&gt;x{96}…", row[5])
    assert queue.peek() == [message], "equal to a plain list"
    queue.send_arrow(pa.table({"body": ["a"] * 30}))
    assert len(cells(queue.peek(limit=31))) == 2 + 20 + 1


def test_the_plain_text_is_shown_if_storage_fails(queue: Queue, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "root")
    assert queue._repr_html_() is None
