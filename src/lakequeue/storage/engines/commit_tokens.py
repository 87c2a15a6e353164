"""Tokens of commits. If the log has a commit's token, the commit has landed. Tokens also record lost races."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

from lakequeue.storage.delta_log import read_entry
from lakequeue.storage.folder import Folder

_LOST = "lost_races"
"""Field of a token. Its value is the number of races that were lost before the commit."""


def new_token(counts: Mapping[str, int], lost: int) -> str:
    """Returns a new token for a commit. The token has the numbers of changed messages and of lost races."""
    return json.dumps({**counts, _LOST: lost, "commit": uuid.uuid4().hex})


def lost_races(folder: Folder, version: int, most: int) -> tuple[int, int]:
    """Reads the tokens of the last ``most`` versions. Returns the number of versions that the log still has, and
    the number of races that their commits have lost in total.
    """

    def lost(number: int) -> int | None:
        try:
            races = json.loads(read_entry(folder, number).token or "")[_LOST]
        except FileNotFoundError:  # trimmed
            return None
        except (ValueError, TypeError, KeyError):  # a token of a creation or repair, or of an earlier release
            return 0
        return races if isinstance(races, int) else 0

    found = folder.for_each(lost, range(max(0, version - most + 1), version + 1))
    known = [races for races in found if races is not None]
    return len(known), sum(known)
