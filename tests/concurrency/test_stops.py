"""A process may be stopped anywhere for any time: its later acknowledgements are true, and others continue."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.harness import apart, at_once, check_log, drain, elsewhere, log_rows
from concurrency.steps import at
from concurrency.stopping import busy_hours, older, short_logs, stopped, stopped_in, time_flies
from insides import messages_of, place_of, receipts_of
from lakequeue import Queue, QueueClientError
from lakequeue.storage import cleaning, layout
from lakequeue.storage.engines import commit, locks, log_upkeep
from lakequeue.storage.engines.point import Table
from lakequeue.storage.ledger import Ledger
from lakequeue.testing import ManualClock
from mutations import Patch

Pair = tuple[Queue, Queue]


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock, monkeypatch: Patch) -> Pair:
    """One queue in two processes."""
    short_logs(monkeypatch)
    here, there = apart(tmp_path / "root", clock)
    return here.create_queue("orders"), there.create_queue("orders")


@pytest.mark.spec("QUE-33", "DLT-1")
def test_a_send_that_was_stopped_while_others_filled_and_trimmed_the_log_is_stored_once(
    pair: Pair, monkeypatch: Patch
) -> None:
    queue, other = pair
    queue.send("first")
    seen = stopped_in(monkeypatch, lambda: busy_hours(other))
    queue.send("stopped")
    assert seen.seen
    assert [row.body for row in check_log(other)].count("stopped") == 1


@pytest.mark.spec("DEL-2", "DLT-1")
def test_a_delete_that_was_stopped_while_others_filled_and_trimmed_the_log_is_final(
    pair: Pair, clock: ManualClock, monkeypatch: Patch
) -> None:
    queue, other = pair
    queue.send("deleted")
    [message] = queue.receive(visibility_timeout=600)
    seen = stopped_in(monkeypatch, lambda: busy_hours(other))
    queue.delete(message.receipt_handle)
    assert seen.seen
    clock.advance(1_000)
    assert "deleted" not in drain(other)


@pytest.mark.spec("DLT-7")
def test_a_compactor_leaves_the_files_of_a_process_that_is_stopped_in_its_commit(
    pair: Pair, monkeypatch: Patch
) -> None:
    queue, other = pair
    queue.send("a")
    [message] = queue.receive()
    passes: list[Any] = []

    def an_hour_passes() -> None:
        for _ in range(2):  # the first pass lists what is needed
            older(place_of(queue), 2 * 3600)
            passes.append(other.compact())

    seen = stopped_in(monkeypatch, an_hour_passes)
    queue.delete(message.receipt_handle)
    assert seen.seen
    third = elsewhere(queue)
    counts = third.counts()
    assert (counts.visible, counts.in_flight) == (0, 0)
    third.send("b")
    assert drain(third) == ["b"]
    assert not other.compact().failures


@pytest.mark.spec("ERR-9")
def test_a_process_that_is_stopped_in_a_commit_keeps_nobody_from_finishing(pair: Pair, monkeypatch: Patch) -> None:
    queue, _ = pair
    queue.send("a")
    change, lost = Ledger.change, iter([True, True])

    def changed(*args: Any) -> Any:
        made = change(*args)
        return attrs.evolve(made, fence={layout.RECEIPTS_ID: -1}) if next(lost, False) else made

    monkeypatch.setattr(Ledger, "change", changed)
    with stopped_holding(receipts_of(queue), "shared"):
        [(message,)] = at_once([queue.receive], patience=20)
    assert message.body == "a"


@pytest.mark.spec("ERR-2")
def test_a_process_that_is_stopped_while_it_keeps_others_out_is_named_and_changes_nothing(
    pair: Pair, monkeypatch: Patch
) -> None:
    queue, _ = pair
    path = messages_of(queue)
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    with (
        stopped_holding(path, "exclusive"),
        pytest.raises(QueueClientError, match="_commit.lock was held") as caught,
    ):
        queue.send("a")
    assert not caught.value.outcome_unknown
    queue.send("b")
    assert drain(queue) == ["b"]


def test_a_log_that_cannot_be_trimmed_now_is_trimmed_later(pair: Pair, monkeypatch: Patch) -> None:
    queue, other = pair
    monkeypatch.setattr(cleaning, "PATIENCE", 0.1)
    monkeypatch.setattr(log_upkeep, "TRIM_PATIENCE", 0.01)
    folder = Path(messages_of(queue))
    with stopped_holding(str(folder), "shared"):
        busy_hours(other)
        assert (folder / "_delta_log" / f"{0:020}.json").exists()
        failures = other.compact().failures
        assert failures and all("_commit.lock was held" in failure for failure in failures)
    busy_hours(other)
    assert not (folder / "_delta_log" / f"{0:020}.json").exists()
    assert len(list((folder / "_delta_log").glob("*.json"))) < 30


@pytest.mark.spec("DLT-7")
def test_a_process_that_was_stopped_between_listing_and_reading_reads_again(
    pair: Pair, monkeypatch: Patch
) -> None:
    queue, other = pair
    queue.send("a")

    def meanwhile() -> None:
        busy_hours(other)
        assert not other.compact(now=0).failures

    at(monkeypatch, Ledger, "load", meanwhile)
    assert queue.receive()


@pytest.mark.spec("ERR-8", "DLT-1")
@pytest.mark.parametrize("verb", ["append", "merge"])
def test_a_root_that_goes_away_during_a_commit_leaves_its_outcome_unknown(
    pair: Pair, clock: ManualClock, monkeypatch: Patch, verb: str
) -> None:
    """As a mount point does: a commit in the empty directory below it would be acknowledged and lost."""
    queue, other = pair
    queue.send("first")
    root = Path(place_of(queue))
    away = root.with_name("away")
    at(monkeypatch, Table, verb, lambda: root.rename(away))
    with pytest.raises(QueueClientError) as caught:
        queue.send("lost") if verb == "append" else queue.receive()
    assert caught.value.outcome_unknown
    assert not list(root.rglob("*.json"))
    shutil.rmtree(root, ignore_errors=True)
    away.rename(root)
    if verb == "merge":
        assert drain(other) == []  # the receive took it
        clock.advance(30)
    assert drain(other) == (["first", "lost"] if verb == "append" else ["first"])
    queue.send("second")
    assert drain(other) == ["second"]


@pytest.mark.spec("DUR-22", "ERR-2")
def test_a_root_that_was_moved_away_is_not_made_again(pair: Pair) -> None:
    queue, other = pair
    queue.send("first")
    [message] = queue.receive()
    root = Path(place_of(queue))
    away = root.with_name("away")
    root.rename(away)
    for call in (
        lambda: queue.send("lost"),
        queue.receive,
        lambda: queue.delete(message.receipt_handle),
        queue.purge,
        queue.compact,
    ):
        with pytest.raises(QueueClientError):
            call()
    assert not root.exists()
    away.rename(root)
    queue.delete(message.receipt_handle)
    other.send("second")
    assert drain(queue) == ["second"]


@pytest.mark.spec("DUR-23")
def test_a_process_that_is_stopped_after_a_lost_race_keeps_nobody_from_committing(
    pair: Pair, monkeypatch: Patch
) -> None:
    queue, other = pair
    queue.send("a")
    monkeypatch.setattr(locks, "PATIENCE", 1.0)
    with stopped_in_a_second_attempt(queue):
        for body in "bcd":
            queue.send(body)
            other.send(body.upper())
    assert sorted(drain(queue)) == ["B", "C", "D", "a", "b", "c", "d", "late"]


class TestWithoutALock:
    """As on object stores: a log may be trimmed while a process is stopped."""

    @pytest.fixture(autouse=True)
    def no_lock(self, pair: Pair, monkeypatch: Patch) -> None:
        for module in ("engines.commit", "engines.log_upkeep", "engines.log_trimming", "cleaning"):
            monkeypatch.setattr(f"lakequeue.storage.{module}.committing", lambda *_, **__: nullcontext())
        for module in ("commit", "log_upkeep"):
            monkeypatch.setattr(f"lakequeue.storage.engines.{module}.local_path", lambda _: None)
        monkeypatch.setattr(Table, "_is_still_based", lambda _: True)

    def test_a_snapshot_that_was_loaded_hours_ago_is_not_committed_on(
        self, pair: Pair, monkeypatch: Patch
    ) -> None:
        queue, other = pair
        queue.send("first")
        other.send("second")
        time_flies(monkeypatch, commit.OLDEST_BASE + 1)
        append, bases = Table.append, []

        def recorded(table: Table, *args: Any) -> None:
            bases.append(table.version)
            append(table, *args)

        monkeypatch.setattr(Table, "append", recorded)
        queue.send("third")
        assert bases == [2]
        assert [row.body for row in check_log(queue)] == ["first", "second", "third"]

    def test_a_commit_that_took_long_is_found_before_it_is_acknowledged(
        self, pair: Pair, monkeypatch: Patch
    ) -> None:
        queue, other = pair
        stopped_in(monkeypatch, lambda: time_flies(monkeypatch, commit.LONG_COMMIT + 1))
        queue.send("stopped")
        assert drain(other) == ["stopped"]

    @pytest.mark.parametrize(
        ("owner", "step", "landed"), [(commit.Commit, "_may_commit", True), (Table, "_create_entry", False)]
    )
    def test_a_commit_at_a_dead_place_is_not_acknowledged(
        self, pair: Pair, monkeypatch: Patch, owner: type, step: str, landed: bool
    ) -> None:
        """Whether the process is stopped after the check of the base, or before it writes the entry."""
        queue, other = pair
        queue.send("first")
        folder = Path(messages_of(queue))

        def a_week_passes() -> None:
            busy_hours(other)
            cut_log(folder)
            time_flies(monkeypatch, commit.LONG_COMMIT + 1)

        at(monkeypatch, owner, step, a_week_passes, landed=landed)
        with pytest.raises(QueueClientError) as caught:
            queue.send("stopped")
        assert caught.value.outcome_unknown
        assert "stopped" not in [row.body for row in log_rows(other)]
        queue.send("again")
        assert [row.body for row in log_rows(other)][-1] == "again"

    @pytest.mark.spec("ERR-9")
    def test_a_log_that_was_trimmed_meanwhile_does_not_show_the_outcome(
        self, pair: Pair, monkeypatch: Patch
    ) -> None:
        queue, other = pair
        queue.send("first")
        folder = Path(messages_of(queue))

        def the_answer_is_lost() -> None:
            busy_hours(other)
            cut_log(folder)
            raise OSError("the answer was lost")

        at(monkeypatch, Table, "append", the_answer_is_lost, landed=True)
        with pytest.raises(QueueClientError, match="trimmed meanwhile") as caught:
            queue.send("stopped")
        assert caught.value.outcome_unknown


def cut_log(folder: Path) -> None:
    """Removes the entries below the newest checkpoint, even during a commit."""
    log = folder / "_delta_log"
    newest = max(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))
    for path in log.iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) < newest:
            path.unlink()


@contextmanager
def stopped_holding(table_path: str, kind: str) -> Iterator[None]:
    """Another process, stopped while it holds the commit lock of a table."""
    script = (
        "import sys; from lakequeue.storage.engines.locks import committing\n"
        "with committing(sys.argv[1], exclusive=sys.argv[2] == 'exclusive'):\n"
        "    print('in', flush=True); sys.stdin.read()\n"
    )
    with stopped(script, table_path, kind):
        yield


@contextmanager
def stopped_in_a_second_attempt(queue: Queue) -> Iterator[None]:
    """Another process that sends, lost its first race, and is stopped in the next."""
    script = (
        "import attrs, sys; from lakequeue import LakeQueue\n"
        "from lakequeue.storage.messages.append import Appender\n"
        "append, lost = Appender.append, []\n"
        "def first_loses(*args):\n"
        "    if lost: print('in', flush=True); sys.stdin.read()\n"
        "    lost.append(1)\n"
        "    change = append(*args)\n"
        "    return change if lost[1:] else attrs.evolve(change, fence={'send': -1})\n"
        "Appender.append = first_loses\n"
        "LakeQueue(sys.argv[1]).queue(sys.argv[2]).send('late')\n"
    )
    with stopped(script, place_of(queue), queue.name):
        yield
