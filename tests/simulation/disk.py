"""A local disk in memory, seen through `os`, `open` and locks: what is in use, and what a power cut keeps.

A file has its content and what was synced of it; a directory has its names, and those that were synced. A cut
keeps what was synced, and of the rest any part: of later changes of names a subset, of a file's content a prefix.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import posixpath
import random
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import attrs

from simulation.scheduler import Process, World

ROOT = "/simulated"
_USER = os.geteuid()


@attrs.define(eq=False)
class File:
    ino: int
    modified: float
    data: bytes = b""
    synced: bytes | None = None
    """Content after a power cut; None: any part of it."""
    locks: dict[Any, bool] = attrs.field(factory=dict)
    """Whether exclusive, by open file."""


@attrs.define(eq=False)
class Directory:
    ino: int
    modified: float
    names: dict[str, File | Directory] = attrs.field(factory=dict)
    synced: dict[str, File | Directory] = attrs.field(factory=dict)
    changes: list[dict[str, File | Directory | None]] = attrs.field(factory=list)
    """Since the last sync, each as a whole: what names lead to, None for nothing."""

    def change(self, changes: dict[str, File | Directory | None], now: float) -> None:
        for name, node in changes.items():
            if node is None:
                del self.names[name]
            else:
                self.names[name] = node
        self.changes.append(changes)
        self.modified = now


def flipped(files: Sequence[tuple[Any, str, bytes]], seed: int) -> Iterator[tuple[Any, bytes]]:
    """Some files of tables, given with their paths and contents, with a bit of each changed."""
    chance = random.Random(seed)
    tables = [
        each
        for each in files
        if each[2] and each[1].endswith(".parquet") and "/q/" in each[1] and "_delta_log" not in each[1]
    ]
    for key, _, data in chance.sample(tables, min(len(tables), 4)):
        at = chance.randrange(max(1, len(data) * 2 // 3))  # before what describes the file
        yield key, data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


class Disk:
    """The files below `ROOT`. Paths elsewhere are the machine's."""

    def __init__(self) -> None:
        self.ino = 1
        self.top = Directory(1, 0.0)
        self.room: int | None = None
        """Inodes that there may be; None: any number."""

    def copy(self) -> Disk:
        """An independent copy, all of it synced, without locks."""
        new = Disk()
        new.ino, new.top = self.ino, _copy(self.top)
        return new

    def node(self, path: str, start: File | Directory | None = None) -> File | Directory:
        """What a path leads to, below ``start`` if it is relative."""
        node: Any = self.top if start is None else start
        try:
            for name in (path[len(ROOT) + 1 :] if start is None else path).split("/"):
                if name not in ("", "."):
                    node = node.names[name]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None
        except AttributeError:  # a file
            raise NotADirectoryError(20, "Not a directory", path) from None
        found: File | Directory = node
        return found

    def place(self, path: str, start: File | Directory | None = None) -> tuple[Directory, str]:
        folder, name = posixpath.split(path)
        node = self.node(folder, start)
        if not isinstance(node, Directory):
            raise NotADirectoryError(20, "Not a directory", folder)
        return node, name

    def contents(self) -> Iterator[bytes]:
        """Of all files."""
        return (node.data for _, node in self.nodes() if isinstance(node, File))

    def number(self) -> int:
        """Of a new inode."""
        if self.room is not None and sum(1 for _ in self.nodes()) >= self.room:
            raise OSError(28, "No space left on device")
        self.ino += 1
        return self.ino

    def nodes(self) -> Iterator[tuple[str, File | Directory]]:
        """All files and directories, with their paths."""
        folders = [("", self.top)]
        for path, folder in folders:
            for name, node in folder.names.items():
                yield f"{path}/{name}", node
                if isinstance(node, Directory):
                    folders.append((f"{path}/{name}", node))

    def tables(self) -> list[str]:
        """Paths of all tables."""
        return [path.removesuffix("/_delta_log") for path, _ in self.nodes() if path.endswith("/_delta_log")]

    def go_back(self, saved: Disk, below: str) -> None:
        """Puts a directory of a copy in its place, as files of their own with their old times."""
        found = saved.copy().node(f"{ROOT}{below}")
        if below:
            folder, name = self.place(f"{ROOT}{below}")
            folder.names[name] = folder.synced[name] = found
        else:
            assert isinstance(found, Directory)
            self.top = found
        for path, node in self.nodes():
            if f"{path}/".startswith(f"{below}/"):
                node.ino = self.number()

    def flip(self, seed: int) -> None:
        """Changes bits of files of tables."""
        files = sorted((path, node) for path, node in self.nodes() if isinstance(node, File))
        for node, data in flipped([(node, path, node.data) for path, node in files], seed):
            node.data = node.synced = data

    def cut(self, seed: int) -> None:
        """Loses what was not synced, as the seed says."""
        chance = random.Random(seed)
        share = chance.choice([0.0, 0.5, 0.9, 1.0])
        self._cut(self.top, chance, share)

    def _cut(self, folder: Directory, chance: random.Random, share: float) -> None:
        names = dict(folder.synced)
        for change in folder.changes:
            if chance.random() < share:
                for name, node in change.items():
                    if node is None:
                        names.pop(name, None)
                    else:
                        names[name] = node
        folder.names, folder.synced, folder.changes = names, dict(names), []
        for node in names.values():
            if isinstance(node, Directory):
                self._cut(node, chance, share)
            else:
                node.locks.clear()
                if node.synced != node.data:
                    kept = chance.choice([len(node.data), 0, chance.randrange(len(node.data) + 1)])
                    if node.synced is None or chance.random() < share:
                        node.data = node.data[:kept]
                    else:
                        node.data = node.synced
                node.synced = node.data


