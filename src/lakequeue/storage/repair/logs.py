"""Makes a log readable again. Replaces each unreadable entry by an entry that changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import attrs

from lakequeue.storage.delta_log import LOG, REPAIRED, checkpoint_name, entry_name, obstacles
from lakequeue.storage.engines import entries
from lakequeue.storage.engines.log_trimming import version_of
from lakequeue.storage.engines.point import Engine
from lakequeue.storage.folder import Folder
from lakequeue.storage.inspection.found_log import FoundLog
from lakequeue.storage.parquet_files import ANY
from lakequeue.storage.repair.steps import RepairStep, moved_aside, replaced


@attrs.frozen
class Undone:
    """A log without the table features that another program enabled, and the versions that had these features."""

    log: FoundLog
    versions: list[int]
    """Versions whose entries have unknown features or properties. A repair removes these from the entries."""
    checkpoints: list[int]
    """Versions whose checkpoints have unknown features or properties. A repair moves these checkpoints aside."""


def without_features(log: FoundLog) -> Undone:
    """Returns the log without the features and properties that lakequeue does not know."""
    versions = sorted(version for version, entry in log.entries.items() if version and obstacles(entry))
    there = sorted(version for version, each in log.checkpoints.items() if obstacles(each))
    entries_ = {
        version: attrs.evolve(entry, metadata=None, protocol=None) if version in versions else entry
        for version, entry in log.entries.items()
    }
    checkpoints = {version: each for version, each in log.checkpoints.items() if version not in there}
    return Undone(attrs.evolve(log, entries=entries_, checkpoints=checkpoints), versions, there)


def has_deleted_rows(undone: Undone) -> bool:
    """True if another program has deleted rows by deletion vectors. A repair brings these rows back."""
    log, since = undone.log, min(undone.versions, default=undone.log.last + 1)
    entries = (log.folder.read(entry_name(version)) for version in log.entries if version >= since)
    if any(b'"deletionVector":{' in data.replace(b" ", b"") for data in entries):
        return True
    for name in map(checkpoint_name, undone.checkpoints):
        with log.folder.parquet(name, log.folder.entry(name).size, ANY) as parquet:
            added = parquet.read(["add"], use_threads=False)["add"].drop_null().to_pylist()
        if any(each.get("deletionVector") for each in added):
            return True
    return False


def log_steps(undone: Undone, barrier: Mapping[str, int]) -> Iterator[RepairStep]:
    """Yields the steps that make the log readable. Entries that replace unreadable entries set the application ids
    ``barrier``. Commits that were decided before the repair then fail.
    """
    log, folder = undone.log, undone.log.folder
    for version in undone.versions:
        data = _without_settings(folder.read(entry_name(version)))
        yield replaced(folder, entry_name(version), data, "has features of another program")
    for version in undone.checkpoints:
        yield moved_aside(folder, checkpoint_name(version), "has features of another program")
    bad = [(file, problem) for file, problem in sorted(log.problems.items()) if "checkpoint" in file]
    for file, problem in bad:
        yield moved_aside(folder, file, problem)
    if bad or undone.checkpoints:
        yield moved_aside(folder, f"{LOG}/_last_checkpoint", "names a checkpoint that is moved aside")
    start, needed = log.start, log.unreadable
    assert start is not None
    blank = entries.encoded(entries.entry("REPAIR", [], [], barrier, REPAIRED))
    # Replaces the first unreadable entry last. Until then no reader gets beyond it.
    for version in reversed(needed):
        yield replaced(folder, entry_name(version), blank, log.problems.get(entry_name(version), "is missing"))
    for name in log.strays:
        yield moved_aside(folder, name, log.problems[name])
    old = max((version for version in map(version_of, log.problems) if version < start), default=-1)
    if old >= 0:
        yield RepairStep(f"moves files older than version {old + 1} aside", lambda: _move_older(folder, old))


def checkpoint_step(engine: Engine, path: str) -> RepairStep:
    return RepairStep("writes a checkpoint", lambda: engine.open(path).checkpoint())


def _move_older(folder: Folder, last: int) -> None:
    for version, name in sorted((version_of(file.name), file.name) for file in folder.files(LOG)):
        if 0 <= version <= last:
            moved_aside(folder, name, "").apply()


def _without_settings(data: bytes) -> bytes:
    actions = [json.loads(line) for line in data.splitlines()]
    kept = [action for action in actions if not {"protocol", "metaData"} & action.keys()]
    return "".join(f"{json.dumps(action)}\n" for action in kept).encode() or entries.encoded(
        entries.entry("REPAIR", [], [], {}, REPAIRED)
    )
