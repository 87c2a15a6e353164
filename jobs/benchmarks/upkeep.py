"""Rows of background work: heartbeats, memory of a large lease, an hour of use with compaction."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

from benchmarks.harness import BODY, LONG, Bench, Figure, seconds_of
from lakequeue import ComputedRenewal, LakeQueue, SendEntry, SystemClock
from lakequeue.model.clock import MICROS, to_micros
from lakequeue.operations.compact import compact_root
from lakequeue.renewal.heartbeat import HeartbeatScheduler
from lakequeue.renewal.holds import Event, Holds, Verdict
from lakequeue.renewal.policies import Hold

_STEP = 10
"""Simulated minutes per row of the result."""
_MIB = 2**20
_SENDERS = 8
"""Threads that send while receipts are renewed."""


class _Simulated(SystemClock):
    """A clock that moves only when set. Begins at the machine's time, to compare with the storage's."""

    def __init__(self) -> None:
        self.instant = super().now()

    def now(self) -> datetime:
        return self.instant


def heartbeat(bench: Bench) -> Iterator[Figure]:
    """A heartbeat pass of a consumer over messages in flight, in one batch or in concurrent batches of ten."""
    held = bench.sizes.held
    for profile, size in ("lake", held), ("sqs", 10):
        with bench.scratch() as scratch, ThreadPoolExecutor(32) as pool:
            queue = LakeQueue(f"{scratch}/queues", engine="point").create_queue("held", profile=profile)
            for _ in range(0, held, 10):
                queue.send_batch([SendEntry(BODY)] * 10)
            handles = [m.receipt_handle for _ in range(0, held, 10) for m in queue.receive(10, LONG)]
            batches = [[(handle, 300) for handle in handles[at : at + size]] for at in range(0, held, size)]
            times = []
            for _ in bench.track(range(bench.sizes.extend_rounds), f"heartbeats, {profile}"):
                started = time.perf_counter()
                done = sum(len(result.successful) for result in pool.map(queue.change_visibility_batch, batches))
                times.append(time.perf_counter() - started)
                assert done == held
        yield Figure(f"heartbeat pass over {held:,} in flight, batches of {size:,}", median(times), bound=1)


def margin(bench: Bench) -> Iterator[Figure]:
    """Time left of a receipt when its computed renewal has returned, while other threads send (PER-8)."""
    held, timeout = bench.sizes.held, 5
    policy, margins, over, clock = ComputedRenewal(timeout), list[float](), threading.Event(), SystemClock()
    with bench.scratch() as scratch, ThreadPoolExecutor(_SENDERS) as pool:
        queue = LakeQueue(f"{scratch}/queues", engine="point").create_queue("held")
        busy = LakeQueue(f"{scratch}/queues", engine="point").queue("held")
        queue.send_batch([SendEntry(BODY)] * held)
        ends: dict[str, float] = {}

        receipts, lock = Holds(policy), threading.Lock()

        def report(event: Event) -> Sequence[object]:
            with lock:
                return receipts.on(event, to_micros(clock.now()))

        def extend(wanted: Mapping[str, int]) -> list[Verdict]:
            asked = clock.now().timestamp()
            result = queue.change_visibility_batch(
                [(handle, micros / MICROS) for handle, micros in wanted.items()]
            )
            returned = clock.now().timestamp()
            margins.extend(ends[handle] - returned for handle in wanted)
            ends.update({handle: asked + micros / MICROS for handle, micros in wanted.items()})
            assert not result.failed
            return [Verdict.EXTENDED] * len(wanted)

        def send() -> None:
            while not over.is_set():
                busy.send(BODY)

        lost: list[object] = []
        scheduler = HeartbeatScheduler(clock, report, extend, lost.append)
        scheduler.start()
        messages = queue.receive(held, timeout)
        assert len(messages) == held
        for message in messages:
            assert message.visible_at is not None
            ends[message.receipt_handle] = message.visible_at.timestamp()
        known = {m.receipt_handle: Hold.fresh(to_micros(m.received_at), to_micros(m.visible_at)) for m in messages}
        with lock:
            receipts.keep(known, to_micros(clock.now()))
        scheduler.wake()
        senders = [pool.submit(send) for _ in range(_SENDERS)]
        for _ in bench.track(range(max(4, bench.sizes.margin_rounds)), "margin of renewals"):
            time.sleep(1)
        over.set()
        scheduler.stop()
        for sender in senders:
            sender.result()
    assert margins and not lost, lost
    left = f"{len(margins):,} renewals of {timeout} s while {_SENDERS} threads send; at least 0.4 s is the rule"
    yield Figure("smallest margin of a computed renewal", min(margins), remark=left)
    yield Figure(
        "most of its buffer that a computed renewal used", timeout / 2 - min(margins), bound=timeout / 2 - 0.4
    )


def memory(bench: Bench) -> Iterator[Figure]:
    """Memory growth of this process while it leases, reads and deletes, without the JVM's heap."""
    rows = bench.sizes.bulk_rows
    with bench.scratch() as scratch:
        queue = LakeQueue(f"{scratch}/queues", spark=bench.spark).create_queue("large")
        queue.send_dataframe(bench.bodies(rows, 1024))
        warm = queue.lease(10, 300)
        assert warm is not None and warm.messages.count() == 10
        with _grown() as grown:
            lease = queue.lease(rows, 300)
            assert lease is not None
            lease.messages.agg({"body": "max"}).collect()
            lease.extend(300)
            lease.delete()
    yield Figure(f"memory of the driver's Python for a lease of {rows:,}", grown[0], unit="MiB")


