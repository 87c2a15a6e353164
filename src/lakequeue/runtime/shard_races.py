"""Races of this process with others for commits to a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakequeue.errors import QueueServiceError
from lakequeue.storage.engines.commit import StaleAttributes

ATTEMPTS = 60
"""Lost races of one batch before its callers get RequestThrottled (ERR-9)."""


@contextmanager
def dropping(drop: Callable[[], None]) -> Iterator[None]:
    """Calls ``drop`` after an error or interrupt, which may leave handles in an inconsistent state."""
    try:
        yield
    except (QueueServiceError, StaleAttributes):
        raise  # an answer
    except BaseException:
        drop()
        raise
