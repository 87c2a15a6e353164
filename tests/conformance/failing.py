"""Storage that fails from a commit on, for tests of verbs that make several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakequeue.errors import LakeQueueError
from lakequeue.storage.folder import LocalFolder

CALLS = ("create", "entry", "files", "folders", "parquet", "read", "read_marked", "remove", "replace", "write")
"""What storage is asked for."""


class Failing:
    """Lets so many entries of logs be created, and fails the next one, or whatever follows them.

    Attributes:
        lasts: whether all calls fail from then on, until the verb ends.
        failed: whether any did.
    """

    def __init__(self, patch: pytest.MonkeyPatch, lasts: bool) -> None:
        self.left, self.failed, self.active, self.lasts = 0, False, False, lasts
        for name in CALLS:
            patch.setattr(LocalFolder, name, self._failing(name, getattr(LocalFolder, name)))

    def _failing(self, called: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def failing(folder: LocalFolder, *given: Any, **more: Any) -> Any:
            commits = called == "create" and given[0].startswith("_delta_log/")
            if self.active and self.left <= 0 and (self.lasts or (commits and not self.failed)):
                self.failed = True
                raise OSError(28, "No space left on device")
            self.left -= commits
            return original(folder, *given, **more)

        return failing

    def run(self, after: int, call: Callable[[], object]) -> LakeQueueError | None:
        """The error of a call whose commits fail once ``after`` of them were made."""
        self.left, self.failed, self.active = after, False, True
        try:
            call()
            return None
        except LakeQueueError as error:
            return error
        finally:
            self.active = False