def steady(bench: Bench) -> Iterator[Figure]:
    """Latency of a queue in use, compacted each simulated minute; bare: in the first minutes."""
    clock = _Simulated()
    with bench.scratch() as scratch:
        root = f"{scratch}/queues"
        queue = LakeQueue(root, clock=clock, engine="point").create_queue("busy", rewind_range=600)
        first: float | None = None
        times: list[float] = []
        for minute in bench.track(range(1, bench.sizes.minutes + 1), "an hour of use"):
            for _ in range(bench.sizes.uses):
                started = time.perf_counter()
                queue.send(BODY)
                for message in queue.receive(10):
                    queue.delete(message.receipt_handle)
                times.append(time.perf_counter() - started)
                clock.instant += timedelta(seconds=60 / bench.sizes.uses)
            _age(root, 60)  # Compaction removes files by the machine's time.
            compact_root(queue._runtime.root)
            if minute % _STEP == 0 or minute == bench.sizes.minutes:
                first = first or median(times)
                data, log = _files(root)
                name = f"send + receive + delete to minute {minute}: {data} files, {log} of logs"
                yield Figure(name, median(times), first, bound=1.3)
                times = []


def queues(bench: Bench) -> Iterator[Figure]:
    """Creating and listing queues in a root that has many; passes of the compactor over unused queues."""
    clock, times = _Simulated(), list[float]()
    with bench.scratch() as scratch:
        lake = LakeQueue(f"{scratch}/queues", clock=clock, engine="point")
        for number in bench.track(range(bench.sizes.queues), "queues"):
            times.append(seconds_of(lambda name=f"queue-{number}": lake.create_queue(name)))
        tenth = len(times) // 10 or 1
        name = f"creating a queue beside {len(times):,} / beside {2 * tenth:,}"
        yield Figure(name, median(times[-tenth:]), median(times[tenth : 2 * tenth]), bound=1.5)
        sides = lambda: lake.list_queues(limit=10), lake.list_queues
        [(page, every)] = bench.alternate("lists", bench.sizes.warm_rounds, sides)
        yield Figure(f"a page of 10 of {len(times):,} queues / all of them", page, every, bound=0.1)
        whole = seconds_of(lake.compact) / len(times)
        clock.instant += timedelta(minutes=1)
        lake.compact()  # This pass notes that nothing changed. The next one only compares.
        resting = seconds_of(lake.compact) / len(times)
        yield Figure("the compactor's pass, each queue nobody used since / the first", resting, whole, bound=0.2)


@contextmanager
def _grown() -> Iterator[list[float]]:
    """Yields the maximum growth of this process in MiB during the block, sampled every 20 ms."""
    grown, ended, before = [0.0], threading.Event(), resident()

    def sample() -> None:
        while not ended.wait(0.02):
            grown[0] = max(grown[0], (resident() - before) / _MIB)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield grown
    finally:
        ended.set()
        sampler.join()


def resident() -> int:
    """Returns this process's memory in bytes."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _files(root: str) -> tuple[int, int]:
    data = log = 0
    for folder, _, names in os.walk(root):
        if folder.endswith("_delta_log"):
            log += len(names)
        else:
            data += sum(name.endswith(".parquet") for name in names)
    return data, log


def _age(root: str, seconds: float) -> None:
    for folder, _, names in os.walk(root):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            written = os.stat(path).st_mtime - seconds
            os.utime(path, (written, written))
