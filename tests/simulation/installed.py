"""A world put under lakequeue's modules: where they ask the machine, they ask the world."""

from __future__ import annotations

import random
import stat
import sys
import uuid
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

import lakequeue
from lakequeue import LakeQueue
from lakequeue.model.clock import SystemClock

# what every module of the code under test has to be there to be patched
from lakequeue.operations import check, compact, copy, delivery, lease, repair, send_dataframe, undecided  # noqa: F401
from lakequeue.runtime import root as roots
from lakequeue.storage import clock_guard, delta_log, folder, no_links, reserve, snapshot
from lakequeue.storage.bulk.manifests import Manifest
from lakequeue.storage.engines import disk_turn, file_lock, locks, log_trimming
from lakequeue.storage.inspection import found_log
from lakequeue.storage.messages import read
from lakequeue.storage.reserve import Space
from simulation import tables
from simulation.disk import Disk, System
from simulation.object_store import Object, ObjectStore
from simulation.scheduler import World
from simulation.target import TableLog, target_of

MODULES = ("lakequeue.storage", "lakequeue.operations", "lakequeue.runtime", "lakequeue.model")


class WorldClock:
    """The `Clock` of a simulated process."""

    def __init__(self, world: World) -> None:
        self.world = world

    def now(self) -> datetime:
        return datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=round(self.world.time() * 1e6))

    def wait(self, until: datetime, wake: Any) -> None:
        left = (until - self.now()).total_seconds()
        if left > 0:
            self.world.sleep(min(left, 5.0))

    async def wait_async(self, until: datetime, wake: Any) -> None:
        raise NotImplementedError

    @contextmanager
    def participant(self, *, late: bool = False) -> Iterator[None]:
        yield


class DoubtedClock(WorldClock, SystemClock):
    """One that may be wrong, and is doubted as that of a machine is."""


class _Inline:
    """A pool whose calls are made at once: one process is one thread here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, call: Any, *items: Any) -> Iterator[Any]:
        return map(call, *items)

    def submit(self, call: Any, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **more))
        except Exception as error:
            future.set_exception(error)
        return future


class _Threads:
    """`threading` whose threads run at once."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def Thread(self, target: Any, args: Sequence[Any] = (), **_: Any) -> Any:
        return SimpleNamespace(start=partial(target, *args))


class _Draws(random.Random):
    """`random`, `secrets` and `uuid` of a world."""

    def __init__(self, world: World) -> None:
        super().__init__(world.chance.getrandbits(64))
        self.world = world

    def Random(self, *_: Any) -> random.Random:
        return random.Random(self.getrandbits(32))

    def token_bytes(self, number: int) -> bytes:
        return self.getrandbits(8 * number).to_bytes(number, "big")

    def token_hex(self, number: int) -> str:
        return self.token_bytes(number).hex()

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self.getrandbits(128), version=4)

    UUID = uuid.UUID


class _Memory:
    """Locks that a thread holds, by table."""

    def __init__(self) -> None:
        self.locks: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()


def memory() -> dict[tuple[Any, str], Any]:
    """What a new process has in the variables of modules."""
    return {
        (roots, "opened"): weakref.WeakValueDictionary(),
        (read, "_known"): {},
        (locks, "_mine"): _Memory(),
        (disk_turn, "_mine"): _Memory(),
        (file_lock, "_open"): weakref.WeakSet(),
        (clock_guard, "_stamps"): {},
    }


def links_of(system: System) -> SimpleNamespace:
    """What the code under test finds in ``no_links``: the same functions, on a disk without links."""
    return SimpleNamespace(
        crooked=lambda root, name, is_kind=stat.S_ISREG, descriptor=None: None,
        open_table=lambda local: system.open(local),
        Opener=no_links.Opener,
        open_folder=system.open_folder,
        above=system.above,
        folders=system.folders,
        names=system.names,
        unlink=system.unlink_below,
        whole=system.whole,
        mkdir=lambda root, path, descriptor: system.mkdir(path, dir_fd=descriptor),
        move=lambda root, source, target: system.rename(f"{root}/{source}", f"{root}/{target}"),
        rmdir=lambda root, name: system.rmdir(f"{root}/{name}"),
        rmtree=system.rmtree,
        touch=lambda folder, name: system.stamp(f"{folder}/{name}", create=True),
        stamp=system.stamp,
    )


