"""Races of this process with others for the commits to a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from lakequeue.errors import QueueServiceError
from lakequeue.storage.engines.commit import StaleAttributes
from lakequeue.storage.engines.locks import LockHeld, committing

PATIENCE = 1
"""Lost races after which a batch keeps other committers out: a Spark commit takes a second to decide, and
would never get in between those of a busy point engine."""
ALONE_PATIENCE = 2.0
"""Seconds that it waits for that: another one may be stopped in a commit, and those go on together with it."""
ATTEMPTS = 60
"""Lost races of one batch before its callers get RequestThrottled (ERR-9)."""


@contextmanager
def dropping(drop: Callable[[], None]) -> Iterator[None]:
    """After an error or an interrupt at any line, lets go of the handles that it may have left half-way."""
    try:
        yield
    except (QueueServiceError, StaleAttributes):
        raise  # an answer
    except BaseException:
        drop()
        raise


def keep_others_out(stack: ExitStack, table_path: str) -> None:
    """Keeps other committers out until the stack ends, unless one of them is stopped."""
    with suppress(LockHeld):
        stack.enter_context(committing(table_path, exclusive=True, patience=ALONE_PATIENCE))
