"""Which messages the files of a log hold: every row is looked at by its position, bodies are not read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import pyarrow as pa

from lakequeue.errors import DamagedTable
from lakequeue.storage.delta_log import LiveFile
from lakequeue.storage.folder import Folder
from lakequeue.storage.messages.read import Integers
from lakequeue.storage.store_failures import first_line

Range = tuple[int, int]
"""Offsets, both ends included."""


@attrs.frozen
class FoundFile:
    """A file of the log and the offsets of its rows."""

    file: LiveFile
    offsets: Integers = attrs.field(eq=False)
    """In the order of the rows; none if it cannot be read."""
    problem: str | None
    """None: it is what was written."""
    named: bool = True
    """Whether the log names it."""

    @property
    def first(self) -> int:
        return int(self.offsets[0])

    @property
    def last(self) -> int:
        return int(self.offsets[-1])


def find_files(folder: Folder, files: Sequence[LiveFile]) -> list[FoundFile]:
    """Reads the positions in the files of a log."""
    return folder.for_each(lambda file: _find(folder, file), files)


def _find(folder: Folder, file: LiveFile) -> FoundFile:
    nothing, base = np.array([], np.int64), file.partition.get("base_offset")
    if base is None:
        return FoundFile(file, nothing, "belongs to no segment; another program wrote it")
    try:
        size = folder.size(file.name)
        with folder.parquet(file.name, size) as parquet:
            offsets = parquet.read(["position"], use_threads=False)["position"].to_numpy() + base
    except FileNotFoundError:
        return FoundFile(file, nothing, "is missing")
    except DamagedTable as error:
        return FoundFile(file, nothing, "is empty" if size == 0 else error.reason)
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        return FoundFile(file, nothing, f"cannot be read: {first_line(error)}")
    problem: str | None = None
    bounds = [base + each["position"] for each in (file.minimum, file.maximum) if "position" in each]
    if len(offsets) != file.rows or len(offsets) == 0:
        problem = f"has {len(offsets)} rows instead of {file.rows}"
    elif size != file.size:
        problem = f"has {size} bytes instead of {file.size}"
    elif not np.array_equal(offsets, np.arange(offsets[0], offsets[0] + len(offsets))):
        problem = "does not hold its messages in order; another program wrote it"
    elif bounds != [offsets[0], offsets[-1]]:
        problem = "holds other messages than its log says; another program wrote it"
    return FoundFile(file, offsets, problem)


def kept_files(found: Iterable[FoundFile]) -> list[FoundFile]:
    """Sound files by offset of which none holds what another does: larger ones stay, of equal ones the newest."""
    kept: list[FoundFile] = []
    sound = [(each.first, -each.file.rows, -age, each) for age, each in enumerate(found) if each.problem is None]
    for *_, each in sorted(sound, key=lambda known: known[:3]):
        while kept and kept[-1].last >= each.first and kept[-1].file.rows < each.file.rows:
            kept.pop()
        if not kept or kept[-1].last < each.first:
            kept.append(each)
    return kept


def missing_ranges(present: Iterable[Range], low: int, end: int) -> list[Range]:
    """The offsets from ``low`` up to ``end`` that no range holds; ``present`` is sorted."""
    missing = []
    for first, last in present:
        if first > low:
            missing.append((low, min(first, end) - 1))
        low = max(low, last + 1)
    if low < end:
        missing.append((low, end - 1))
    return [each for each in missing if each[0] <= each[1]]


def ranges(offsets: Integers) -> list[Range]:
    """Sorted offsets as ranges."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    firsts = [int(offsets[0]), *offsets[breaks + 1].tolist()]
    lasts = [*offsets[breaks].tolist(), int(offsets[-1])]
    return list(zip(firsts, lasts, strict=True))


def shown(found: Sequence[Range]) -> str:
    """Ranges for people: ``offsets 3, 7 to 9``, at most five of them."""
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in found[:5]]
    more = [f"{len(found) - 5} more ranges"] if len(found) > 5 else []
    return ("offset " if parts == [str(found[0][0])] and not more else "offsets ") + ", ".join([*parts, *more])
