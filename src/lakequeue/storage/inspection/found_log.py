"""The log of a table as it lies there, damaged or not: what can be read of it, and what cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.storage.delta_log import (
    LOG,
    Checkpoint,
    Entry,
    LiveFile,
    checkpoint_name,
    entry_name,
    listed,
    read_checkpoint,
    read_entry,
    unknown_in,
)
from lakequeue.storage.folder import Folder
from lakequeue.storage.found_names import file_below

_OTHER_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\..+\.(parquet|json)")
REPAIRED = "repair"
"""Token of entries that replace unreadable ones."""


@attrs.define
class State:
    """A version of a table, put together from its log. Stands in for a ``Table`` that is only read."""

    folder: Folder
    version: int
    live: dict[str, LiveFile]
    """By path, those added last at the end."""
    transactions: dict[str, int]
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]
    lost_files: bool = False
    """Whether another program has removed files since the checkpoint and put none in their place, as delta-rs's
    ``repair`` does with those that are missing."""

    @property
    def path(self) -> str:
        return self.folder.uri

    def transaction(self, app_id: str) -> int | None:
        return self.transactions.get(app_id)

    def files(self) -> list[LiveFile]:
        return list(self.live.values())

    def read(self, files: Sequence[LiveFile], columns: Sequence[str] | None = None) -> list[pa.Table]:
        return self.folder.for_each(lambda file: self._read(file, columns), files)

    def broken(self) -> list[DamagedTable]:
        """What is wrong with files that are live."""
        return [error for error in self.folder.for_each(self._problem, self.files()) if error is not None]

    def _problem(self, file: LiveFile) -> DamagedTable | None:
        try:
            self._read(file, [])
        except DamagedTable as error:
            return error
        return None

    def _read(self, file: LiveFile, columns: Sequence[str] | None) -> pa.Table:
        try:
            with self.folder.parquet(file.name, file.size) as parquet:
                if parquet.metadata.num_rows != file.rows:
                    reason = f"has {parquet.metadata.num_rows} rows instead of {file.rows}"
                    raise DamagedTable(self.path, file.name, reason)
                return parquet.read(columns, use_threads=False)
        except FileNotFoundError as error:
            raise DamagedTable(self.path, file.name, "is missing") from error


@attrs.define
class FoundLog:
    """Entries and checkpoints of a log by version, as far as they can be read."""

    folder: Folder
    entries: dict[int, Entry]
    checkpoints: dict[int, Checkpoint]
    problems: dict[str, str]
    """What is wrong with files of the log, by name; a missing entry is among them."""
    last: int
    """The last version of which there is a file."""

    @property
    def start(self) -> int | None:
        """The version from which the log is read: the newest good checkpoint, or 0; None if there is none."""
        return max(self.checkpoints, default=0 if 0 in self.entries else None)

    @property
    def unreadable(self) -> list[int]:
        """Versions whose entries are needed, and cannot be read."""
        start = self.start
        return [] if start is None else [each for each in range(start, self.last + 1) if each not in self.entries]

    @property
    def named(self) -> set[str]:
        """Names of all files that any part of the log names."""
        added = [file.name for entry in self.entries.values() for file in entry.added]
        removed = [file_below(path, encoded=True) for entry in self.entries.values() for path in entry.removed]
        return {
            *added,
            *removed,
            *(file.name for each in self.checkpoints.values() for file in each.files.values()),
        }

    @property
    def is_being_mended(self) -> bool:
        """Whether a repair has replaced entries by some without files."""
        return any(entry.token == REPAIRED for entry in self.entries.values())

    @property
    def newest_sound(self) -> int | None:
        """The last version that can be put together from what was committed; None if there is none."""
        start = self.start
        lost = [each for each in self.unreadable if each != start or start not in self.checkpoints]
        return lost[0] - 1 if lost else None if start is None else self.last

    def newest(self) -> State | None:
        """The state after the last entry, as if those that cannot be read had changed nothing."""
        start = self.start
        if start is None:
            return None
        state = self._at(start)
        for version in range(start + 1, self.last + 1):
            _apply(state, self.entries.get(version, Entry()), version)
        return state

    def sound(self) -> Iterator[State]:
        """Every version that can be put together from what was committed, the newest first."""
        starts = sorted({*self.checkpoints, *({0} & self.entries.keys())}, reverse=True)
        end = self.last
        for start in starts:
            state, states = self._at(start), []
            for version in range(start, end + 1):
                if version > start:
                    if version not in self.entries:
                        break
                    _apply(state, self.entries[version], version)
                states.append(attrs.evolve(state, live=dict(state.live), transactions=dict(state.transactions)))
            yield from reversed(states)
            end = start - 1

    def _at(self, start: int) -> State:
        found = self.checkpoints.get(start)
        if found is not None:
            files, transactions, metadata, protocol = found
            return State(self.folder, start, dict(files), dict(transactions), metadata, protocol)
        state = State(self.folder, start, {}, {}, {}, {})
        _apply(state, self.entries[start], start)
        return state


def read_log(folder: Folder) -> FoundLog:
    """Reads all of a table's log.

    Raises:
        FileNotFoundError: there is none.
    """
    found = list(listed(folder))
    if not found:
        raise FileNotFoundError(f"{folder.uri}/{LOG}")
    problems: dict[str, str] = {}

    def read(version: int, is_checkpoint: bool) -> Entry | Checkpoint | None:
        try:
            return read_checkpoint(folder, version) if is_checkpoint else read_entry(folder, version)
        except DamagedTable as error:
            problems[checkpoint_name(version) if is_checkpoint else entry_name(version)] = error.reason
        except FileNotFoundError:  # trimmed since it was listed
            pass
        return None

    kinds = [(version, is_checkpoint) for version, is_checkpoint, _ in found]
    contents = dict(zip(kinds, folder.for_each(lambda kind: read(*kind), kinds), strict=True))
    entries = {version: each for (version, _), each in sorted(contents.items()) if isinstance(each, Entry)}
    checkpoints = {version: each for (version, _), each in contents.items() if isinstance(each, Checkpoint)}
    there = {version for version, is_checkpoint in kinds if not is_checkpoint}
    last = max(version for version, _ in kinds)
    for version in range(min(there, default=last), last + 1):
        if version not in there:
            problems[entry_name(version)] = "is missing"
    for file in folder.files(LOG):
        if _OTHER_CHECKPOINT.fullmatch(file.name.rpartition("/")[2]):
            problems[file.name] = "is a checkpoint of another program, which lakequeue does not read"
    return FoundLog(folder, entries, checkpoints, problems, last)


def obstacles(state: State) -> list[str]:
    """What another program gave a table that lakequeue does not know."""
    found = unknown_in(state.protocol) if state.protocol else []
    if dict(state.metadata.get("configuration") or {}).get("delta.appendOnly", "false").lower() == "true":
        found.append("the property delta.appendOnly")
    return found


def _apply(state: State, entry: Entry, version: int) -> None:
    state.lost_files |= bool(entry.removed) and not entry.added and entry.token is None
    for path in entry.removed:
        state.live.pop(path, None)
    for file in entry.added:
        state.live.pop(file.path, None)  # to the end
        state.live[file.path] = file
    state.transactions.update(entry.transactions)
    state.metadata = entry.metadata or state.metadata
    state.protocol = entry.protocol or state.protocol
    state.version = version
