"""Deliveries that are paused, killed or met by other writers at each step, for tables on a disk and on stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from concurrency.delivery_worker import STEPS, handle
from lakequeue import Consumer, LakeQueue, NoRenewal, Queue, SendEntry
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock

OTHERS = pa.table({"id": pa.array([-1, -2], pa.int64())})


class Killed(BaseException):
    """The process dies."""


@attrs.define
class Scene:
    """A queue whose messages are the numbers from 0 on, and its delivery table; each call is another process."""

    root: str
    table: str
    clock: ManualClock
    options: Mapping[str, str] = {}
    sent: int = 0

    @classmethod
    def of(cls, root: str, table: str, clock: ManualClock, options: Mapping[str, str] | None = None) -> Scene:
        scene = cls(root, table, clock, options or {})
        scene._lake().create_queue("orders", table=table, visibility_timeout=60)
        return scene

    def _lake(self) -> LakeQueue:
        return LakeQueue(self.root, clock=self.clock, engine="point", storage_options=self.options)

    def queue(self) -> Queue:
        return self._lake().queue("orders")

    def send(self, number: int) -> None:
        self.queue().send_batch([SendEntry(str(self.sent + each)) for each in range(number)])
        self.sent += number

    def deliver(self) -> None:
        Consumer(self.queue(), handle, batch=100, concurrency=1, renewal=NoRenewal()).run(until_empty=True)

    def delta(self) -> DeltaTable:
        return DeltaTable(self.table, storage_options=Store(self.table, self.options).delta_options)

    def stored(self) -> list[int]:
        """The ids of messages in the table, without those of other writers."""
        if not DeltaTable.is_deltatable(self.table, Store(self.table, self.options).delta_options):
            return []
        found = self.delta().to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return sorted(each for each in found if each >= 0)

    def check(self, what: str) -> None:
        """The rows of each message are in the table once, after all have been delivered."""
        assert len(set(self.stored())) == len(self.stored()), what
        self.clock.advance(61)
        self.deliver()
        counts = self.queue().counts()
        assert counts.visible + counts.in_flight + counts.undecided == 0, what
        assert self.stored() == [*range(self.sent)], what


def meet(scene: Scene, step: str, happens: Callable[[], object]) -> None:
    """Delivers; when the process first comes to a step, something happens, which may be its death."""
    owner, name, after = STEPS[step]
    real: Callable[..., Any] = getattr(owner, name)
    met = list[bool]()

    def hooked(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options) if after or met else None
        if not met:
            met.append(True)
            happens()
            result = result if after else real(*arguments, **options)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, hooked)
        try:
            scene.deliver()
        except Killed:
            return
        finally:
            assert met, f"no delivery came to {step}"


def pauses(scene: Scene, steps: Iterable[str] = STEPS) -> None:
    """A holder is paused at a step for longer than its receipt; others decide and deliver; then it continues."""

    def others_deliver() -> None:
        scene.clock.advance(61)
        scene.deliver()

    for step in steps:
        scene.send(3)
        meet(scene, step, others_deliver)
        scene.check(f"paused at {step}")


def kills(scene: Scene, steps: Iterable[str] = STEPS) -> None:
    def die() -> None:
        raise Killed

    for step in steps:
        scene.send(3)
        meet(scene, step, die)
        scene.check(f"killed at {step}")


def _merge(table: DeltaTable) -> None:
    given = pa.table({"id": pa.array([-2, -3], pa.int64())})
    merge = table.merge(given, "old.id = new.id", "new", "old")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _clean(table: DeltaTable) -> None:
    table.create_checkpoint()
    table.cleanup_metadata()


def _append_and_clean(table: DeltaTable) -> None:
    """Removes the entry on which the delivery would build."""
    for _ in range(2):
        write_deltalake(table, OTHERS, mode="append")
    _clean(table)


def _add_column(table: DeltaTable) -> None:
    given = OTHERS.append_column("more", pa.array(["a", "b"]))
    write_deltalake(table, given, mode="append", schema_mode="merge")


WRITERS: dict[str, Callable[[DeltaTable], object]] = {
    "appends": lambda table: write_deltalake(table, OTHERS, mode="append"),
    "merges": _merge,
    "updates": lambda table: table.update({"id": "id"}, predicate="id < 0"),
    "deletes": lambda table: table.delete("id = -1"),
    "compacts": lambda table: table.optimize.compact(),
    "orders": lambda table: table.optimize.z_order(["id"]),
    "vacuums": lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
    "cleans its log": _clean,
    "appends and cleans its log": _append_and_clean,
    "adds a column": _add_column,
    "adds a constraint": lambda table: table.alter.add_constraint({"small": "id < 1000000"}),
    "sets a property": lambda table: table.alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 0 days"}
    ),
}
"""What another writer does to the table."""


def writers(scene: Scene, names: Iterable[str] = WRITERS) -> None:
    """Another writer changes the table between the look of a delivery and its commit."""
    scene.send(1)
    scene.deliver()
    WRITERS["appends"](scene.delta())
    WRITERS["sets a property"](scene.delta())  # with which the log may be cleaned up
    for name in names:
        scene.send(3)
        meet(scene, "before the commit", lambda name=name: WRITERS[name](scene.delta()))  # type: ignore[misc]
        scene.check(f"another writer {name}")
