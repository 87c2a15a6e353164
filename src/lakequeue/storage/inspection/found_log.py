"""Reads the log of a table that may be damaged. Lists every log file that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import attrs

from lakequeue.errors import DamagedTable
from lakequeue.storage.checked_names import file_below
from lakequeue.storage.delta_log import (
    LAST_VERSION,
    LOG,
    REPAIRED,
    Entry,
    TableState,
    entry_name,
    is_left_over,
    listed,
    read_checkpoint,
    read_entry,
)
from lakequeue.storage.engines.log_trimming import version_of
from lakequeue.storage.folder import Folder
from lakequeue.storage.snapshot import NOT_FOLLOWING
from lakequeue.storage.table_version import TableVersion

_T = TypeVar("_T")
_OTHER_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\..+\.(parquet|json)")
MOST_LOST = 10_000
"""Maximum number of missing log entries that a repair replaces, because it writes a file for each."""


@attrs.define
class FoundLog:
    """A log that was read as far as possible, with the readable entries and checkpoints by version."""

    folder: Folder
    entries: dict[int, Entry]
    checkpoints: dict[int, TableState]
    problems: dict[str, str]
    """For each bad or missing log file, by name, a text that says what is wrong with it."""
    last: int
    """Newest version of the log. Its entry may be unreadable."""
    strays: list[str] = attrs.field(factory=list)
    """Names of log files that do not belong to the log, for example because a restore did not remove them."""

    @property
    def start(self) -> int | None:
        """Version of the checkpoint or entry from which the log can be read. None if there is no such version."""
        return start_of(self.entries, self.checkpoints)

    @property
    def unreadable(self) -> list[int]:
        """Versions from ``start`` on whose log entries cannot be read."""
        start = self.start
        return [] if start is None else [each for each in range(start, self.last + 1) if each not in self.entries]

    @property
    def named(self) -> set[str]:
        """Names of the data files in all readable entries and checkpoints."""
        added = [file.name for entry in self.entries.values() for file in entry.added]
        removed = [file_below(path, encoded=True) for entry in self.entries.values() for path in entry.removed]
        return {
            *added,
            *removed,
            *(file.name for each in self.checkpoints.values() for file in each.live.values()),
        }

    @property
    def is_being_repaired(self) -> bool:
        """True if a repair has replaced unreadable entries already, but may not be finished."""
        return any(entry.token == REPAIRED for entry in self.entries.values())

    @property
    def newest_sound(self) -> int | None:
        """Newest version that can be read from ``start`` on without a gap. None if ``start`` is None."""
        start = self.start
        lost = [each for each in self.unreadable if each != start or start not in self.checkpoints]
        return lost[0] - 1 if lost else None if start is None else self.last

    def newest(self) -> TableVersion | None:
        """Returns the newest version, leaving out unreadable entries. Returns None if ``start`` is None."""
        start = self.start
        if start is None:
            return None
        state = self._at(start)
        for version in range(start + 1, self.last + 1):
            state.apply(self.entries.get(version, Entry()))
        return TableVersion(self.folder, state)

    def sound(self) -> Iterator[TableVersion]:
        """Yields all versions for which no entry is missing or unreadable, newest first."""
        starts = sorted({*self.checkpoints, *({0} & self.entries.keys())}, reverse=True)
        end = self.last
        for start in starts:
            state, states = self._at(start), []
            for version in range(start, end + 1):
                if version > start:
                    if version not in self.entries:
                        break
                    state.apply(self.entries[version])
                states.append(_copy(state))
            yield from (TableVersion(self.folder, each) for each in reversed(states))
            end = start - 1

    def _at(self, start: int) -> TableState:
        found = self.checkpoints.get(start)
        if found is not None:
            return _copy(found)
        state = TableState()
        state.apply(self.entries[start])
        return state


def _copy(state: TableState) -> TableState:
    return attrs.evolve(state, live=dict(state.live), transactions=dict(state.transactions))


def read_log(folder: Folder) -> FoundLog:
    """Reads the whole log of a table. Raises FileNotFoundError if the table has no log."""
    found = listed(folder)
    if not (found.entries or found.checkpoints):
        raise FileNotFoundError(f"{folder.uri}/{LOG}")
    problems: dict[str, str] = {}

    def readable(versions: list[int], read: Callable[[Folder, int], _T]) -> dict[int, _T]:
        def readable_one(version: int) -> _T | None:
            try:
                return read(folder, version)
            except DamagedTable as error:
                problems[str(error.file)] = error.reason
            except FileNotFoundError:  # The file was trimmed after it was listed.
                pass
            return None

        contents = zip(versions, folder.for_each(readable_one, versions), strict=True)
        return {version: each for version, each in contents if each is not None}

    entries, checkpoints = readable([*found.entries], read_entry), readable([*found.checkpoints], read_checkpoint)
    gap = found.gap
    # On a disk, the next commit removes left-over checkpoints.
    for version in [each for each in checkpoints if each >= gap and is_left_over(folder, checkpoints[each])]:
        del checkpoints[version], found.checkpoints[version]
    strays = _left_over(folder, sorted(found.entries), entries, checkpoints)
    found = attrs.evolve(found, entries={each: file for each, file in found.entries.items() if each not in strays})
    if folder.local is None or any(version not in entries or entries[version].base is None for version in strays):
        problems |= {entry_name(version): NOT_FOLLOWING for version in strays}
    else:
        strays = []
    start, known = start_of(entries, checkpoints), sorted({*found.entries, *found.checkpoints})
    last = known[-1] if start is None else _reached(start, known)
    beyond = [entry_name(version) for version in found.entries if version > last]
    for name in beyond:
        problems[name] = f"comes more than {MOST_LOST:,} missing entries after version {last}"
    problems |= _gaps([version for version in found.entries if version <= last], last)
    for file in folder.files(LOG):
        if _OTHER_CHECKPOINT.fullmatch(file.name.rpartition("/")[2]):
            problems[file.name] = "is a checkpoint of another program, which lakequeue does not read"
        elif version_of(file.name) > LAST_VERSION:
            problems[file.name] = f"is beyond version {LAST_VERSION}, where every log ends"
            beyond.append(file.name)
    entries = {version: entry for version, entry in entries.items() if version <= last}
    return FoundLog(folder, entries, checkpoints, problems, last, [*map(entry_name, strays), *beyond])


def _left_over(
    folder: Folder, versions: Sequence[int], entries: Mapping[int, Entry], checkpoints: Mapping[int, TableState]
) -> list[int]:
    """Returns the versions that a restore left over: the first that does not continue the log, and all later."""
    start = start_of(entries, checkpoints)
    if start is None:
        return []
    state = TableState(start, token=(checkpoints.get(start) or entries[start]).token)
    for index, version in enumerate(versions):
        entry = entries.get(version, Entry())
        if version <= start:
            continue
        if is_left_over(folder, entry) if version > state.version + 1 else not state.leads_to(entry):
            return list(versions[index:])
        state.version, state.token = version, entry.token
    return []


def start_of(entries: Container[int], checkpoints: Iterable[int]) -> int | None:
    """Returns the newest checkpoint's version. Without checkpoints, returns 0 if entry 0 exists, else None."""
    return max(checkpoints, default=0 if 0 in entries else None)


def _reached(start: int, known: Iterable[int]) -> int:
    """Returns the newest version in ``known`` before which at most ``MOST_LOST`` entries are missing."""
    last, lost = start, 0
    for version in known:
        if version > start:
            lost += version - last - 1
            if lost > MOST_LOST:
                break
            last = version
    return last


def _gaps(entries: Sequence[int], last: int) -> Iterator[tuple[str, str]]:
    """Yields the name of the first missing entry of each gap, and a text that says how long the gap is."""
    for before, after in pairwise([*entries, last + 1]):
        if missing := after - before - 1:
            more = f", and so are all up to version {after - 1}" if missing > 1 else ""
            yield entry_name(before + 1), f"is missing{more}"
