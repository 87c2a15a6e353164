"""The newest version of a table, kept current by applying new log entries. Each log entry is read once."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from lakequeue.errors import DamagedTable
from lakequeue.storage import layout
from lakequeue.storage.delta_log import (
    LOG,
    Entry,
    Listing,
    LiveFile,
    TableState,
    entry_name,
    has_entry,
    is_left_over,
    listed,
    logged_versions,
    obstacles,
    read_checkpoint,
    read_entry,
)
from lakequeue.storage.folder import Folder, LocalFolder, Mark

_log = logging.getLogger("lakequeue")

_ONE_BY_ONE = 2
"""Maximum number of new entries on an object store that are read one by one, before the log is listed."""
_CONFIRMED, _IDLE = 1.0, 60.0
"""A log on an object store is checked now and then for having been replaced by another log. Seconds since the last
check: after ``_CONFIRMED``, a read that finds new entries checks again; after ``_IDLE``, every read does.
"""
_LEARNED = 100
"""Maximum number of entries that ``learn`` stores, and maximum number of newest entries that stay in memory."""
_ANCHORS = (0.3, 5.0)
"""Maximum seconds until each of the two anchors of a snapshot moves; see ``_Anchor``."""
_CHECKPOINT_INTERVAL = "delta.checkpointInterval"


NOT_FOLLOWING = "does not follow the entry before: a backup was restored while it was written"
"""Reason in a DamagedTable error, if a log entry does not follow the previous entry."""
_known_programs: set[tuple[str, str]] = set()
"""Pairs of program and table for which this process has already logged that the program rewrote the table."""


def _warn_of(program: str, table: str) -> None:
    if (program, table) not in _known_programs:
        _known_programs.add((program, table))
        text = "%s was rewritten by %s. Its rows are read in order, and the compactor writes them anew"
        _log.warning(text, table, program)


class LogTrimmed(Exception):
    """Raised if log entries that follow a snapshot were trimmed. The caller loads the newest snapshot instead."""


_OTHER = "is not what this process read: a backup was restored, or a repair was made"


class ReplacedLog(DamagedTable):
    """Raised if the log was replaced by another log since the last read, for example by a restore (DUR-80)."""

    in_place = False
    """True if the log was replaced, and this process committed an entry to the new log before it noticed."""

    def __init__(
        self, table: str, file: str | None, reason: str = _OTHER, *, outcome_unknown: bool = False
    ) -> None:
        super().__init__(table, file, reason, outcome_unknown=outcome_unknown)


class _EntryId(NamedTuple):
    """Identifies the log entry that a snapshot has applied last: version, file and token."""

    version: int
    mark: Mark
    token: str | None


class _Anchor:
    """A version whose entry the log must still have. The version is at most 2 * ``longest`` seconds old."""

    def __init__(self, version: int, longest: float) -> None:
        self.version = self._next = version
        self._longest = longest
        self._begun = self._moved = time.monotonic()

    def move(self, version: int) -> None:
        """If the last move is long ago, moves to the version noted then, and notes ``version`` for the next."""
        now = time.monotonic()
        if now - self._moved >= min(self._longest, (now - self._begun) / 4):
            self.version, self._next, self._moved = self._next, version, now


def _begin(versions: Container[int], version: int) -> int:
    while version - 1 in versions:
        version -= 1
    return version


class Snapshot(TableState):
    """A version of a table, read from its log. The method ``follow`` applies newer commits."""

    def __init__(self, folder: Folder, version: int | None = None, *, put_back: bool = False) -> None:
        """Loads a version, by default the newest. If ``put_back`` is True, ignores entries that follow a gap.

        Raises FileNotFoundError if there is no table, LogTrimmed if entries were removed during the load.
        """
        super().__init__()
        self._folder = folder
        self._put_back = put_back
        self.strays: list[int] = []
        """Versions in a local table that a restore left over (DUR-86), in order. The log does not include them."""
        self._learned: dict[int, Entry] = {}
        # The last entry that was learned, until it was seen in the log.
        self._last_learned: tuple[int, Entry] | None = None
        self._newest: dict[int, Entry] = {}  # Entries of the latest versions, without gaps.
        self.mark: Mark = ()
        """Identity of the file of this version's log entry."""
        self.was_copied = False
        """True if a copy replaced an entry's file. Other tables of the root must then be checked, too."""
        self.checkpoint_every = 100
        """Number of commits between two checkpoints."""
        self.confirmed_at = time.time()
        """Wall clock of the last successful check of the log, in seconds."""
        self._listed_at = self.confirmed_at
        found, last = listed(folder), math.inf if version is None else version
        entries = [number for number in found.entries if number <= last]
        if not entries:
            raise FileNotFoundError(f"{folder.uri} has no log")
        unreadable = None
        try:
            for number in [number for number in reversed(found.checkpoints) if number <= last]:
                try:
                    checkpoint = read_checkpoint(folder, number)
                except DamagedTable as error:  # An older checkpoint or the entries may lead to the same snapshot.
                    unreadable = unreadable or error
                    _log.warning("%s", error)
                    continue
                if number >= found.gap and self._is_left_over(checkpoint):
                    self.strays.insert(0, number)
                    continue
                self._check(checkpoint)
                self.version, self.live, self.transactions = number, checkpoint.live, checkpoint.transactions
                self.metadata, self.protocol = checkpoint.metadata, checkpoint.protocol
                self.token = checkpoint.token
                break
            if self.version < 0 < entries[0]:  # the listing began before the checkpoint, and ended after the trim
                raise FileNotFoundError(entry_name(0))
            self.mark = found.entries[self.version].mark if self.version in found.entries else ()
            self._apply_many([number for number in entries if number > self.version])
        except FileNotFoundError as error:
            raise unreadable or LogTrimmed(str(error)) from error
        self._set_anchors()
        self._oldest, self._next_look = _begin(found.entries, self.version), -math.inf
        self._checked = self._entry_id
        """The entry up to which the log of an object store was last compared with this snapshot."""

    def follow(self, most: float = math.inf, at_once: int = 1) -> bool:
        """Applies new commits. Returns True if it read commits from storage that ``learn`` had not stored.

        Args:
            most: maximum number of commits to apply. If the log must be listed, all commits are applied.
            at_once: number of commits to read concurrently in the first step.

        Raises:
            LogTrimmed: entries after this version were removed.
            ReplacedLog: the commits belong to another log.
        """
        unconfirmed = 0.0 if self._folder.local is not None else abs(time.time() - self.confirmed_at)
        if unconfirmed >= _IDLE:
            return self.confirm(most, at_once)
        check_at = min(1, most - 1, 2 - at_once) if unconfirmed >= _CONFIRMED else None
        return self._applied(partial(self._step_on, check_at, most, at_once))

    def confirm(self, most: float = math.inf, at_once: int = 1) -> bool:
        """Applies new commits like ``follow``, but always checks first that the log was not replaced."""
        listed_lately = self._folder.local is None and abs(time.time() - self._listed_at) < _IDLE
        return self._applied(partial(self._step_on, 0, most, at_once) if listed_lately else self._catch_up)

    def _applied(self, apply: Callable[[_EntryId], None]) -> bool:
        committed = self._last_learned
        self.advance()
        base, end = self._entry_id, self.transactions.get(layout.SEND_ID, 0)
        apply(base)
        self._find(committed)
        self._expect_end(end)
        return self.version > base.version

    def _expect_end(self, send: int) -> None:
        """Raises DamagedTable if the log's end is below ``send``. Then messages may share an offset (DUR-85)."""
        if self.transactions.get(layout.SEND_ID, 0) < send:
            raise DamagedTable(self._folder.uri, None, f"offsets below {layout.end_of(send)} were given twice")

    def _step_on(self, check_at: float | None, most: float, at_once: int, base: _EntryId) -> None:
        """Applies up to ``most`` commits. After ``check_at`` commits, checks that the log still has ``base``."""
        followed = 0
        while followed < most:
            if self._folder.local is None and followed >= _ONE_BY_ONE:
                self._catch_up(base)
                break
            before = self.version
            for entry in self._following(base if followed == check_at else None, at_once):
                self.apply(entry)
            if self.version < before + at_once:
                break
            followed, at_once = self.version - base.version, 1
        if self._folder.local is not None:
            self._expect(base, self._folder)

    def _following(self, base: _EntryId | None, at_once: int) -> Iterator[Entry]:
        """Yields the next entries. If ``base`` is given, first checks that the log still has entry ``base``."""
        if base is None:
            return self.upcoming(at_once)
        known = {each.version: each for each in (self._checked, base)}
        checks = [partial(self._expect, each, self._folder) for each in known.values()]
        # Commits of this process may have landed behind a gap that a restore made.
        if base.version > self._checked.version + 1:
            checks.append(partial(self._find_entry, self._checked.version + 1))
        # the error of a check comes first: the next entry of another log does not follow this version
        reads = [partial(self._found, version) for version in self._versions(at_once)]
        calls: list[Callable[[], Entry | None]] = [*checks, *reads]
        found = self._folder.for_each(lambda call: call(), calls)[len(checks) :]
        self._checked = base
        return self._leading(found)

    def _find_entry(self, version: int) -> None:
        if not has_entry(self._folder, version):
            raise LogTrimmed(f"{self._folder.uri} has no entry {version}")

    def is_in_log(self, folder: Folder) -> bool:
        """True if a local log still has this version's entry, False if the entry was trimmed. Raises ReplacedLog
        if the log has a different entry of this version.
        """
        try:
            self._expect(self._entry_id, folder)
        except LogTrimmed:
            return False
        return True

    @property
    def _entry_id(self) -> _EntryId:
        return _EntryId(self.version, self.mark, self.token)

    def _set_anchors(self) -> None:
        self._anchors = [_Anchor(self.version, longest) for longest in _ANCHORS]
        # a restore that still runs removes the loaded entry, and an older backup has no entry after the loaded one
        self._first = self.version, self.version + 1
        self._young_until = time.monotonic() + 2 * _ANCHORS[1]

    def is_anchored(self, folder: LocalFolder) -> bool:
        """False if a local log lacks entries that this snapshot has read, although the log was not trimmed."""
        known = [anchor.version for anchor in self._anchors]
        known += self._first if time.monotonic() < self._young_until else ()
        for anchor in self._anchors:
            anchor.move(self.version)
        if all(has_entry(folder, version) for version in known):
            return True
        self._set_anchors()
        entries, _ = logged_versions(folder)
        return self.version in entries and _begin(entries, self.version) == min(entries)

    def lost_entries(self, folder: LocalFolder) -> int:
        """Returns how many entries a local log has lost since the last call that counted.

        Counts every 0.3 seconds, and before each checkpoint. Returns 0 between two counts, or if a checkpoint is
        newer than the lost entries.
        """
        now = time.monotonic()
        # A checkpoint would hide the gap.
        if now < self._next_look and (self.version + 1) % self.checkpoint_every:
            return 0
        self._next_look = now + _ANCHORS[0]
        entries, checkpoints = logged_versions(folder)
        oldest, known = _begin(entries, self.version), self._oldest
        self._oldest = oldest
        # trimming removes the oldest, other programs and damage do not matter below a checkpoint
        if oldest == min(entries, default=oldest) or max(checkpoints, default=-1) >= oldest:
            return 0
        return sum(version not in entries for version in range(known, oldest))

    def _expect(self, base: _EntryId, folder: Folder) -> None:
        # Entries are removed oldest first: if one exists, none after it was removed.
        try:
            found = folder.entry(entry_name(base.version)).mark
        except FileNotFoundError as error:
            raise LogTrimmed(f"{self._folder.uri} has no entry {base.version}") from error
        self._compare(base, found)

    def _compare(self, base: _EntryId, found: Mark) -> None:
        """Raises LogTrimmed or ReplacedLog if the file ``found`` does not hold the known entry ``base``."""
        if found != base.mark:
            # The file was copied, or the file system has renumbered its files.
            if base.token is None or base.version == 0:  # Nothing shows that it is the same entry.
                raise LogTrimmed(f"{self._folder.uri} has an entry {base.version} that was not read")
            if read_entry(self._folder, base.version).token != base.token:
                if self._is_trimmed(base.version):
                    raise LogTrimmed(f"{self._folder.uri} has an entry {base.version} below its checkpoint")
                raise ReplacedLog(self._folder.uri, entry_name(base.version))
            if base.version == self.version:
                self.mark = found
            self.was_copied = self._folder.local is not None
        self.confirmed_at = time.time()

    def _find(self, committed: tuple[int, Entry] | None) -> None:
        """Raises ReplacedLog if the log lacks an entry that this process has committed."""
        if committed is None:
            return
        version, entry = committed
        known = self._newest.get(version)
        if self.version < version or (known is not None and known.token != entry.token):
            raise ReplacedLog(self._folder.uri, entry_name(version))
        if known is None:
            raise LogTrimmed(f"{self._folder.uri} has moved far beyond entry {version}")
        if self._last_learned is committed:
            self._last_learned = None

    def _catch_up(self, base: _EntryId) -> None:
        """Lists the log, and applies new commits. Raises LogTrimmed or ReplacedLog if the log lacks ``base``."""
        known = base if self._folder.local is not None else self._checked
        entries = self._listed_after(known.version - 1).entries
        self._listed_at = time.time()
        try:
            for version in range(known.version, base.version + 1):
                if version not in entries:
                    raise FileNotFoundError(entry_name(version))
            for each in (known, base):
                self._compare(each, entries[each.version].mark)
            self._checked = base
            self._apply_many([number for number in entries if number > self.version])
        except FileNotFoundError as error:
            raise LogTrimmed(str(error)) from error

    def _is_trimmed(self, version: int) -> bool:
        # On an object store, a PUT that was held up may land in the place of an entry that was trimmed.
        return self._folder.local is None and bool(self._listed_after(version).checkpoints)

    def _listed_after(self, version: int) -> Listing:
        # Starts after the name that sorts right before those of the next version.
        return listed(self._folder, f"{LOG}/{version + 1:020}")

    def learn(self, version: int, entry: Entry) -> None:
        """Stores an entry that another handle of this process committed, which saves a read. Thread-safe."""
        self._last_learned = version, entry
        if len(self._learned) < _LEARNED:
            self._learned[version] = entry

    def advance(self) -> None:
        """Applies the entries that ``learn`` has stored and that follow this version. Sends no request."""
        while (entry := self._learned.get(self.version + 1)) is not None and entry.follows == self.mark:
            self.apply(self._learned.pop(self.version + 1))
        if self._learned:
            for version in [version for version in list(self._learned) if version <= self.version]:
                self._learned.pop(version, None)

    @property
    def partitions(self) -> list[str]:
        return list(self.metadata["partitionColumns"])

    def newest_files(self) -> tuple[int, dict[str, LiveFile]]:
        """Returns the files that recent commits added, by name, and the version before these commits."""
        added = {file.name: file for entry in self._newest.values() for file in entry.added}
        return self.version - len(self._newest), added

    def added_since(self, version: int) -> dict[str, LiveFile]:
        """Returns the files added after ``version``, by name. Raises FileNotFoundError if an entry was trimmed."""
        return {file.name: file for entry in self._since(version) for file in entry.added}

    def answers_since(self, version: int) -> dict[str, Any]:
        """Returns the answers in entries after ``version``. Raises FileNotFoundError if an entry was trimmed."""
        return {id: answer for entry in self._since(version) for id, answer in entry.answers.items()}

    def _since(self, version: int) -> list[Entry]:
        known = self.version - len(self._newest)
        older = self._folder.for_each(self._entry, range(version + 1, known + 1))
        return [*older, *(self._newest[number] for number in range(max(version, known) + 1, self.version + 1))]

    @property
    def latest(self) -> Mapping[int, Entry]:
        """The newest log entries, at most ``_LEARNED``, by version and without a gap."""
        return self._newest

    def next(self) -> Entry:
        """Returns the entry of the next version. Raises FileNotFoundError if the log does not have this entry."""
        for entry in self.upcoming(1):
            return entry
        raise FileNotFoundError(entry_name(self.version + 1))

    def upcoming(self, most: int) -> Iterator[Entry]:
        """Yields the entries of up to ``most`` next versions. Apply each entry before asking for the next."""
        return self._leading(self._folder.for_each(self._found, self._versions(most)))

    def _versions(self, most: int) -> range:
        return range(self.version + 1, self.version + 1 + most)

    def _leading(self, found: Sequence[Entry | None]) -> Iterator[Entry]:
        for entry in found:
            if entry is None:
                return
            if not self.leads_to(entry):
                self._note_strays([(self.version + 1, entry)])
                return
            yield entry

    def _found(self, version: int) -> Entry | None:
        with suppress(FileNotFoundError):
            return self._entry(version)
        return None

    def tokens(self, since: int) -> Iterator[str | None]:
        """Yields the tokens of the commits after version ``since``, up to the first missing entry."""
        for version in range(since + 1, self.version + 1):
            if version in self._newest:
                yield self._newest[version].token
                continue
            try:
                yield self._entry(version).token
            except FileNotFoundError:
                return

    def _entry(self, version: int) -> Entry:
        return read_entry(self._folder, version)

    def _apply_many(self, versions: Sequence[int]) -> None:
        found = list(zip(versions, self._folder.for_each(self._entry, versions), strict=True))
        for index, (number, entry) in enumerate(found):
            if number > self.version + 1 and not self._is_left_over(entry):
                raise FileNotFoundError(entry_name(self.version + 1))
            if number > self.version + 1 or not self.leads_to(entry):
                self._note_strays(found[index:])
                break
            self.apply(entry)

    def _is_left_over(self, found: Entry | TableState) -> bool:
        by_lakequeue = (found.base if isinstance(found, Entry) else found.token) is not None
        return (self._put_back and by_lakequeue) or is_left_over(self._folder, found)

    def _note_strays(self, found: Sequence[tuple[int, Entry]]) -> None:
        """Adds entries that a restore left over to ``strays`` (DUR-86). Raises DamagedTable for other entries."""
        if self._folder.local is None or any(entry.base is None for _, entry in found):
            raise DamagedTable(self._folder.uri, entry_name(found[0][0]), NOT_FOLLOWING)
        self.strays = sorted({*self.strays, *(number for number, _ in found)})

    def apply(self, entry: Entry) -> None:
        self._check(entry)
        self._newest[self.version + 1] = entry
        self._newest.pop(self.version - _LEARNED, None)
        self.mark = entry.mark
        super().apply(entry)
        if entry.program is not None and entry.added and entry.removed:
            _warn_of(entry.program, self._folder.uri)

    def _check(self, found: Entry | TableState) -> None:
        """Reads a table's settings. Raises DamagedTable for unknown features, or a table that was moved here."""
        uri = self._folder.uri
        if found.metadata is not None:
            if layout.is_elsewhere(uri, found.metadata.get("name")):
                raise DamagedTable(uri, None, f"is the table {found.metadata['name']}, and was moved here")
            interval = dict(found.metadata["configuration"]).get(_CHECKPOINT_INTERVAL, 100)
            try:
                self.checkpoint_every = max(1, int(interval))
            except ValueError as error:
                raise DamagedTable(uri, None, f"{_CHECKPOINT_INTERVAL}: {error}") from None
        if unknown := obstacles(found):
            reason = f"another program gave it {', '.join(unknown)}, which lakequeue does not know"
            raise DamagedTable(uri, None, reason)
