"""Calls of several commits: if one fails after another succeeded, the error says that the call can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakequeue.errors import QueueClientError, QueueDoesNotExist
from lakequeue.storage.store_failures import first_line


class Steps:
    """The commits of one call, in sequence.

    Args:
        call: name of the call in errors.
    """

    def __init__(self, call: str) -> None:
        self._call = call
        self._done = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """One commit.

        Raises:
            QueueClientError: it failed after an earlier step succeeded; ``outcome_unknown`` is set.
        """
        try:
            yield
        except QueueDoesNotExist:
            raise
        except Exception as error:
            if not self._done:
                raise
            raise QueueClientError(
                f"{self._call} was done in part, then it failed: {first_line(error)}. Repeating it is safe",
                outcome_unknown=True,
            ) from error
        self._done += 1
