"""Which errors are failures of storage: those that its libraries raise, by their types."""

from __future__ import annotations

import json

from lakequeue.storage.engines.interface import LostRace
from lakequeue.storage.snapshot import LogTrimmed

LIBRARIES = {"obstore", "pyarrow", "pyspark", "py4j"}
"""Packages whose own exceptions are failures of storage."""
_TYPES = (OSError, LostRace, LogTrimmed, json.JSONDecodeError, UnicodeDecodeError)
"""Other types of failures: of files, of races, and of a log that cannot be read."""


def is_storage_failure(error: Exception) -> bool:
    """Whether storage or one of its libraries failed; an error of this package's own code is none."""
    if isinstance(error, _TYPES):
        return True
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not packages.isdisjoint(LIBRARIES)
