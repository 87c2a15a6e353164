"""Reasons for refused commits. Distinguishes storage failures from other errors."""

from __future__ import annotations

import json

from lakequeue.storage.snapshot import LogTrimmed

LIBRARIES = {"obstore", "pyarrow", "pyspark", "py4j"}
"""Packages whose exceptions count as storage failures."""


class LostRace(Exception):
    """Raised if another commit came first. The caller decides again on the newest snapshot, and commits."""


class StaleSnapshot(LostRace, FileNotFoundError):
    """Raised if files of the loaded snapshot are gone. The caller loads the newest snapshot."""


class StaleAttributes(Exception):
    """Raised if the queue's attributes changed since messages were validated. The caller validates again."""


_FAILURES = (OSError, LostRace, LogTrimmed, json.JSONDecodeError, UnicodeDecodeError)
"""Further exceptions that count as storage failures: file errors, lost races, and unreadable logs."""


def is_storage_failure(error: Exception) -> bool:
    """True if storage or one of its libraries failed. False for errors of this package's own code."""
    if isinstance(error, _FAILURES):
        return True
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not packages.isdisjoint(LIBRARIES)
