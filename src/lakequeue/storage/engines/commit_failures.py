"""Reasons for refused commits. Also tells storage failures from other errors."""

from __future__ import annotations

import json

from lakequeue.storage.snapshot import LogTrimmed

LIBRARIES = {"obstore", "pyarrow", "pyspark", "py4j"}
"""Packages whose exceptions are storage failures."""


class LostRace(Exception):
    """Another commit came first. Reload, decide again, and repeat."""


class StaleSnapshot(LostRace, FileNotFoundError):
    """Files of the loaded snapshot are gone. Load the newest snapshot."""


class StaleAttributes(Exception):
    """The queue's attributes changed since messages were validated; validate again."""


_FAILURES = (OSError, LostRace, LogTrimmed, json.JSONDecodeError, UnicodeDecodeError)
"""Further types of storage failures: file errors, lost races, and unreadable logs."""


def is_storage_failure(error: Exception) -> bool:
    """True if storage or one of its libraries failed; False for errors of this package's own code."""
    if isinstance(error, _FAILURES):
        return True
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not packages.isdisjoint(LIBRARIES)
