"""Reads files on object stores: in single requests, or with several requests ahead of the reader."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from lakequeue.model.thread_pools import ThreadPool

AHEAD = 32 * 2**20
"""Maximum bytes of remote files that are read before they are needed, while a caller reads much in order."""
CONCURRENT = 16
"""Maximum number of requests that one call sends concurrently."""
_ATTEMPTS = 4
"""Maximum attempts to send a request that a store cuts off."""

Span: TypeAlias = tuple[int, int]
"""The first byte of a range in a file, and the byte after its last byte."""
Part: TypeAlias = Sequence[Span]
"""Ranges of a file that are read together, such as the columns of a row group."""
_T = TypeVar("_T")


class RemoteFile(io.RawIOBase):
    """A file on an object store, of a known size. Each read is one request."""

    def __init__(self, client: Callable[[], ObjectStore], name: str, size: int) -> None:
        self._client, self._name, self._size = client, name, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length > 0:
            data = whole(lambda: obstore.get_range(self._client(), self._name, start=self._at, length=length))
            memoryview(buffer)[:length] = memoryview(data)
            self._at += length
        return max(0, length)


class ReadAhead(io.BufferedReader):
    """A remote file for Arrow. Reads parts that will be needed before Arrow asks for them, several at once."""

    def __init__(self, client: Callable[[], ObjectStore], name: str, size: int) -> None:
        super().__init__(RemoteFile(client, name, size), buffer_size=2**16)
        self._client, self._name = client, name
        self._parts: deque[Part] = deque()
        self._coming: deque[tuple[Part, Future[list[Any]]]] = deque()
        self._held: list[tuple[Span, Any]] = []
        self._pool: ThreadPool | None = None

    def expect(self, parts: Iterable[Part]) -> None:
        self._pool = ThreadPool(CONCURRENT)
        self._parts.extend(part for part in parts if part)
        self._ask()

    def _ask(self) -> None:
        """Requests the next parts: ``AHEAD`` bytes at most, but at least one part."""
        assert self._pool is not None
        ahead = sum(_size(part) for part, _ in self._coming)
        while self._parts and (not self._coming or ahead + _size(self._parts[0]) <= AHEAD):
            part = self._parts.popleft()
            self._coming.append((part, self._pool.submit(self._fetch, part)))
            ahead += _size(part)

    def _fetch(self, part: Part) -> list[Any]:
        starts, ends = zip(*part, strict=True)
        return list(whole(lambda: obstore.get_ranges(self._client(), self._name, starts=starts, ends=ends)))

    def read(self, size: int | None = -1, /) -> Any:
        start = self.tell()
        end = start + (size or 0)
        if self._coming and any(first <= start < last for first, last in self._coming[0][0]):
            part, data = self._coming.popleft()
            self._held = list(zip(part, data.result(), strict=True))
            self._ask()
        for (first, last), data in self._held:
            if first <= start < end <= last:
                self.seek(end)
                return memoryview(data)[start - first : end - first]
        return super().read(size)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        super().close()


def read_ahead(source: Any, parts: Iterable[Part]) -> None:
    """Begins to read parts of a file that ``Folder.source`` has opened. Arrow must then read them in this order.

    A file on a disk, and one that was read as a whole, need no reading ahead.
    """
    if isinstance(source, ReadAhead):
        source.expect(parts)


def _size(part: Part) -> int:
    return sum(last - first for first, last in part)


def whole(request: Callable[[], _T]) -> _T:
    for _ in range(_ATTEMPTS - 1):
        try:
            return request()
        except BaseError as error:
            if not was_cut_off(error):
                raise
    return request()


def was_cut_off(error: BaseError) -> bool:
    return "response body error" in str(error)
