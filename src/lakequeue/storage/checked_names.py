"""Checks names that were read from storage. No path may leave its table or the root (DUR-70)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from lakequeue.model.names import name_hash

LONGEST = 1024
"""Maximum characters of a name, as in S3. Longer names are refused."""
MOST_SHARDS = 1_024
SHOWN = 60
"""Maximum characters of a refused name that an error text shows."""

# Allows names by this package, delta-rs and Spark, which encode unusual characters in partition values. Names of
# data files never begin with "_" or ".", as names of logs, locks and lists do.
_PART = r"(?!\.\.?(?:/|\Z))[\w.=+ %-]{1,255}"
_FILE = re.compile(rf"(?![_.]){_PART}(?:/{_PART})*", re.ASCII)
# Encoded dots, slashes and NULs, which a reader might decode a second time.
_HIDDEN = re.compile("%(?:2e|2f|5c|00)", re.IGNORECASE)
_INCARNATION = re.compile("[0-9a-f]{8}")
_SHARD = re.compile("0|[1-9][0-9]{0,4}", re.ASCII)


class Misplaced(ValueError):
    """Raised if a name that was read from storage is invalid, or leads out of its table."""


def file_below(name: object, *, encoded: bool = False) -> str:
    """Checks the path of a data file that a log or a manifest names. Returns the path, relative to the table.

    Args:
        name: the name as found. Must be relative, of plain characters, without ``..``.
        encoded: True to decode the name once, as in Delta logs, before the check.

    Raises:
        Misplaced: the path leaves the table or is invalid.
    """
    found = unquote(name) if encoded and isinstance(name, str) else name
    if not isinstance(found, str) or len(found) > LONGEST or not _FILE.fullmatch(found) or _HIDDEN.search(found):
        raise Misplaced(f"names {shown(name)}, which is not a file below its table")
    return found


def queue_folder(key: object, region: object, name: object) -> str:
    """Returns a queue's key, which is also the name of its directory.

    Raises Misplaced if the key is invalid, or belongs to another region or queue name.
    """
    if isinstance(key, str) and isinstance(region, str) and isinstance(name, str):
        expected, _, incarnation = key.partition("-")
        if expected == name_hash(region, name) and _INCARNATION.fullmatch(incarnation):
            return key
    raise Misplaced(f"has a queue {shown(name)} in {shown(region)} with the key {shown(key)}")


def shard_count(found: object) -> int:
    """Returns the shard count of a catalog row. Raises Misplaced unless it is from 1 to ``MOST_SHARDS``."""
    if isinstance(found, int) and 1 <= found <= MOST_SHARDS:
        return found
    raise Misplaced(f"has a queue of {shown(found)} shards")


def shard_folders(names: Iterable[str]) -> list[int]:
    """Returns the shard numbers among the directory names of a queue, in order."""
    return sorted(int(name) for name in names if _SHARD.fullmatch(name))


def shown(found: object) -> str:
    """Quotes a value from storage for an error text, in one line of limited length."""
    text = ascii(found if not isinstance(found, (str, bytes)) else found[: SHOWN + 1])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
