"""Reasons for refused commits. Distinguishes storage failures from other errors."""

from __future__ import annotations

import json

from lakequeue.storage.snapshot import LogTrimmed

LIBRARIES = {"obstore", "pyarrow", "pyspark", "py4j"}
"""Packages whose exceptions count as storage failures."""


class LostRace(Exception):
    """Raised if another commit came first. Load the newest snapshot, and decide again."""


class StaleSnapshot(LostRace, FileNotFoundError):
    """Raised if files of the loaded snapshot no longer exist. Load the newest snapshot."""


class StaleAttributes(Exception):
    """Raised if the queue's attributes changed after the messages were validated. Validate them again."""


_FAILURES = (OSError, LostRace, LogTrimmed, json.JSONDecodeError, UnicodeDecodeError)
"""Exceptions from other modules that also count as storage failures."""


def is_storage_failure(error: Exception) -> bool:
    """True if storage or one of its libraries failed. False for errors of this package's own code."""
    if isinstance(error, _FAILURES):
        return True
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not packages.isdisjoint(LIBRARIES)
