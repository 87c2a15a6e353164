"""Leases that are kept in the background while something works on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from insides import place_of
from lakequeue import (
    ComputedRenewal,
    HeartbeatRenewal,
    LakeQueue,
    Lease,
    LeaseLost,
    NoRenewal,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    RequestThrottled,
    SendEntry,
)
from lakequeue.operations import lease as lease_operations
from lakequeue.operations import queues
from lakequeue.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Queue:
    queue = LakeQueue(str(tmp_path / "root"), clock=clock).create_queue("orders", shards=2)
    queue.send_batch([SendEntry(str(number)) for number in range(10)])
    return queue


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Iterator[list[Any]]:
    """(second, timeout) of each extension of a lease, as it is asked for."""
    calls: list[Any] = []
    began, extend = clock.now(), Lease._extend

    def recorded(self: Lease, timeout: Any) -> Any:
        calls.append(((clock.now() - began).total_seconds(), timeout))
        return extend(self, timeout)

    monkeypatch.setattr(Lease, "_extend", recorded)
    yield calls


def leased(queue: Queue, timeout: float = 30) -> Lease:
    lease = queue.lease(visibility_timeout=timeout)
    assert lease is not None and lease.message_count == 10
    return lease


@pytest.mark.spec("HBN-9", "HBN-7", "PRF-5")
def test_heartbeats_of_a_lease(queue: Queue, clock: ManualClock, extensions: list[Any]) -> None:
    lease = leased(queue)
    with lease.keep_alive(HeartbeatRenewal()) as kept:
        assert kept is lease
        for _ in range(60):
            clock.advance(1)
            assert queue.receive() == []
    assert extensions == [(25, 30), (50, 30)]
    assert (lease.visible_at - clock.now()).total_seconds() == 20
    assert lease.delete().done == 10


@pytest.mark.spec("HNS-7", "HNS-10")
def test_computed_renewal_of_a_lease_goes_by_its_own_timeout(
    queue: Queue, clock: ManualClock, extensions: list[Any]
) -> None:
    with leased(queue).keep_alive(ComputedRenewal()):
        clock.advance(400)
    assert extensions == [(at, 40) for at in range(20, 300, 30)]
    assert queue.counts().visible == 10  # renewal has stopped at 300 s


def test_a_lease_may_be_kept_late_and_again(queue: Queue, clock: ManualClock, extensions: list[Any]) -> None:
    lease = leased(queue)
    clock.advance(27.5)
    with lease.keep_alive(HeartbeatRenewal()):
        clock.advance(2)
        with pytest.raises(RuntimeError, match="kept already"), lease.keep_alive(NoRenewal()):
            pass
    clock.advance(20)
    with lease.keep_alive(ComputedRenewal()):
        clock.advance(0.5)
    assert extensions == [(27.5, 30), (49.5, 38)]  # both at once
    assert lease.release().done == 10


@pytest.mark.spec("HBN-1")
def test_the_heartbeat_ends_with_the_block(queue: Queue, clock: ManualClock, extensions: list[Any]) -> None:
    lease, before = leased(queue), set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), lease.keep_alive(HeartbeatRenewal()):
        assert len(set(threading.enumerate()) - before) == 1
        clock.advance(26)
        raise ZeroDivisionError
    clock.advance(100)
    assert extensions == [(25, 30)]
    assert queue.counts().visible == 10
    assert set(threading.enumerate()) <= before


@pytest.mark.spec("HBN-20", "HNS-15")
@pytest.mark.parametrize("verb", ["delete", "release"])
def test_the_heartbeat_ends_with_the_lease(
    queue: Queue, clock: ManualClock, extensions: list[Any], verb: str
) -> None:
    lease = leased(queue)
    with lease.keep_alive(HeartbeatRenewal()):
        clock.advance(26)
        assert getattr(lease, verb)().done == 10
        clock.advance(100)  # and that is no loss
    assert extensions == [(25, 30)]


@pytest.mark.parametrize("error", [RequestThrottled("busy"), QueueClientError("lost", outcome_unknown=True)])
def test_a_lease_whose_end_failed_is_kept(
    queue: Queue, clock: ManualClock, extensions: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    lease = leased(queue)
    with lease.keep_alive(HeartbeatRenewal()):
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> Any:
                raise error

            patch.setattr(lease_operations, "settle", fail)
            with pytest.raises(type(error)):
                lease.delete()
        clock.advance(26)
    assert extensions == [(25, 30)]


def test_an_extension_by_hand_is_not_undone(queue: Queue, clock: ManualClock, extensions: list[Any]) -> None:
    lease = leased(queue)
    with lease.keep_alive(HeartbeatRenewal()):
        clock.advance(10)
        lease.extend(300)
        clock.advance(294)
        assert extensions == [(10, 300)]
        clock.advance(1)
    assert extensions == [(10, 300), (305, 30)]


@pytest.mark.spec("HBN-20", "HNS-13")
def test_a_lost_lease_is_an_error_at_the_end_of_the_block(
    queue: Queue, clock: ManualClock, extensions: list[Any]
) -> None:
    with pytest.raises(LeaseLost) as lost, leased(queue).keep_alive(HeartbeatRenewal()):
        queue.purge()
        clock.advance(100)
    assert extensions == [(25, 30)]
    assert lost.value.lost == 10
    queue.send_batch([SendEntry(str(number)) for number in range(10)])
    error = ZeroDivisionError()
    with pytest.raises(LeaseLost) as lost, leased(queue).keep_alive(ComputedRenewal()):
        clock.advance(60)
        queue.purge()
        clock.advance(60)
        raise error
    assert lost.value.__cause__ is error


@pytest.mark.spec("HBN-20")
def test_a_deleted_queue_is_an_error_at_the_end_of_the_block(queue: Queue, clock: ManualClock) -> None:
    with pytest.raises(QueueDoesNotExist), leased(queue).keep_alive(HeartbeatRenewal()):
        queues.delete(queue._runtime.root, "orders")
        clock.advance(30)


@pytest.mark.spec("HNS-12")
def test_a_throttled_extension_of_a_lease_is_repeated(
    queue: Queue, clock: ManualClock, extensions: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leased(queue)
    settle, errors = lease_operations.settle, [RequestThrottled("busy"), QueueClientError("no network")]

    def fail(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return settle(*arguments)

    monkeypatch.setattr(lease_operations, "settle", fail)
    with lease.keep_alive(HeartbeatRenewal()):
        clock.advance(40)
    assert extensions == [(25, 30), (26, 30), (27, 30)]


@pytest.mark.spec("HBN-22")
def test_a_lease_ends_after_twelve_hours(queue: Queue, clock: ManualClock, extensions: list[Any]) -> None:
    with leased(queue, 20_000).keep_alive(HeartbeatRenewal(visibility_timeout=20_000)):
        clock.advance(43_199)
        assert queue.counts().in_flight == 10
        clock.advance(1)
        assert queue.counts().visible == 10
    assert extensions == [(19_995, 20_000), (39_990, 3_210)]


# --- with Spark


class Busy:
    """A job that keeps every core busy until it is told to end."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._release = folder / "release"
        self._started = folder / "started"
        self._started.mkdir()
        self._cores = spark.sparkContext.defaultParallelism

    def _run(self, lease: Lease) -> int:
        started, release = str(self._started), str(self._release)

        def occupy(rows: Iterator[Any]) -> Iterator[Any]:
            import os
            import time
            import uuid

            open(f"{started}/{uuid.uuid4()}", "w").close()
            while not os.path.exists(release):
                time.sleep(0.01)
            yield from rows

        return lease.messages.select("body").repartition(self._cores).rdd.mapPartitions(occupy).count()

    @contextmanager
    def working(self, lease: Lease) -> Iterator[tuple[threading.Thread, list[Any]]]:
        """Runs it in a thread that keeps the lease, and deletes that; released at the end, if not before.

        Yields the thread once every core works, and what came of both or the error.
        """
        ended: list[Any] = []

        def work() -> None:
            try:
                with lease.keep_alive(HeartbeatRenewal()):
                    ended.extend([self._run(lease), lease.delete().done])
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            self._wait()
            yield thread, ended
        finally:
            self._release.touch()
            thread.join(120)

    def _wait(self) -> None:
        deadline = time.monotonic() + 120
        while len(list(self._started.iterdir())) < self._cores:
            assert time.monotonic() < deadline, "the job does not start"
            time.sleep(0.02)


