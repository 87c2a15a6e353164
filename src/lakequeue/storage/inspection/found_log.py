"""The log of a table as it lies there, damaged or not: what can be read of it, and what cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import attrs

from lakequeue.errors import DamagedTable
from lakequeue.storage.delta_log import (
    LAST_VERSION,
    LOG,
    REPAIRED,
    Entry,
    State,
    entry_name,
    is_left_over,
    listed,
    read_checkpoint,
    read_entry,
)
from lakequeue.storage.engines.log_trimming import version_of
from lakequeue.storage.folder import Folder
from lakequeue.storage.found_names import file_below
from lakequeue.storage.snapshot import NOT_FOLLOWING
from lakequeue.storage.table_version import TableVersion

_T = TypeVar("_T")
_OTHER_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\..+\.(parquet|json)")
MOST_LOST = 10_000
"""Entries that a log may lack after its start: a repair writes a file for each. Logs are trimmed long before."""


@attrs.define
class FoundLog:
    """Entries and checkpoints of a log by version, as far as they can be read."""

    folder: Folder
    entries: dict[int, Entry]
    checkpoints: dict[int, State]
    problems: dict[str, str]
    """What is wrong with files of the log, by name; a missing entry is among them."""
    last: int
    """The last version that may belong to the log."""
    strays: list[str] = attrs.field(factory=list)
    """Names of files of the log that cannot belong to it; each is among the problems."""

    @property
    def start(self) -> int | None:
        """The version from which the log is read: the newest good checkpoint, or 0; None if there is none."""
        return start_of(self.entries, self.checkpoints)

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
            *(file.name for each in self.checkpoints.values() for file in each.live.values()),
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

    def newest(self) -> TableVersion | None:
        """The version of the last entry, as if those that cannot be read had changed nothing."""
        start = self.start
        if start is None:
            return None
        state = self._at(start)
        for version in range(start + 1, self.last + 1):
            state.apply(self.entries.get(version, Entry()))
        return TableVersion(self.folder, state)

    def sound(self) -> Iterator[TableVersion]:
        """Every version that can be put together from what was committed, the newest first."""
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

    def _at(self, start: int) -> State:
        found = self.checkpoints.get(start)
        if found is not None:
            return _copy(found)
        state = State()
        state.apply(self.entries[start])
        return state


def _copy(state: State) -> State:
    return attrs.evolve(state, live=dict(state.live), transactions=dict(state.transactions))


def read_log(folder: Folder) -> FoundLog:
    """Reads all of a table's log.

    Raises:
        FileNotFoundError: there is none.
    """
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
            except FileNotFoundError:  # trimmed since it was listed
                pass
            return None

        contents = zip(versions, folder.for_each(readable_one, versions), strict=True)
        return {version: each for version, each in contents if each is not None}

    entries, checkpoints = readable([*found.entries], read_entry), readable([*found.checkpoints], read_checkpoint)
    gap = found.gap
    # on a disk the next commit removes what is left over
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
    folder: Folder, versions: Sequence[int], entries: Mapping[int, Entry], checkpoints: Mapping[int, State]
) -> list[int]:
    """Versions that a restore left over: the first that does not follow its base, and all later ones."""
    start = start_of(entries, checkpoints)
    if start is None:
        return []
    state = State(start, token=(checkpoints.get(start) or entries[start]).token)
    for index, version in enumerate(versions):
        entry = entries.get(version, Entry())
        if version <= start:
            continue
        if is_left_over(folder, entry) if version > state.version + 1 else not state.leads_to(entry):
            return list(versions[index:])
        state.version, state.token = version, entry.token
    return []


def start_of(entries: Container[int], checkpoints: Iterable[int]) -> int | None:
    """The newest good checkpoint, or version 0; None if a log has neither."""
    return max(checkpoints, default=0 if 0 in entries else None)


def _reached(start: int, known: Iterable[int]) -> int:
    """The last version before which a log lacks at most ``MOST_LOST`` entries."""
    last, lost = start, 0
    for version in known:
        if version > start:
            lost += version - last - 1
            if lost > MOST_LOST:
                break
            last = version
    return last


def _gaps(entries: Sequence[int], last: int) -> Iterator[tuple[str, str]]:
    """Problems of missing entries up to ``last``, one for each gap, by the name of its first entry."""
    for before, after in pairwise([*entries, last + 1]):
        if missing := after - before - 1:
            more = f", and so are those up to version {after - 1}" if missing > 1 else ""
            yield entry_name(before + 1), f"is missing{more}"
