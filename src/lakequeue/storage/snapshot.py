"""The newest version of a table, brought up to date by the entries that follow it.

delta-rs reads every entry since the last checkpoint whenever it lists the live files. Here each entry is read
once, so following a log costs one request if nothing is new.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from lakequeue.errors import DamagedTable
from lakequeue.storage import layout
from lakequeue.storage.delta_log import (
    LOG,
    Entry,
    LiveFile,
    State,
    entry_name,
    is_left_over,
    listed,
    obstacles,
    read_checkpoint,
    read_entry,
)
from lakequeue.storage.folder import Folder, Mark

_log = logging.getLogger("lakequeue")

_ONE_BY_ONE = 2
"""Entries that a snapshot on an object store follows one by one; further ones are listed and read together."""
_CONFIRMED, _IDLE = 1.0, 60.0
"""Seconds for which a snapshot on an object store follows entries without a look whether they continue the log it
was read from, and for which it finds none. The look is a listing in place of another request."""
_LEARNED = 100
"""Maximum number of entries that wait to be applied, and of latest ones that are kept."""
_ANCHORS = (0.3, 5.0)
"""Seconds between two moves of each anchor of a snapshot, at most; an anchor is one to two times as old."""
_CHECKPOINT_INTERVAL = "delta.checkpointInterval"


NOT_FOLLOWING = "does not follow the entry before: a backup was restored while it was written"
"""Reason of a DamagedTable."""
_known_programs: set[tuple[str, str]] = set()
"""Programs of which this process has warned, with the tables that they rewrote."""


def _warn_of(program: str, table: str) -> None:
    if (program, table) not in _known_programs:
        _known_programs.add((program, table))
        text = "%s was rewritten by %s. Its rows are read in order, and the compactor writes them anew"
        _log.warning(text, table, program)


class LogTrimmed(Exception):
    """Log entries that follow a snapshot were removed; load the newest snapshot."""


_OTHER = "is not what this process read: a backup was restored, or a repair was made"


class OtherHistory(DamagedTable):
    """The log of a table is another one than this process read: a backup was restored, or the table repaired.

    What the process knew of the root is dropped, so the call can be repeated (DUR-80).
    """

    in_place = False
    """True if a commit has left an entry in the log that the path leads to."""

    def __init__(
        self, table: str, file: str | None, reason: str = _OTHER, *, outcome_unknown: bool = False
    ) -> None:
        super().__init__(table, file, reason, outcome_unknown=outcome_unknown)


class _Base(NamedTuple):
    """An entry that a snapshot was made of."""

    version: int
    mark: Mark
    token: str | None


class _Anchor:
    """An entry that a handle knew some time ago: a quarter to a half of its age by the machine's clock."""

    def __init__(self, version: int, longest: float) -> None:
        self.version = self._next = version
        self._longest = longest
        self._begun = self._moved = time.monotonic()

    def move(self, version: int) -> None:
        now = time.monotonic()
        if now - self._moved >= min(self._longest, (now - self._begun) / 4):
            self.version, self._next, self._moved = self._next, version, now


