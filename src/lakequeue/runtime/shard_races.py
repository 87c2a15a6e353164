"""Races of this process with others for commits to a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from lakequeue.errors import QueueServiceError
from lakequeue.storage.engines.commit import StaleAttributes
from lakequeue.storage.engines.interface import Table
from lakequeue.storage.engines.locks import LockHeld, committing

PATIENCE = 1
"""Lost races after which a batch keeps other committers out: a Spark commit takes a second to decide and would
never win against a busy point engine."""
ALONE_PATIENCE = 2.0
"""Seconds to wait until others are kept out: a process may be stopped in a commit, and must not stop the rest."""
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


def keep_others_out(stack: ExitStack, table: Table) -> None:
    """Keeps other committers out until the stack ends, if this process commits through Spark.

    No other does: stopped there, it would keep the rest from committing.
    """
    if table.commits_alone:
        with suppress(LockHeld):
            stack.enter_context(committing(table.path, exclusive=True, patience=ALONE_PATIENCE))
