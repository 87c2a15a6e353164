"""How a queue stood over time, told by statistics, versions of the ledger and the present; and its picture."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import attrs
import pytest
from typer.testing import CliRunner, Result

from insides import engine_of, forget
from lakequeue import LakeQueue, Queue, QueueCounts, SendEntry, entry_verbs
from lakequeue.cli import app
from lakequeue.entry_verbs import depth_history, unknown_spans
from lakequeue.model.clock import to_micros
from lakequeue.operations.depth import Depth
from lakequeue.storage import layout, past_versions, stats
from lakequeue.storage.stats_rows import StatsRow
from lakequeue.testing import ManualClock


@pytest.fixture
def begin(clock: ManualClock) -> datetime:
    return clock.now()


def worked_on(queue: Queue, clock: ManualClock) -> dict[int, Depth]:
    """Sends, receives and deletes; how the queue stood after each."""
    stood = {}

    def note() -> None:
        stood[to_micros(clock.now())] = Depth(to_micros(clock.now()), queue.counts(), len(sent))
        clock.advance(7)

    sent: list[str] = []
    for number in range(6):
        for text in "ab":
            sent.append(queue.send(f"{text}{number}", delay=20 if number == 2 else None).message_id)
            note()
        received = queue.receive(3, visibility_timeout=12)
        note()
        if received:
            queue.delete_batch([message.receipt_handle for message in received[:2]])
            note()
    return stood


@pytest.mark.parametrize("shards", [1, 2])
def test_before_any_compaction_depths_come_from_versions_of_the_ledger(lq, clock, begin, shards):
    queue = lq.create_queue("orders", shards=shards, rewind_range=3600)
    stood = worked_on(queue, clock)
    points = depth_history(queue, begin)
    assert [point.at for point in points] == sorted({point.at for point in points})
    assert points[-1] == Depth(to_micros(clock.now()), queue.counts(), 12)
    told = {point.at: point for point in points}
    assert {at: told[at] for at in stood if at in told} == {at: stood[at] for at in stood if at in told}
    assert len(stood.keys() & told.keys()) > 10
    # between two commits: what was sent since, and timeouts that ended
    between = [point for point in points if point.at not in stood]
    assert len(between) > 20 and {point.counts.in_flight for point in between} >= {0, 1}
    assert any(point.sent > 0 for point in between)


def test_spans_without_data_are_reported(lq, clock, begin):
    queue = lq.create_queue("orders")
    clock.advance(600)
    queue.send("x")
    points = [Depth(to_micros(begin) + at * 1_000_000, queue.counts(), 0) for at in (90, 120, 600, 660)]
    at = [begin, *(begin + timedelta(seconds=seconds) for seconds in (90, 120, 600))]
    assert unknown_spans(points, begin) == [(at[0], at[1]), (at[2], at[3])]
    assert unknown_spans(points, begin + timedelta(seconds=80)) == [(at[2], at[3])]


def test_only_points_within_the_span_are_shown(lq, clock, begin):
    queue = lq.create_queue("orders")
    worked_on(queue, clock)
    since = clock.now() - timedelta(seconds=60)
    points = depth_history(queue, since)
    assert len(points) > 10 and points[0].at >= to_micros(since) and points[-1].at == to_micros(clock.now())
    assert [point.at for point in depth_history(queue, clock.now())] == [to_micros(clock.now())]


def test_a_bounded_number_of_versions_is_opened(lq, clock, begin, monkeypatch):
    queue = lq.create_queue("orders")
    stood = worked_on(queue, clock)
    opened: list[int] = []
    open_ = past_versions.opened
    monkeypatch.setattr(
        past_versions, "opened", lambda store, path, version: opened.append(version) or open_(store, path, version)
    )
    monkeypatch.setattr("lakequeue.operations.depth_history.MOST", 4)
    points = depth_history(queue, begin)
    assert 2 <= len(set(opened)) == len(opened) <= 4
    assert len(points) <= 9
    told = {point.at: point for point in points}
    assert all(told[at] == stood[at] for at in stood.keys() & told.keys())


def test_depths_older_than_the_logs_come_from_the_statistics(lq, clock, begin):
    queue, other = lq.create_queue("orders"), lq.create_queue("others")
    other.send("not mine")
    counted = []
    for number in range(3):
        queue.send(str(number))
        queue.receive(visibility_timeout=10)
        clock.advance(60)
        lq.compact(now=0)
        counted.append(Depth(to_micros(clock.now()), queue.counts(), number + 1))
    clock.advance(30)
    points = depth_history(queue, begin)
    assert points[0] == counted[0]
    assert points[1].at == counted[1].at and points[1].counts.in_flight == 1  # the last version, right after it
    assert points[-1].counts == attrs.evolve(counted[2].counts, oldest_age=210.0)
    assert depth_history(queue, begin + timedelta(seconds=61))[0] == points[1]
    forget()
    shutil.rmtree(layout.stats_path(lq.root))
    assert depth_history(lq.queue("orders"), begin)[0] == points[1]


def test_every_count_of_the_statistics_is_shown(lq, clock, begin, monkeypatch):
    monkeypatch.setattr(past_versions, "versions", lambda *_: [])
    queue, counts = lq.create_queue("orders"), QueueCounts(1, 2, 3, 4, 5.0, 6)
    counted = attrs.asdict(counts)
    assert counted.pop("undecided") == 0  # such messages count as in flight there
    row = StatsRow("orders", "local", queue.key, sent=7, **counted)
    assert stats.record(engine_of(lq), lq.root, [row], to_micros(begin)) == 1
    clock.advance(60)
    assert depth_history(queue, begin)[0] == Depth(to_micros(begin), counts, 7)


def test_versions_whose_messages_were_dropped_since_are_left_out(lq, clock, begin):
    queue = lq.create_queue("orders")
    worked_on(queue, clock)
    queue.purge()
    purged = to_micros(clock.now())
    clock.advance(10)
    queue.compact(now=0)
    queue.send("last")
    clock.advance(10)
    points = depth_history(queue, begin)
    assert points and points[0].at >= purged
    assert {point.counts.visible for point in points} == {0, 1}


def test_a_queue_of_which_nothing_is_known_has_its_present(lq, clock):
    queue = lq.create_queue("orders")
    assert depth_history(queue, clock.now() - timedelta(hours=1)) == [
        Depth(to_micros(clock.now()), QueueCounts(0, 0, 0, 0, None), 0)
    ]


# --- the command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    queue = LakeQueue("root").create_queue("orders")
    queue.send_batch([SendEntry("a"), SendEntry("b"), SendEntry("c", delay=60)])
    queue.receive()
    return lambda *args: CliRunner().invoke(app, ["--root", "root", *args])


def test_the_command_draws_a_picture(run):
    done = run("plot", "orders", "--out", "orders.png")
    assert done.exit_code == 0 and done.stdout.startswith("drew ") and "orders.png" in done.stdout
    picture = Path("orders.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n") and len(picture) > 10_000
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1200, 720)
    assert run("plot", "orders").stderr.startswith("error: usage: no output: give --out FILE.png;")


def test_a_time_that_nobody_knows_is_named_and_grey(run, monkeypatch):
    counts, now = QueueCounts(1, 0, 0, 0, None), to_micros(LakeQueue("root").clock.now())
    monkeypatch.setattr(
        entry_verbs,
        "depth_history",
        lambda *_: [Depth(now + number * 600_000_000, counts, 1) for number in (1, 2)],
    )
    done = run("plot", "orders", "--out", "orders.svg")
    assert done.stderr.count("not known: 20") == 2 and " to 20" in done.stderr
    assert Path("orders.svg").read_text().count("#ebebeb") == 4
    monkeypatch.undo()


def test_the_picture_shows_every_series_with_units(run):
    run("plot", "orders", "--out", "orders.svg", "--hours", "1")
    drawing = Path("orders.svg").read_text()
    for text in (
        "visible",
        "in flight",
        "delayed",
        "oldest message",
        "age (seconds)",
        "time (UTC)",
        "Queue orders",
    ):
        assert f"<!-- {text}" in drawing


def test_without_matplotlib_it_says_how_to_install_it(run, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("plot", "orders", "--out", "orders.png")
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1) and "pip install 'matplotlib>=3.8'" in done.stderr
    assert run("--json", "plot", "orders").exit_code == 0