@pytest.mark.core
@pytest.mark.spark
@pytest.mark.spec("HBN-9")
def test_heartbeats_arrive_while_every_core_is_busy(
    spark: SparkSession, queue: Queue, clock: ManualClock, extensions: list[Any], tmp_path: Path
) -> None:
    lease = leased(LakeQueue(place_of(queue), spark=spark, clock=clock).queue("orders"))
    with Busy(spark, tmp_path).working(lease) as (_, ended):
        clock.advance(100)
        assert extensions == [(25, 30), (50, 30), (75, 30), (100, 30)]
        assert ended == []
    assert ended == [10, 10]


@pytest.mark.core
@pytest.mark.spark
@pytest.mark.spec("HBN-20", "HNS-13")
def test_a_lost_lease_stops_its_job(spark: SparkSession, queue: Queue, clock: ManualClock, tmp_path: Path) -> None:
    lease = leased(LakeQueue(place_of(queue), spark=spark, clock=clock).queue("orders"))
    with Busy(spark, tmp_path).working(lease) as (thread, ended):
        queue.purge()
        clock.advance(25)
        thread.join(60)  # the job has not been released: it was cancelled
        [error] = ended
        assert isinstance(error, LeaseLost)
        assert "cancelled" in str(error.__cause__)
    assert spark.range(10).count() == 10  # jobs that come later are not
