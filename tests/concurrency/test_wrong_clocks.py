"""A compactor whose clock is wrong removes nothing (DUR-84)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from concurrency.harness import apart
from concurrency.stopping import clock_jumps, short_logs
from insides import engine_of, messages_of
from lakequeue import LakeQueue
from lakequeue.storage import clock_guard, layout
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.log_trimming import trim_log
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case

DAYS = 10 * 86400.0
WAYS = [(DAYS, "ahead of"), (-DAYS, "behind")]


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.objectstore)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "root") if request.param == "disk" else request.getfixturevalue("s3_root")


def an_idle_writer_stands_on_a_log_that_is_not_trimmed(root: str, clock: ManualClock, patch: Patch) -> None:
    short_logs(patch)
    patch.setattr("lakequeue.storage.engines.log_trimming.LOG_ENTRIES", 10_000)
    idle, other = (lq.create_queue("orders") for lq in apart(root, clock))
    idle.send("first")
    for number in range(25):
        other.send(str(number))
    folder = engine_of(apart(root, clock, 1)[0]).store.folder(messages_of(other))
    before = {file.name for file in folder.files("_delta_log")}
    with patch.context() as jump:
        clock_jumps(jump, DAYS)
        apart(root, clock, 1)[0].compact()
    assert before <= {file.name for file in folder.files("_delta_log")}


@pytest.mark.spec("DUR-84")
@pytest.mark.parametrize(("by", "says"), WAYS)
def test_a_compactor_says_by_how_much_its_clock_is_wrong(
    place: str, clock: ManualClock, monkeypatch: Patch, by: float, says: str
) -> None:
    lq = apart(place, clock, 1)[0]
    lq.create_queue("orders").send("a")
    clock_jumps(monkeypatch, by)
    failures = [failure for summary in lq.compact() for failure in summary.failures]
    assert failures
    assert all(f"{says} the clock of the storage" in each and "days, " in each for each in failures)


@pytest.mark.spec("DUR-62", "DUR-84")
def test_by_a_clock_that_is_ahead_no_deleted_queue_is_removed(
    tmp_path: Path, clock: ManualClock, monkeypatch: Patch
) -> None:
    lq = apart(tmp_path, clock, 1)[0]
    queue = lq.create_queue("orders")
    lq.delete_queue("orders")
    clock.advance(DAYS)
    with monkeypatch.context() as jump:
        clock_jumps(jump, DAYS)
        lq.compact()
    assert (tmp_path / "q" / queue.key).exists()
    lq.compact()
    assert not (tmp_path / "q" / queue.key).exists()


@pytest.mark.spec("DUR-84")
def test_a_difference_of_minutes_is_ignored(tmp_path: Path, clock: ManualClock, monkeypatch: Patch) -> None:
    lq: LakeQueue = apart(tmp_path, clock, 1)[0]
    lq.create_queue("orders").send("a")
    clock_jumps(monkeypatch, clock_guard.TOLERANCE - 60)
    assert not [failure for summary in lq.compact() for failure in summary.failures]


@pytest.mark.spec("DUR-84")
@pytest.mark.objectstore
def test_on_a_store_an_entry_goes_only_if_it_is_old_by_the_clock_of_its_writer(
    s3_root: str, clock: ManualClock, monkeypatch: Patch
) -> None:
    short_logs(monkeypatch)
    lq = apart(s3_root, clock, 1)[0]
    queue = lq.create_queue("orders")
    for number in range(25):
        queue.send(str(number))
    folder = engine_of(lq).store.folder(messages_of(queue))
    at_once: Any = attrs.evolve(layout.MESSAGES_RETENTION, remote_log_minutes=0)
    entries = "lakequeue.storage.engines.entries._now"
    assert trim_log(folder, at_once, 1.0).files
    with monkeypatch.context() as ahead:
        ahead.setattr(entries, lambda: 2**50)
        for number in range(25):
            queue.send(str(number))
    trim_log(folder, at_once, 1.0)
    assert all(folder.exists(entry_name(version)) for version in range(27, 50))


def _by_the_machines_clock(patch: Patch) -> None:
    patch.setattr("lakequeue.storage.engines.log_trimming.storage_now", lambda _: time.time())


MUTATIONS: list[Mutation] = [
    Mutation(
        "ages count by the machine's clock",
        _by_the_machines_clock,
        {an_idle_writer_stands_on_a_log_that_is_not_trimmed: "DUR-84"},
    ),
]


@pytest.mark.spec("DUR-84")
@each_case(MUTATIONS)
def test_the_rule_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path, clock: ManualClock) -> None:
    case.run(lambda patch: (str(tmp_path / "root"), clock, patch))