@contextmanager
def installed(world: World, disk: Disk | None, objects: dict[str, Object] | None) -> Iterator[Any]:
    """Puts the world under the code; yields its disk or store."""
    system, store = System(world, disk or Disk()), ObjectStore(world, objects)
    draws = _Draws(world)
    world.on_kill = system.die

    def cut(seed: int) -> None:
        if disk is not None:
            system.disk.cut(seed)
            world.table.cut(seed)

    world.table = TableLog(world, disk is not None)
    world.on_cut = cut
    world.on_flip = store.flip if disk is None else disk.flip
    shims: dict[str, Any] = {
        "os": system,
        "time": SimpleNamespace(time=world.time, monotonic=lambda: world.monotonic, sleep=world.sleep),
        "random": draws,
        "secrets": draws,
        "uuid": draws,
        "obstore": store,
        "shutil": SimpleNamespace(copyfileobj=None),
        "space_of": lambda _: Space(2**40, 2**20 * 3, None),
        "no_links": links_of(system),
        "monotonic": lambda: world.monotonic,
        "sleep": world.sleep,
        "from_url": store.from_url,
        "ThreadPool": _Inline,
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, attribute in _seams(tuple(shims)):
            patch.setattr(module, attribute, shims[attribute])
        # attrs has kept the machine's clock
        patch.setitem(Manifest.__init__.__globals__, "__attr_factory_written_at", world.now)  # type: ignore[misc]
        for module in (folder, reserve):
            patch.setattr(module, "open", system.file, raising=False)
        patch.setattr(delta_log, "parse", tables.parse)
        for module in (snapshot, found_log, log_trimming):
            patch.setattr(module, "read_checkpoint", tables.read_checkpoint)
        engines = "lakequeue.storage.engines"
        patch.setattr(f"{engines}.file_lock.FileIO", system.file)
        patch.setattr(f"{engines}.file_lock._lock", system.lock)
        shim = SimpleNamespace(
            write_table=tables.write_table, ParquetFile=tables.parquet_file, ParquetWriter=pq.ParquetWriter
        )
        patch.setattr("lakequeue.storage.parquet_files.pq", shim)
        patch.setattr("lakequeue.storage.folder.pa", tables.Arrow(system.file))
        for module in (f"{engines}.point", "lakequeue.runtime.shard_sender"):
            patch.setattr(f"{module}.threading", _Threads(sys.modules["threading"]))
        patch.setattr("lakequeue.operations.check.space_problems", lambda _: [])
        patch.setattr("lakequeue.operations.check.lock_problem", lambda _: None)
        for operations in (delivery, undecided):
            patch.setattr(operations, "target_of", partial(target_of, world.table))
        for (module, name), value in memory().items():
            patch.setattr(module, name, value)
        read.BUDGET.bytes = 0
        read.BUDGET._order.clear()
        yield system.disk if disk is not None else store


@cache
def _seams(attributes: tuple[str, ...]) -> list[tuple[Any, str]]:
    """Modules under test, each with an attribute of it that asks the machine."""
    return [
        (module, attribute)
        for name, module in list(sys.modules.items())
        if name.startswith(MODULES) and not name.endswith(("storage.mounts", "engines.process", "environment"))
        for attribute in attributes
        if attribute in vars(module)
    ]


def client(world: World, root: str) -> LakeQueue:
    """An entry to the root, as a process has it."""
    return lakequeue.LakeQueue(
        root,
        clock=(DoubtedClock if world.ahead else WorldClock)(world),
        network_file_system=True,
        durability="power",
        engine="point",
    )
