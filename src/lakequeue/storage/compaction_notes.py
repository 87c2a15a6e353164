"""Notes of the compactor about queues without work. A pass skips an unchanged queue that has a recent note."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from lakequeue.model.clock import MICROS, from_micros
from lakequeue.storage import layout
from lakequeue.storage.bulk.manifests import has_manifests
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.delta_log import has_entry
from lakequeue.storage.folder import Mark
from lakequeue.storage.stats_rows import StatsRow
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

LONGEST_REST = 24 * 3600 * MICROS
"""Maximum microseconds between two whole passes over a queue, even if nothing changes."""
_FILE = "_passes.json"

_log = logging.getLogger("lakequeue")


@attrs.frozen
class Note:
    """Records that a pass over a queue found nothing to do. Instants are in microseconds by the root's clock."""

    versions: Sequence[Sequence[int]]
    """For each shard, the version of its ledger and the version of its messages table before the pass."""
    attributes_version: int
    since: int
    """Instant of the first pass that found nothing to do."""
    at: int
    """Instant of the last whole pass."""
    stands_until: int | None
    """The noted depth is valid until this instant, when a delay, timeout or retention ends. None if always."""
    depth: Mapping[str, Any]
    """The queue's depth at the last whole pass, as the fields of a ``StatsRow``."""

    def stands(self, now: int) -> bool:
        """True if the noted depth is still right at ``now``, provided that no process has committed since."""
        recent = 0 <= now - self.at <= LONGEST_REST
        return recent and (self.stands_until is None or now < self.stands_until)

    def rests(self, now: int) -> bool:
        """True if a pass may skip the queue at ``now``. The longer a queue is idle, the longer it is skipped."""
        return self.stands(now) and now - self.at <= self.at - self.since

    def row(self, now: int) -> StatsRow:
        """Returns the depth of the queue at ``now``, which must be before ``stands_until``."""
        age = self.depth["oldest_age"]
        return StatsRow(**{**self.depth, "oldest_age": None if age is None else age + (now - self.at) / MICROS})


@attrs.define
class CompactionNotes:
    """The notes of a root."""

    ended_at: int | None = None
    """Instant at which the last pass over the whole root ended, in microseconds. None if unknown."""
    notes: dict[str, Note] = attrs.field(factory=dict)
    """The note of each queue, keyed by queue key."""


class NotesCache:
    """Keeps a root's notes in this process, and reads them again if their file has changed. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: tuple[Mark, CompactionNotes] | None = None

    def newest(self) -> Mapping[str, Note]:
        """Returns the notes of the last pass, by queue key. Reading 10,000 notes takes a tenth of a second."""
        try:
            mark = self._store.folder(layout.stats_path(self._store.root)).entry(_FILE).mark
        except FileNotFoundError:
            return {}
        loaded = self._loaded
        if loaded is None or loaded[0] != mark:
            self._loaded = loaded = mark, load(self._store, self._store.root)
        return loaded[1].notes


def load(store: Store, root: str) -> CompactionNotes:
    """Reads the notes of the last pass. Returns no notes if the file is missing or unreadable."""
    loaded = CompactionNotes()
    try:
        found = json.loads(store.folder(layout.stats_path(root)).read(_FILE))
        from_micros(found["ended_at"] or 0)  # Raises an error unless it is a valid instant.
        notes = {key: Note(**note) for key, note in found["notes"].items()}
        for note in notes.values():  # Raises TypeError if the columns of statistics differ.
            row, _ = note.row(note.at), note.rests(note.at)
            if not all(type(count) is int for count in (row.visible, row.in_flight, row.delayed, row.rewindable)):
                raise ValueError(f"the depth of {row.queue} has no numbers")
        loaded.ended_at, loaded.notes = found["ended_at"], notes
    except FileNotFoundError:
        pass
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        # The file is torn, or of another version of lakequeue.
        _log.warning("the compactor's notes of %s cannot be read: %s", root, first_line(error))
    return loaded


def save(store: Store, root: str, notes: CompactionNotes) -> None:
    """Replaces the notes, which are in the directory of the statistics table. The directory must exist."""
    store.folder(layout.stats_path(root)).replace(_FILE, json.dumps(attrs.asdict(notes)).encode())


def is_unchanged(store: Store, root: str, row: QueueRow, note: Note) -> bool:
    """True if the queue has no commits since the note, and no waiting bulk send."""
    if (row.attributes_version, row.shards) != (note.attributes_version, len(note.versions)):
        return False
    for shard, versions in enumerate(note.versions):
        for path, version in zip((layout.receipts_path, layout.messages_path), versions, strict=True):
            table = store.folder(path(root, row.key, shard))
            # Local logs are trimmed early, oldest entries first. If this entry is gone, a missing next entry
            # proves nothing.
            if table.local is not None and not has_entry(table, version):
                return False
            if has_entry(table, version + 1):
                return False
    return not has_manifests(store.folder(layout.tables_path(root, row.key)))
