"""Pickled roots and queues, and how other processes open them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, cast

import attrs

from lakequeue.errors import QueueClientError, QueueDoesNotExist
from lakequeue.model.clock import SystemClock
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root, by_id, root_of_worker
from lakequeue.storage.engines.point import Engine


@attrs.frozen
class PickledRoot:
    """A root as it is pickled, without Spark session and secrets."""

    id: str
    path: str
    options: tuple[tuple[str, str], ...]
    region: str
    durability: str
    network_file_system: bool
    mode: int
    poll_interval: int | None
    engine = Engine

    @classmethod
    def of(cls, root: Root) -> PickledRoot:
        """Returns the values of an open root. Raises QueueClientError if the root has a clock of its own."""
        if not isinstance(root.clock, SystemClock):
            raise QueueClientError("a root with a clock of its own cannot be pickled: open it without clock")
        store = root.engine.store
        return cls(
            root.id,
            root.path,
            tuple(sorted(store.public_options.items())),
            root.region,
            "power" if store.syncs else "process",
            store.network_file_system,
            root.mode,
            root.given_poll_interval,
        )

    def open(self) -> Root:
        """Returns the root that all copies in this process share. Raises QueueClientError on network disks."""
        known = by_id.get(self.id)
        if known is not None:
            return known
        _, *values = attrs.astuple(self, recurse=False)
        root = root_of_worker(*values)
        root.engine.store.check_use()
        return root


@attrs.frozen
class PickledQueue:
    """A queue as it is pickled. The queue existed at that time."""

    root: PickledRoot
    name: str
    region: str
    key: str

    @classmethod
    def of(cls, queue: OpenQueue) -> PickledQueue:
        return cls(PickledRoot.of(queue.root), queue.name, queue.region, queue.key)

    def open(self) -> OpenQueue:
        """Opens the queue. Raises QueueDoesNotExist, or QueueClientError if the root cannot be reached."""
        root = self.root.open()
        with root.storage_errors():
            row = root.living(self.key)
        if row is None:
            raise QueueDoesNotExist(hint=f"{self.name} in {self.root.path} was deleted since it was pickled")
        return OpenQueue(root, row)


_Values = TypeVar("_Values", bound="PickledRoot | PickledQueue")
_Open = TypeVar("_Open")


class Reopened(Generic[_Values, _Open]):
    """Base class of public classes that are pickled without open files. A copy opens on first use."""

    _values: ClassVar[type[PickledRoot | PickledQueue]]
    _pickled: _Values

    @cached_property
    def _runtime(self) -> _Open:
        opened: Any = self._pickled.open()
        return cast("_Open", opened)

    @property
    def _known(self) -> _Values | _Open:
        return vars(self).get("_runtime") or self._pickled

    def __getstate__(self) -> dict[str, Any]:
        own: Any = vars(self)
        return {"_pickled": own.get("_pickled") or self._values.of(own["_runtime"])}
