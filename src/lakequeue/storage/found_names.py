"""Names found in storage, parsed into paths: nothing that a root says leads out of its table, or of the root.

Whoever may write a root chooses the names in its logs, manifests and catalog, and every verb joins them to the
paths of its user. So they are parsed here, where they are read, and joined nowhere else (DUR-70).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from lakequeue.model.names import name_hash

LONGEST = 1024
"""Bytes of a name, as in a key of S3."""
MOST_SHARDS = 1_024
SHOWN = 60
"""Characters of a refused name in an error."""

# Names of this package, of delta-rs and of Spark, which encode what is unusual in values of partitions.
# No data file begins with "_" or ".", as logs, locks and lists do.
_PART = r"(?!\.\.?(?:/|\Z))[\w.=+ %-]{1,255}"
_FILE = re.compile(rf"(?![_.]){_PART}(?:/{_PART})*", re.ASCII)
_HIDDEN = re.compile("%(?:2e|2f|5c|00)", re.IGNORECASE)  # of dots and slashes: somebody might decode it again
_INCARNATION = re.compile("[0-9a-f]{8}")
_SHARD = re.compile("0|[1-9][0-9]{0,4}", re.ASCII)


class Misplaced(ValueError):
    """A name that storage gave leads elsewhere, or nowhere; the text is one line."""


def file_below(name: object, *, encoded: bool = False) -> str:
    """The path of a data file below its table, from a log or a manifest.

    Args:
        name: what was found: relative, of plain characters, without ``..``.
        encoded: whether it is URL-encoded, as in logs of Delta; it is decoded once, before it is judged.

    Raises:
        Misplaced: it is none.
    """
    found = unquote(name) if encoded and isinstance(name, str) else name
    if not isinstance(found, str) or len(found) > LONGEST or not _FILE.fullmatch(found) or _HIDDEN.search(found):
        raise Misplaced(f"names {shown(name)}, which is no file below its table")
    return found


def queue_folder(key: object, region: object, name: object) -> str:
    """The directory of a queue below ``q``, from its row in the catalog.

    Raises:
        Misplaced: the key is not one of this region and name.
    """
    if isinstance(key, str) and isinstance(region, str) and isinstance(name, str):
        expected, _, incarnation = key.partition("-")
        if expected == name_hash(region, name) and _INCARNATION.fullmatch(incarnation):
            return key
    raise Misplaced(f"has a queue {shown(name)} in {shown(region)} with the key {shown(key)}")


def shard_count(found: object) -> int:
    """The number of shards of a queue, from its row.

    Raises:
        Misplaced: no queue has so many.
    """
    if isinstance(found, int) and 1 <= found <= MOST_SHARDS:
        return found
    raise Misplaced(f"has a queue of {shown(found)} shards")


def shard_folders(names: Iterable[str]) -> list[int]:
    """The numbers of the shards among the directories of a queue."""
    return sorted(int(name) for name in names if _SHARD.fullmatch(name))


def shown(found: object) -> str:
    """What was found, in quotes, in one line, cut."""
    text = ascii(found if not isinstance(found, (str, bytes)) else found[: SHOWN + 1])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