def _copy(folder: Directory) -> Directory:
    names: dict[str, File | Directory] = {
        name: _copy(node) if isinstance(node, Directory) else File(node.ino, node.modified, node.data, node.data)
        for name, node in folder.names.items()
    }
    return Directory(folder.ino, folder.modified, names, dict(names))


class OpenFile(io.RawIOBase):
    """An open file: of `open`, of `FileIO`, or a directory of `os.open`."""

    def __init__(self, system: System, node: File | Directory, writes: bool = False, process: Any = None) -> None:
        self.system, self.node, self.writes, self.at = system, node, writes, 0
        self.process = process
        self.number: int | None = None

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return self.writes

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        assert isinstance(self.node, File)
        data = self.node.data[self.at :] if size < 0 else self.node.data[self.at : self.at + size]
        self.at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        assert isinstance(self.node, File)
        self.at = offset + (0, self.at, len(self.node.data))[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def write(self, data: Any) -> int:
        self.system.world.step("write")
        assert isinstance(self.node, File)
        self.node.data += bytes(data)
        self.node.modified = self.system.world.stamp
        return len(data)

    def fileno(self) -> int:
        if self.number is None:
            self.number = self.system.descriptor(self)
        return self.number

    def close(self) -> None:
        if not self.closed:
            if isinstance(self.node, File):
                self.node.locks.pop(self, None)
            if self.number is not None and self.system.opened.get(self.number) is self:
                del self.system.opened[self.number]
        super().close()


class System:
    """What the modules of lakequeue see as `os`."""

    def __init__(self, world: World, disk: Disk) -> None:
        self.world, self.disk = world, disk
        self.opened: dict[int, OpenFile] = {}
        self._numbers = 100_000
        self.path = SimpleNamespace(
            **{name: getattr(posixpath, name) for name in ("join", "dirname", "basename", "relpath", "abspath")},
            samestat=posixpath.samestat,
            exists=self.exists,
            isdir=self.isdir,
            isfile=self.isfile,
            realpath=lambda path: path if self.ours(path) else os.path.realpath(path),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def ours(self, path: Any) -> bool:
        return isinstance(path, str) and path.startswith(ROOT)

    def _below(self, number: int | None) -> File | Directory | None:
        return None if number is None else self.opened[number].node

    def descriptor(self, file: OpenFile) -> int:
        self._numbers += 1
        self.opened[self._numbers] = file
        return self._numbers

    def die(self, process: Process) -> None:
        """Closes what a process has open."""
        for number, file in list(self.opened.items()):
            if file.process is process:
                if isinstance(file.node, File):
                    file.node.locks.pop(file, None)
                self.opened.pop(number, None)

    # --- names

    def _stat(self, node: File | Directory) -> Any:
        is_file = isinstance(node, File)
        return SimpleNamespace(
            st_mode=stat.S_IFREG | 0o600 if is_file else stat.S_IFDIR | 0o700,
            st_size=len(node.data) if isinstance(node, File) else 0,
            st_mtime=node.modified,
            st_mtime_ns=round(node.modified * 1e9),
            st_uid=_USER,
            st_ino=node.ino,
            st_dev=1,
        )

    def stat(self, path: Any, dir_fd: int | None = None) -> Any:
        if dir_fd is None and not self.ours(path):
            return os.stat(path)
        self.world.step("stat")
        return self._stat(self.disk.node(path, self._below(dir_fd)))

    def fstat(self, number: int) -> Any:
        return self._stat(self.opened[number].node)

    def exists(self, path: str) -> bool:
        if not self.ours(path):
            return os.path.exists(path)
        self.world.step("stat")
        return self._found(path) is not None

    def isdir(self, path: str) -> bool:
        return isinstance(self._found(path), Directory) if self.ours(path) else os.path.isdir(path)

    def isfile(self, path: str) -> bool:
        return isinstance(self._found(path), File) if self.ours(path) else os.path.isfile(path)

    def _found(self, path: str, start: File | Directory | None = None) -> File | Directory | None:
        try:
            return self.disk.node(path, start)
        except OSError:
            return None

    def access(self, path: Any, mode: int, **more: Any) -> bool:
        return self.exists(path) if self.ours(path) else os.access(path, mode, **more)

    def link(self, source: str, target: str, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        self.world.step("link")
        folder, name = self.disk.place(target, self._below(dst_dir_fd))
        if name in folder.names:
            raise FileExistsError(17, "File exists", target)
        folder.change({name: self.disk.node(source, self._below(src_dir_fd))}, self.world.stamp)
        self.world.on_link(folder)
        self.world.step("linked")  # others see it, and a power cut may take it away

    def unlink(self, path: str, dir_fd: int | None = None) -> None:
        self.world.step("unlink" if path.endswith(".draft") else "trim")
        folder, name = self.disk.place(path, self._below(dir_fd))
        if name not in folder.names:
            raise FileNotFoundError(2, "No such file or directory", path)
        folder.change({name: None}, self.world.stamp)

    def replace(
        self, source: str, target: str, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        self.world.step("rename")
        before, old = self.disk.place(source, self._below(src_dir_fd))
        after, new = self.disk.place(target, self._below(dst_dir_fd))
        node = self.disk.node(source, self._below(src_dir_fd))
        if before is after:
            before.change({old: None, new: node}, self.world.stamp)
        else:
            after.change({new: node}, self.world.stamp)
            before.change({old: None}, self.world.stamp)

    rename = replace

    def mkdir(self, path: str, mode: int = 0o777, dir_fd: int | None = None) -> None:
        self.world.step("mkdir")
        folder, name = self.disk.place(path, self._below(dir_fd))
        if name in folder.names:
            raise FileExistsError(17, "File exists", path)
        folder.change({name: Directory(self.disk.number(), self.world.stamp)}, self.world.stamp)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        above = posixpath.dirname(path)
        if not self.isdir(above):
            self.makedirs(above, exist_ok=True)
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path: str, dir_fd: int | None = None) -> None:
        self.world.step("rmdir")
        node = self.disk.node(path, self._below(dir_fd))
        if not isinstance(node, Directory) or node.names:
            raise OSError(39, "Directory not empty", path)
        folder, name = self.disk.place(path, self._below(dir_fd))
        folder.change({name: None}, self.world.stamp)

    def unlink_below(self, root: str, name: str, descriptor: int | None = None) -> int:
        """As that of ``no_links``."""
        size = self.stat(f"{root}/{name}", descriptor).st_size
        self.unlink(f"{root}/{name}", descriptor)
        return int(size)

    @contextmanager
    def whole(self, folder: int, name: str) -> Iterator[None]:
        """As that of ``no_links``."""
        try:
            yield
        except Exception:
            with suppress(OSError):
                self.unlink(name, folder)
            raise

    def rmtree(self, root: str, name: str, descriptor: int | None = None) -> None:
        """As that of ``no_links``."""
        for folder, _, names in sorted(self.walk(f"{root}/{name}", self._below(descriptor)), reverse=True):
            for each in names:
                with suppress(OSError):
                    self.unlink(f"{folder}/{each}", descriptor)
            with suppress(OSError):
                self.rmdir(folder, descriptor)

    def chmod(self, path: str, mode: int) -> None:
        self.world.step("chmod")

    def listdir(self, path: str) -> list[str]:
        self.world.step("list")
        node = self.disk.node(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(20, "Not a directory", path)
        return list(node.names)

    def fwalk(self, path: str, dir_fd: int) -> Iterator[tuple[str, list[str], list[str], None]]:
        return ((*each, None) for each in self.walk(path, self._below(dir_fd)))

    def folders(self, path: str, beginning: str, descriptor: int | None = None) -> list[str]:
        """As `no_links.folders`."""
        inner = next((names for _, names, _ in self.walk(path, self._below(descriptor))), [])
        return sorted(name for name in inner if name.startswith(beginning))

    def names(self, path: str, descriptor: int | None = None) -> list[str]:
        """As `no_links.names`."""
        return next((inner + files for _, inner, files in self.walk(path, self._below(descriptor))), [])

    def walk(self, path: str, start: File | Directory | None = None) -> Iterator[tuple[str, list[str], list[str]]]:
        self.world.step("list")
        node = self._found(path, start)
        if isinstance(node, Directory):
            inner = [name for name, each in node.names.items() if isinstance(each, Directory)]
            yield path, inner, [name for name, each in node.names.items() if isinstance(each, File)]
            for name in inner:
                yield from self.walk(f"{path}/{name}", start)

    @contextmanager
    def scandir(self, path: str) -> Iterator[list[Any]]:
        node = self.disk.node(path) if self.listdir(path) is not None else None
        assert isinstance(node, Directory)
        yield [
            SimpleNamespace(name=name, is_dir=lambda each=each: isinstance(each, Directory))
            for name, each in node.names.items()
        ]

    # --- content

    def file(self, path: Any, mode: str = "r", opener: Any = None, **more: Any) -> Any:
        """As `open`."""
        number = getattr(getattr(opener, "__self__", None), "descriptor", None)  # of a folder that is pinned
        if number is None and not self.ours(path):
            return builtins.open(path, mode, opener=opener, **more)
        self.world.step("open")
        if "r" in mode:
            node = self.disk.node(path, self._below(number))
            if not isinstance(node, File):
                raise IsADirectoryError(21, "Is a directory", path)
            return OpenFile(self, node, process=self.world.running)
        folder, name = self.disk.place(path, self._below(number))
        node = folder.names.get(name)
        if node is None or "x" in mode or not isinstance(node, File):
            if node is not None:
                raise FileExistsError(17, "File exists", path)
            node = File(self.disk.number(), self.world.stamp)
            folder.change({name: node}, self.world.stamp)
        elif "w" in mode:
            node.data = b""
        return OpenFile(self, node, writes=True, process=self.world.running)

    def stamp(self, path: str, *, create: bool) -> float:
        """As that of ``no_links``."""
        file = self.file(path, "ab" if create else "rb")
        file.node.modified = self.world.stamp
        return self.world.stamp

    def open(self, path: str, flags: int = os.O_RDONLY, dir_fd: int | None = None) -> int:
        self.world.step("open")
        node = self.disk.node(path, self._below(dir_fd))
        return self.descriptor(OpenFile(self, node, process=self.world.running))

    def open_folder(self, root: str, name: str) -> int:
        """As that of ``no_links``."""
        return self.open(f"{root}/{name}")

    @contextmanager
    def above(self, root: str, name: str, below: int | None = None) -> Iterator[tuple[int | None, str]]:
        """As that of ``no_links``, without the links."""
        folders, _, leaf = name.rpartition("/")
        if below is not None and not folders:
            yield below, leaf
            return
        number = self.open(folders, dir_fd=below) if below is not None else self.open(f"{root}/{folders}")
        try:
            yield number, leaf
        finally:
            self.close(number)

    def dup(self, number: int) -> int:
        return self.descriptor(OpenFile(self, self.opened[number].node, process=self.world.running))

    def close(self, number: int) -> None:
        self.opened.pop(number, None)

    def fsync(self, number: int) -> None:
        self.world.step("sync")
        node = self.opened[number].node
        if isinstance(node, File):
            node.synced = node.data
        else:
            node.synced, node.changes = dict(node.names), []

    def utime(self, number: int) -> None:
        self.world.step("utime")
        self.opened[number].node.modified = self.world.stamp

    # --- locks

    def lock(self, file: OpenFile, operation: int) -> bool:
        """As `file_lock._lock`."""
        node = file.node
        assert isinstance(node, File)
        if operation == fcntl.LOCK_UN:
            node.locks.pop(file, None)
            return True
        self.world.step("lock")
        file.fileno()
        exclusive = operation == fcntl.LOCK_EX
        if any(exclusive or held for other, held in node.locks.items() if other is not file):
            return False
        node.locks[file] = exclusive
        return True
