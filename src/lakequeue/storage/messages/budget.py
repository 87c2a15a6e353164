"""The memory that this process gives to what it could read again, over all shards of all queues."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, MutableMapping
from typing import Any, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Budget:
    """Bytes that cached values may take together; beyond them, what was cached first is dropped. Thread-safe.

    The newest value stays, however large it is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = threading.Lock()
        """Guards the caches, too."""
        self.bytes = 0
        """What is cached now."""
        self._order: OrderedDict[tuple[int, Hashable], tuple[MutableMapping[Any, Any], int]] = OrderedDict()

    def put(self, cache: MutableMapping[_Key, _Value], key: _Key, value: _Value, size: int) -> None:
        """Caches a value of ``size`` bytes, unless the key has one; the caller holds ``lock``."""
        if key in cache:
            return
        try:
            cache[key] = value
            self._order[id(cache), key] = cache, size
            self.bytes += size
            while self.bytes > self.limit and len(self._order) > 1:
                (_, oldest), (others, size) = self._order.popitem(last=False)
                others.pop(oldest, None)
                self.bytes -= size
        except BaseException:  # an interrupt in between would leave inconsistent records
            for others, _ in [(cache, 0), *self._order.values()]:
                others.clear()
            self._order.clear()
            self.bytes = 0
            raise

    def drop(self, cache: MutableMapping[Any, Any]) -> None:
        """Drops all that a cache holds."""
        with self.lock:
            for key in list(cache):
                self._order.pop((id(cache), key), None)
            cache.clear()
            self.bytes = sum(size for _, size in self._order.values())


BUDGET = Budget(128 * 2**20)
