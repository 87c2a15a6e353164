"""`compact --now`: what no reader needs that began lately goes at once, and nothing else does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from conformance.damage import Victim, send_to_one_shard
from lakequeue import InvalidParameterValue, LakeQueue, QueueClientError
from lakequeue.cli import app
from lakequeue.storage import layout
from lakequeue.testing import ManualClock


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    victim = Victim(str(tmp_path / "root"), clock)
    victim.lake().create_queue("orders", shards=2, visibility_timeout=36_000)
    victim.queue.send_arrow(pa.table({"body": [str(number) for number in range(400)]}))
    return victim


def size(victim: Victim) -> int:
    """Number of data files of the queue."""
    return len(list(Path(layout.tables_path(victim.root, victim.key)).rglob("*.parquet")))


def aged(victim: Victim, seconds: float) -> None:
    """Makes all files older."""
    for path in Path(victim.root).rglob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.spec("DUR-65")
def test_what_was_purged_goes_at_once(victim: Victim) -> None:
    there, other = victim.lake().queue("orders"), victim.lake().queue("orders")
    other.send("before")
    there.purge()
    kept = size(victim)
    assert there.compact().failures == [] and size(victim) >= kept, "the log names it"
    assert there.compact(now=0).failures == []
    assert size(victim) == 6, "a checkpoint for each table, and a ledger for each shard"
    other.send("after")  # by who stood on an entry that is gone
    assert [message.body for message in other.receive(10)] == ["after"]
    assert victim.lake().check() == []


@pytest.mark.spec("DUR-65")
def test_readers_are_spared_for_so_long_and_then_read_again(victim: Victim) -> None:
    victim.send(*map(str, range(400, 440)))
    lease = victim.queue.lease(1000)
    assert lease is not None
    reading = lease.batches(["body"])
    next(reading)
    victim.clock.advance(7200)
    victim.lake().compact(now=60)  # merges the small files
    next(reading)  # of a file that no version names now, and that one of a minute ago did
    aged(victim, 61)
    victim.lake().compact(now=60)
    with pytest.raises(QueueClientError, match="No such file"):
        list(reading)
    assert len(lease.arrow(["body"])) == 440 and victim.lake().check() == []


@pytest.mark.spec("DUR-65")
def test_a_deleted_queue_goes_as_well(victim: Victim) -> None:
    tables = Path(layout.tables_path(victim.root, victim.key))
    victim.lake().create_queue("other").send("a")
    victim.lake().delete_queue("orders")
    victim.lake().compact(now=3600)
    assert tables.exists()
    victim.clock.advance(3601)
    victim.lake().compact(now=3600)
    assert not tables.exists()
    assert [message.body for message in victim.lake().queue("other").receive()] == ["a"]


@pytest.mark.spec("DUR-65")
def test_what_waits_for_its_commit_stays(victim: Victim) -> None:
    """Half of a bulk send is committed, and its process is gone."""
    send_to_one_shard(victim.queue, pa.table({"body": [f"b{number}" for number in range(400)]}))
    aged(victim, 100)
    victim.lake().compact(now=0)
    assert len(victim.drain()) == 800 and victim.lake().check() == []


@pytest.mark.spec("DUR-65")
@pytest.mark.parametrize("now", [-1, float("nan"), 86_401, "1", True])
def test_a_wrong_time_is_refused(victim: Victim, now: object) -> None:
    with pytest.raises(InvalidParameterValue, match="now"):
        victim.lake().compact(now=now)  # type: ignore[arg-type]


@pytest.mark.spec("DUR-65")
def test_compact_now_is_refused_on_object_stores() -> None:
    with pytest.raises(QueueClientError, match="is on an object store"):
        LakeQueue("s3://bucket/root").compact(now=10)


def test_the_command_takes_a_duration(victim: Victim) -> None:
    victim.queue.purge()
    victim.queue.compact()
    aged(victim, 100)
    run = CliRunner(env={"LAKEQUEUE_ROOT": victim.root}).invoke
    assert run(app, ["compact", "orders", "--now", "1m"]).exit_code == 0
    assert size(victim) == 6
    assert run(app, ["compact", "--now", "soon"]).exit_code == 2