class Snapshot(State):
    """A version of a table, read from its log; ``follow`` brings it up to date."""

    def __init__(self, folder: Folder, version: int | None = None, *, put_back: bool = False) -> None:
        """Loads a version, None for the newest; ``put_back`` says that entries behind a gap are left over.

        Raises:
            FileNotFoundError: there is no table.
            LogTrimmed: entries were removed while it was loaded; try again.
        """
        super().__init__()
        self._folder = folder
        self._put_back = put_back
        self.strays: list[int] = []
        """Versions whose entry or checkpoint a restore of a local table left over, in order (DUR-86).

        They are not part of the log.
        """
        self._learned: dict[int, Entry] = {}
        self._committed: tuple[int, Entry] | None = None  # the last that was learned, until it was seen in the log
        self._newest: dict[int, Entry] = {}  # of the latest versions, without gaps
        self.mark: Mark = ()
        """Mark of the entry of this version."""
        self.was_copied = False
        """Whether another file has the entry now: it may be of a backup, which other tables are not of."""
        self.checkpoint_every = 100
        """Number of commits between two checkpoints."""
        self.confirmed_at = time.time()
        """When the entry of this version, or of one before it, was last seen in the log; wall clock, seconds."""
        found, last = listed(folder), math.inf if version is None else version
        entries = [number for number in found.entries if number <= last]
        if not entries:
            raise FileNotFoundError(f"{folder.uri} has no log")
        unreadable = None
        try:
            for number in [number for number in reversed(found.checkpoints) if number <= last]:
                try:
                    checkpoint = read_checkpoint(folder, number)
                except DamagedTable as error:  # an older one, or the entries, may lead to the same snapshot
                    unreadable = unreadable or error
                    _log.warning("%s", error)
                    continue
                if number >= found.gap and is_left_over(folder, checkpoint):
                    self.strays.insert(0, number)
                    continue
                self._check(checkpoint)
                self.version, self.live, self.transactions = number, checkpoint.live, checkpoint.transactions
                self.metadata, self.protocol = checkpoint.metadata, checkpoint.protocol
                self.token = checkpoint.token
                break
            self.mark = found.entries[self.version].mark if self.version in found.entries else ()
            self._apply_many([number for number in entries if number > self.version])
        except FileNotFoundError as error:
            raise unreadable or LogTrimmed(str(error)) from error
        self._anchors = [_Anchor(self.version, longest) for longest in _ANCHORS]

    def follow(self) -> bool:
        """Applies the commits made since; returns whether there were any that were not learned.

        On a disk it also looks whether they continue the log that this snapshot was read from; on an object store
        ``confirm`` does.

        Raises:
            LogTrimmed: entries after this version were removed.
            OtherHistory: they are not of the log that this snapshot was read from.
        """
        unconfirmed = 0.0 if self._folder.local is not None else abs(time.time() - self.confirmed_at)
        return self.confirm() if unconfirmed >= _IDLE else self._applied(partial(self._step_on, unconfirmed))

    def confirm(self) -> bool:
        """As ``follow``, with one listing and concurrent reads, and a look whether the log is still the same."""
        return self._applied(self._catch_up)

    def _applied(self, apply: Callable[[_Base], None]) -> bool:
        committed = self._committed
        self.advance()
        base, end = self._base, self.transactions.get(layout.SEND_ID, 0)
        apply(base)
        self._find(committed)
        self._expect_end(end)
        return self.version > base.version

    def _expect_end(self, send: int) -> None:
        """Checks that the end of the log did not fall (DUR-85)."""
        if self.transactions.get(layout.SEND_ID, 0) < send:
            raise DamagedTable(self._folder.uri, None, f"offsets below {layout.end_of(send)} were given twice")

    def _step_on(self, unconfirmed: float, base: _Base) -> None:
        """Applies the commits made since one by one; many on an object store as ``_catch_up`` does."""
        for followed in count():
            if self._folder.local is None and (followed == _ONE_BY_ONE or followed and unconfirmed >= _CONFIRMED):
                self._catch_up(base)
                break
            try:
                self.apply(self.next())
            except FileNotFoundError:
                break
        if self._folder.local is not None:
            self._expect(base, self._folder)

    def is_based(self, folder: Folder) -> bool:
        """Whether the entry of this version is in the log of a local directory, and is the one that was read.

        Raises:
            OtherHistory: it is another one.
        """
        try:
            self._expect(self._base, folder)
        except LogTrimmed:
            return False
        return True

    @property
    def _base(self) -> _Base:
        return _Base(self.version, self.mark, self.token)

    def is_anchored(self, folder: Folder) -> bool:
        """Returns False if a local log lost an older entry that this handle knew, but not by trimming.

        A restore removes many entries, not all at once. A writer that is quick would build on an entry that the
        restore had not listed, on and on, and would not notice that older entries are gone.
        """
        known = [anchor.version for anchor in self._anchors]
        for anchor in self._anchors:
            anchor.move(self.version)
        if all(folder.exists(entry_name(version)) for version in known):
            return True
        versions = [version for version in listed(folder).entries if version <= self.version]
        self._anchors = [_Anchor(self.version, longest) for longest in _ANCHORS]
        return versions == [*range(self.version - len(versions) + 1, self.version + 1)]

    def _expect(self, base: _Base, folder: Folder) -> None:
        # Entries are removed oldest first: if one exists, none after it was removed.
        try:
            found = folder.entry(entry_name(base.version)).mark
        except FileNotFoundError as error:
            raise LogTrimmed(f"{self._folder.uri} has no entry {base.version}") from error
        self._compare(base, found)

    def _compare(self, base: _Base, found: Mark) -> None:
        """Checks that an entry, which has this mark now, is still the one that the snapshot was made of."""
        if found != base.mark:
            # a copy of the same file, or a file system that numbers its files anew
            if base.token is None or base.version == 0:  # nothing tells whether it is
                raise LogTrimmed(f"{self._folder.uri} has an entry {base.version} that was not read")
            if read_entry(self._folder, base.version).token != base.token:
                raise OtherHistory(self._folder.uri, entry_name(base.version))
            if base.version == self.version:
                self.mark = found
            self.was_copied = self._folder.local is not None
        self.confirmed_at = time.time()

    def _find(self, committed: tuple[int, Entry] | None) -> None:
        """Checks that the log has what this process committed before it was read: bodies of it are cached."""
        if committed is None:
            return
        version, entry = committed
        known = self._newest.get(version)
        if self.version < version or (known is not None and known.token != entry.token):
            raise OtherHistory(self._folder.uri, entry_name(version))
        if known is None:
            raise LogTrimmed(f"{self._folder.uri} has moved far beyond entry {version}")
        if self._committed is committed:
            self._committed = None

    def _catch_up(self, base: _Base) -> None:
        """Applies all commits made since, with one listing and concurrent reads, and checks the entry ``base``."""
        entries = listed(self._folder, f"{LOG}/{base.version:020}").entries  # after what sorts before it
        try:
            if base.version not in entries:
                raise FileNotFoundError(entry_name(base.version))
            self._compare(base, entries[base.version].mark)
            self._apply_many([number for number in entries if number > self.version])
        except FileNotFoundError as error:
            raise LogTrimmed(str(error)) from error

    def learn(self, version: int, entry: Entry) -> None:
        """Takes note of an entry that this process committed elsewhere, so as not to read it. Thread-safe."""
        self._committed = version, entry
        if len(self._learned) < _LEARNED:
            self._learned[version] = entry

    def advance(self) -> None:
        """Applies entries that were learned and follow this version; asks storage for nothing."""
        while (entry := self._learned.get(self.version + 1)) is not None and entry.follows == self.mark:
            self.apply(self._learned.pop(self.version + 1))
        if self._learned:
            for version in [version for version in list(self._learned) if version <= self.version]:
                self._learned.pop(version, None)

    @property
    def partitions(self) -> list[str]:
        """Names of the partition columns."""
        return list(self.metadata["partitionColumns"])

    def newest_files(self) -> tuple[int, dict[str, LiveFile]]:
        """Files that the latest commits added, by name, and the version after which all commits are known."""
        added = {file.name: file for entry in self._newest.values() for file in entry.added}
        return self.version - len(self._newest), added

    def added_since(self, version: int) -> dict[str, LiveFile]:
        """Files that the commits after a version added, by name; FileNotFoundError if one was trimmed."""
        known = self.version - len(self._newest)
        older = self._folder.for_each(self._entry, range(version + 1, known + 1))
        newer = (self._newest[number] for number in range(max(version, known) + 1, self.version + 1))
        return {file.name: file for entry in (*older, *newer) for file in entry.added}

    def next(self) -> Entry:
        """Returns the entry after this version.

        Raises:
            FileNotFoundError: the log has no such entry, or a restore left the entry over.
        """
        entry = self._entry(self.version + 1)
        if not self.leads_to(entry):
            self._note_strays([(self.version + 1, entry)])
            raise FileNotFoundError(entry_name(self.version + 1))
        return entry

    def tokens(self, since: int) -> Iterator[str | None]:
        """Tokens of the commits after a version, up to the first whose entry is missing."""
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

    def _is_left_over(self, entry: Entry) -> bool:
        return (self._put_back and entry.base is not None) or is_left_over(self._folder, entry)

    def _note_strays(self, found: Sequence[tuple[int, Entry]]) -> None:
        """Takes note of the next entries of a local log, which do not follow this version (DUR-86).

        Raises:
            DamagedTable: they are on an object store, or another program has built on them.
        """
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

    def _check(self, found: Entry | State) -> None:
        """Takes note of a table's settings; DamagedTable if they are not those of a table of this place."""
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
