"""Reads and writes files by names relative to a directory. The directory is on a local disk or an object store."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import attrs
import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore

from lakequeue.errors import DamagedTable, one_line
from lakequeue.model.thread_pools import ThreadPool
from lakequeue.storage import layout, no_links
from lakequeue.storage.parquet_files import ANY, reader
from lakequeue.storage.remote_files import AHEAD, CONCURRENT, ReadAhead, RemoteFile, was_cut_off, whole
from lakequeue.storage.roots import local_path
from lakequeue.storage.store_failures import first_line, is_conflict, was_repeated

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from obstore import ObjectMeta

WHOLE = 4 * 2**20
"""Maximum bytes of a remote file that is read as a whole, in one request."""

_ATTEMPTS = 4
"""Maximum attempts to list a directory, or to create a file whose directory is removed."""
_CONFLICT_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between attempts to create a file while a store is busy with another request for the same file."""
# On macOS, fsync leaves the data in the disk's cache.
_FULL: int = getattr(fcntl, "F_FULLFSYNC", 0)


RequestKind: TypeAlias = Literal["get", "head", "put", "list", "delete"]
"""Kind of a request to an object store."""
_T = TypeVar("_T")
_Item = TypeVar("_Item")


@attrs.frozen
class Freed:
    """Number and total bytes of files that were removed from storage."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Freed) -> Freed:
        return Freed(self.files + other.files, self.bytes + other.bytes)


Mark: TypeAlias = tuple[int | str | None, ...]
"""Identity of a file, which differs for a later file of the same name. Consists of size, time and inode on disks,
and of size and ETag on object stores.
"""


class ListedFile(NamedTuple):
    """A file in a listing."""

    name: str
    size: int
    modified: float
    """Time of the file's last change, in seconds by the storage's clock."""
    mark: Mark


class _BaseFolder(ABC):
    def __init__(self, uri: str, prefix: str = "") -> None:
        self.uri = uri.rstrip("/")
        self._prefix = prefix

    def _at(self, name: str) -> str:
        return f"{self._prefix}/{self._below(name)}".strip("/")

    def _below(self, name: str) -> str:
        # A name that was not checked gets no further than this directory (DUR-70).
        if name.startswith("/") or ".." in name.split("/"):
            raise DamagedTable(self.uri, name, "leads out of its directory")
        return name

    @abstractmethod
    def read_marked(self, name: str) -> tuple[bytes, Mark]:
        """Returns the content and the identity of a file. Raises FileNotFoundError if the file does not exist."""

    @abstractmethod
    def source(self, name: str, size: int) -> Any:
        """Opens a file of a known size for Arrow. Call ``read_ahead`` before you read a large part of the file."""

    @abstractmethod
    def in_order(self, call: Callable[[_Item], _T], items: Iterable[_Item]) -> Iterator[_T]:
        """Yields the results of ``call`` in order. On object stores, calls for the next items run meanwhile."""

    @abstractmethod
    def _unlink(self, name: str) -> int:
        """Removes the file ``name``, a path relative to the root. Returns the file's size in bytes."""

    def read(self, name: str) -> bytes:
        """Returns the content of a file. Raises FileNotFoundError if the file does not exist."""
        return self.read_marked(name)[0]

    @contextmanager
    def parquet(
        self, name: str, size: int, columns: pa.Schema | None = None, source: Any = None
    ) -> Iterator[pq.ParquetFile]:
        """Opens a Parquet file. Raises DamagedTable if the file is damaged or lacks a required column.

        Read the file with ``use_threads=False``. With Arrow's threads, 4 of 300 processes aborted at their end.

        Args:
            source: the file as ``source`` has opened it; None to open it.
        """
        expected = layout.FILES.get(self.uri.rpartition("/")[2], ANY) if columns is None else columns
        source = self.source(name, size) if source is None else source
        try:
            with source, reader(source, expected) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            # Errors of decoding have no errno.
            if getattr(error, "errno", None) is None:
                raise DamagedTable(self.uri, name, f"cannot be read: {first_line(error)}") from error
            raise

    def rows(self, name: str, size: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows of a Parquet file, with some columns or with all. Raises the errors of ``parquet``."""
        with self.parquet(name, size) as file:
            return file.read(columns, use_threads=False)

    def remove(self, names: Iterable[str]) -> Freed:
        """Removes existing files in order, but none behind links (DUR-72). Returns their number and size."""
        freed = Freed()
        for name in names:
            with suppress(FileNotFoundError, NotADirectoryError):
                freed += Freed(1, self._unlink(self._at(name)))
        return freed

    def discard(self, name: str) -> None:
        """Removes a file if it exists. On an object store, this takes only one request."""
        self.remove([name])


class LocalFolder(_BaseFolder):
    """A local directory, which may be missing. If ``syncs`` is True, each write waits for the disk (DUR-1)."""

    def __init__(self, uri: str, prefix: str = "", *, syncs: bool = True, descriptor: int | None = None) -> None:
        super().__init__(uri, prefix)
        self.local: str = local_path(self.uri)  # type: ignore[assignment]  # the caller has checked that it is local
        self.syncs = syncs
        self.descriptor = descriptor

    def __truediv__(self, name: str) -> LocalFolder:
        return LocalFolder(f"{self.uri}/{name}", self._at(name), syncs=self.syncs)

    def path(self, name: str) -> str:
        return os.path.join(self.local, self._below(name))

    @contextmanager
    def pinned(self, opened: int | None = None) -> Iterator[LocalFolder]:
        """Opens the directory, so that the block works on the same directory even if it is renamed (DUR-85).

        ``opened``: a descriptor of the directory, to save opening it. Raises FileNotFoundError if the directory
        does not exist, or if its path contains a link.
        """
        descriptor = no_links.open_folder(self._root, self._prefix) if opened is None else os.dup(opened)
        try:
            yield LocalFolder(self.uri, syncs=self.syncs, descriptor=descriptor)
        finally:
            os.close(descriptor)

    def is_at_path(self) -> bool:
        """False if the directory that ``pinned`` opened was renamed, removed or replaced since."""
        if self.descriptor is not None:
            with suppress(OSError):
                return os.path.samestat(os.fstat(self.descriptor), os.stat(self.local))
        return self.descriptor is None

    def _path(self, name: str) -> str:
        return self.path(name) if self.descriptor is None else self._below(name) or "."

    def _sound(self, name: str, is_kind: Callable[[int], bool] = stat.S_ISREG) -> str:
        """Returns a file's path. Raises DamagedTable if a part of the path below the root is a link (DUR-72)."""
        found = no_links.crooked(self._root, self._at(name), is_kind, self.descriptor)
        if found is not None:
            raise DamagedTable(self.uri, name, f"cannot be used: {one_line(found)} is no plain file or directory")
        return self._path(name)

    def place(self, name: str) -> str:
        """Returns the path or URI of a file, for other libraries. Raises DamagedTable if the path has a link."""
        self._sound(name)
        return self.path(name)

    @property
    def _root(self) -> str:
        return self.local.removesuffix(self._prefix).rstrip("/") if self.descriptor is None else "."

    def exists(self, name: str) -> bool:
        """True if a file exists. On local disks, also True for a directory."""
        with suppress(OSError, ValueError):
            return bool(self._stat(name))
        return False

    def entry(self, name: str) -> ListedFile:
        """Returns size, time and identity of a file. Raises FileNotFoundError if the file does not exist."""
        status = self._stat(name)
        return ListedFile(name, status.st_size, status.st_mtime, _mark(status))

    def _stat(self, name: str) -> os.stat_result:
        return os.stat(self._path(name), dir_fd=self.descriptor)

    def read_marked(self, name: str) -> tuple[bytes, Mark]:
        with open(self._sound(name), "rb", buffering=0, opener=self._opener) as file:
            return file.read(), _mark(os.fstat(file.fileno()))

    def open(self, name: str, size: int) -> IO[bytes]:
        """Opens a file for reading. Needs its size in bytes, as a file on an object store is read in parts."""
        return open(self._sound(name), "rb", opener=self._opener)

    def _opener(self, path: str, flags: int) -> int:
        return os.open(path, flags, 0o666, dir_fd=self.descriptor)

    def source(self, name: str, size: int) -> Any:
        return pa.OSFile(self.place(name))

    def in_order(self, call: Callable[[_Item], _T], items: Iterable[_Item]) -> Iterator[_T]:
        return map(call, items)

    def for_each(self, call: Callable[[_Item], _T], items: Sequence[_Item]) -> list[_T]:
        """Calls ``call`` for each item, on object stores concurrently. Returns the results in order."""
        return list(map(call, items))

    def create(self, name: str, data: bytes, *, new_folder: bool = True) -> Mark | None:
        """Creates a file atomically. Returns its identity, or None if a file of this name exists already.

        If ``new_folder`` is False, the directory is not created, and its absence raises FileNotFoundError. Raises
        AlreadyExistsError if an object store was busy with the file for eight seconds.
        """
        try:
            return self._in_folder(self._path(name), lambda: self._place(os.link, data, name), new_folder)
        except OSError as error:
            self._sound(name)  # Nothing was written if a link is there.
            if isinstance(error, FileExistsError):
                return None
            raise

    def replace(self, name: str, data: bytes) -> None:
        """Writes or replaces a file. A reader gets the whole old or the whole new content."""
        self._sound(name)
        self._place(os.replace, data, name)

    def offer(self, name: str, data: Any) -> None:
        """Writes or replaces a file, but does not sync its directory. Call ``sync`` before relying on the file."""
        target = self._sound(name)
        self._in_folder(target, lambda: self._place(os.replace, data, name, with_name=False))

    def _place(self, place: Callable[..., None], data: bytes, name: str, *, with_name: bool = True) -> Mark:
        """Writes a draft, and calls ``place`` to link or rename it to ``name``. Follows no links (DUR-72)."""
        while True:
            unplaced = f"{uuid.uuid4().hex}.draft"
            with self._above(unplaced) as (home, draft), self._above(name) as (folder, target):
                with open(draft, "xb", opener=no_links.Opener(home).open) as file:
                    file.write(data)
                    self._sync_file(file)
                    mark = _mark(os.fstat(file.fileno()))
                try:
                    place(draft, target, src_dir_fd=home, dst_dir_fd=folder)
                except FileNotFoundError:
                    if self.exists(unplaced):
                        raise
                else:
                    if with_name:
                        self._sync_folder(folder)
                    return mark
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(draft, dir_fd=home)

    def write(self, name: str, data: Any, *, new_folder: bool = True) -> None:
        """Writes bytes to a file that no other process writes. See ``create`` for ``new_folder``."""
        with self.writer(name, new_folder=new_folder) as file:
            file.write(data)

    @contextmanager
    def writer(self, name: str, *, new_folder: bool = True) -> Iterator[IO[bytes]]:
        """Opens a file for writing during the block. A remote file exists only after the block has succeeded."""
        with ExitStack() as opened:

            def create() -> tuple[IO[bytes], int, str]:
                folder, leaf = opened.enter_context(self._above(name))
                return open(leaf, "wb", opener=no_links.Opener(folder).open), folder, leaf

            file, folder, leaf = self._in_folder(self._sound(name), create, new_folder)
            with file, no_links.whole(folder, leaf):
                yield file
                self._sync_file(file)
            self._sync_folder(folder)

    def _above(self, name: str) -> AbstractContextManager[tuple[int, str]]:
        return no_links.above(self._root, self._at(name), self.descriptor)

    def _in_folder(self, path: str, act: Callable[[], _T], new_folder: bool = True) -> _T:
        """Creates a file's directory and calls ``act``. Repeats both if a compactor removes the directory."""
        for _ in range(_ATTEMPTS - 1 if new_folder else 0):
            with suppress(FileNotFoundError):
                self._make(os.path.dirname(path))
                return act()
        if new_folder:
            self._make(os.path.dirname(path))
        return act()

    def make(self) -> None:
        """Creates the directory. Does nothing on an object store."""
        self._make(self._sound("", stat.S_ISDIR).rstrip("/"))

    def _make(self, path: str) -> None:
        """Creates a directory and its missing parents, and syncs each parent. Follows no link."""
        with suppress(OSError):
            if stat.S_ISDIR(os.stat(path or ".", dir_fd=self.descriptor).st_mode):
                return
        above = os.path.dirname(path)
        self._make(above)
        with suppress(FileExistsError):
            no_links.mkdir(self._root, path, self.descriptor)
        self._sync(above)

    def sync(self, names: Iterable[str], *, above: bool = True) -> None:
        """Syncs files that other processes wrote. If ``above`` is True, also syncs the files' directories."""
        paths = [self._path(name) for name in names] if self.syncs else []
        for path in [*paths, *({os.path.dirname(path) for path in paths} if above else ())]:
            self._sync(path)

    def _sync(self, path: str) -> None:
        if self.syncs:
            # In a root of another user it may be a pipe.
            descriptor = os.open(path or ".", os.O_RDONLY | os.O_NONBLOCK, dir_fd=self.descriptor)
            try:
                self._sync_folder(descriptor)
            finally:
                os.close(descriptor)

    def _sync_file(self, file: IO[bytes]) -> None:
        file.flush()
        if self.syncs:
            _flush(file.fileno())

    def _sync_folder(self, descriptor: int) -> None:
        try:
            if self.syncs:
                _flush(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # Some file systems cannot sync directories.
                raise

    def files(self, prefix: str = "", after: str | None = None) -> Iterator[ListedFile]:
        """Yields the files below a subdirectory, at any depth, with names that sort after ``after``."""
        for folder, folders, names in self._walk(prefix):
            inside = os.path.relpath(folder, self._path(""))
            below = "" if inside == "." else f"{inside}/"
            if after is not None:  # All names of a directory may sort before it.
                folders[:] = sorted(
                    each for each in folders if f"{below}{each}/" >= after[: len(below + each) + 1]
                )
                names.sort()
            for path in map(below.__add__, names):
                with suppress(FileNotFoundError):
                    if after is None or path > after:
                        yield self.entry(path)

    def _walk(self, prefix: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Walks a subdirectory like ``os.walk``. Yields nothing if the subdirectory does not exist."""
        if self.descriptor is None:
            yield from os.walk(self.path(prefix))
            return
        with suppress(FileNotFoundError):
            yield from (found[:3] for found in os.fwalk(self._path(prefix), dir_fd=self.descriptor))

    def names(self, prefix: str) -> list[str]:
        """Returns the names of files and directories in the subdirectory ``prefix``, in any order."""
        return no_links.names(self._path(prefix), self.descriptor)

    def folders(self, prefix: str = "", beginning: str = "") -> list[str]:
        """Returns the sorted names of directories in ``prefix``. Each name begins with ``beginning``."""
        return no_links.folders(self._path(prefix), beginning, self.descriptor)

    def _unlink(self, name: str) -> int:
        return no_links.unlink(self._root, name, self.descriptor)

    def remove_empty(self, name: str) -> None:
        """Removes an empty directory. Raises OSError if the directory is not empty, or behind a link."""
        no_links.rmdir(self._root, self._at(name))

    def remove_all(self) -> None:
        """Removes the directory and its content. Skips files that cannot be removed. Follows no link."""
        if self.descriptor is not None:
            for name in self.folders():
                no_links.rmtree(self._root, name, self.descriptor)
            self.remove([file.name for file in self.files()])
            with suppress(OSError):  # Something else is at the path.
                os.rmdir(self.local)
            return
        no_links.rmtree(self._root, self._prefix)

    def move(self, source: str, target: str) -> None:
        self._in_folder(self._sound(target), lambda: no_links.move(self._root, self._at(source), self._at(target)))
        self._sync(os.path.dirname(self.path(target)))


class RemoteFolder(_BaseFolder):
    """A directory of an object store, at ``prefix``. Has the same methods as ``LocalFolder``."""

    local: None = None
    descriptor: None = None
    syncs = False  # A store has stored a file before it answers.

    def __init__(self, uri: str, client: Callable[[RequestKind], ObjectStore], prefix: str = "") -> None:
        super().__init__(uri, prefix)
        self._client = client

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.uri}/{name}", self._client, self._at(name))

    @contextmanager
    def pinned(self, opened: int | None = None) -> Iterator[RemoteFolder]:
        yield self

    def is_at_path(self) -> bool:
        return True

    def place(self, name: str) -> str:
        return f"{self.uri}/{self._below(name)}"

    def exists(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(self.entry(name))
        return False

    def entry(self, name: str) -> ListedFile:
        return _remote_entry(name, obstore.head(self._client("head"), self._at(name)))

    def read_marked(self, name: str) -> tuple[bytes, Mark]:
        def get() -> tuple[bytes, Mark]:
            found = obstore.get(self._client("get"), self._at(name))
            return bytes(found.bytes()), _store_mark(found.meta)

        return whole(get)

    def open(self, name: str, size: int) -> IO[bytes]:
        return io.BufferedReader(RemoteFile(lambda: self._client("get"), self._at(name), size), buffer_size=2**16)

    def source(self, name: str, size: int) -> Any:
        if size <= WHOLE:
            return pa.BufferReader(self.read(name))
        return ReadAhead(lambda: self._client("get"), self._at(name), size)

    def in_order(self, call: Callable[[_Item], _T], items: Iterable[_Item]) -> Iterator[_T]:
        with ThreadPool(AHEAD // WHOLE) as pool:
            coming: deque[Future[_T]] = deque()
            for item in items:
                coming.append(pool.submit(call, item))
                if len(coming) == AHEAD // WHOLE:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def for_each(self, call: Callable[[_Item], _T], items: Sequence[_Item]) -> list[_T]:
        if len(items) < 2:
            return list(map(call, items))
        with ThreadPool(min(CONCURRENT, len(items))) as pool:
            return list(pool.map(call, items))

    def create(self, name: str, data: bytes, *, new_folder: bool = True) -> Mark | None:
        errors: list[AlreadyExistsError] = []
        for pause in (*_CONFLICT_PAUSES, 0):
            try:
                made = obstore.put(self._client("put"), self._at(name), data, mode="create")
                return len(data), _etag(made["e_tag"])
            except AlreadyExistsError as error:
                if not is_conflict(error):
                    return None
                errors.append(error)
                time.sleep(pause)
        # A request that was sent several times may still land, whatever a later answer says.
        raise next(filter(was_repeated, errors), errors[-1])

    def write(self, name: str, data: Any, *, new_folder: bool = True) -> None:
        obstore.put(self._client("put"), self._at(name), bytes(data))

    replace = offer = write  # A store always writes whole files.

    @contextmanager
    def writer(self, name: str, *, new_folder: bool = True) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:  # Arrow mistakes obstore's writers for closed files.
            yield file
            file.seek(0)
            obstore.put(self._client("put"), self._at(name), file)

    def make(self) -> None:
        pass

    def sync(self, names: Iterable[str], *, above: bool = True) -> None:
        pass

    def files(self, prefix: str = "", after: str | None = None) -> Iterator[ListedFile]:
        for found in self._listed(prefix, after):
            yield _remote_entry(found["path"].removeprefix(self._prefix).lstrip("/"), found)

    def _listed(self, prefix: str, after: str | None) -> Iterator[ObjectMeta]:
        offset = None if after is None else self._at(after)
        for attempt in range(_ATTEMPTS):
            try:
                for page in obstore.list(self._client("list"), self._at(prefix) or None, offset=offset):
                    for found in page:
                        yield found
                        offset = found["path"]
                return
            except BaseError as error:  # A listing that failed cannot continue: it would report its end.
                if not was_cut_off(error) or attempt == _ATTEMPTS - 1:
                    raise

    def folders(self, prefix: str = "", beginning: str = "") -> list[str]:
        found = whole(lambda: obstore.list_with_delimiter(self._client("list"), self._at(prefix) or None))
        names = sorted(each.rpartition("/")[2] for each in found["common_prefixes"])
        return [name for name in names if name.startswith(beginning)]

    def _unlink(self, name: str) -> int:
        size = obstore.head(self._client("head"), name)["size"]
        obstore.delete(self._client("delete"), name)
        return size

    def discard(self, name: str) -> None:
        obstore.delete(self._client("delete"), self._at(name))

    def remove_all(self) -> None:
        self.remove(entry.name for entry in self.files())

    def move(self, source: str, target: str) -> None:
        obstore.rename(self._client("put"), self._at(source), self._at(target))


Folder: TypeAlias = LocalFolder | RemoteFolder
"""A directory on a local disk or an object store."""


def _mark(status: os.stat_result) -> Mark:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _store_mark(found: ObjectMeta) -> Mark:
    return found["size"], _etag(found["e_tag"])


def _remote_entry(name: str, found: ObjectMeta) -> ListedFile:
    return ListedFile(name, found["size"], found["last_modified"].timestamp(), _store_mark(found))


def _etag(text: str | None) -> str | None:
    """Returns an ETag without quotes, because listings of some stores omit the quotes."""
    return text and text.strip('"')


def _flush(descriptor: int) -> None:
    fcntl.fcntl(descriptor, _FULL) if _FULL else os.fsync(descriptor)
