"""One commit under a fence: checked, tagged with a token, and its outcome known for sure."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping

from lakequeue.errors import QueueClientError
from lakequeue.storage.engine import LostRace, StaleSnapshot, Table

_REPEATS = 30
"""Repeats of a commit that lost to commits which did not touch its fence (merges of segments)."""


class StaleAttributes(Exception):
    """The queue's attributes changed since messages were judged by them; judge anew."""


def commit(table: Table, fence: Mapping[str, int], attempt: Callable[[str], None]) -> bool:
    """Runs ``attempt(token)`` if the loaded snapshot is the one that the decision was made on.

    Args:
        table: the handle, locked by the caller from the decision until this returns.
        fence: application ids with the versions (0: never committed) that the decision saw.
        attempt: makes the commit; it must carry the fence's ids and the token.

    Returns:
        True if it is committed. False if the race is lost; the handle then holds the newest snapshot.

    Raises:
        QueueClientError: storage failed; ``outcome_unknown`` if even looking afterwards did.
    """
    token = uuid.uuid4().hex
    stale = 0
    for repeat in range(_REPEATS):
        # A handle that moved on since the decision would accept a stale commit: two messages, one offset.
        try:
            if not holds(table, fence):
                return False
        except StaleSnapshot:
            table.refresh()
            return False
        base = table.version
        try:
            attempt(token)
            return True
        except Exception as error:
            # A commit may land and still raise: post-commit work failed, or the answer was lost.
            if _landed(table, token, base, error):
                return True
            # files of an old snapshot may be gone by now; of the newest one they must not
            stale += isinstance(error, StaleSnapshot)
            if (stale > 1 or not isinstance(error, LostRace)) and holds(table, fence):
                raise QueueClientError(f"the commit to {table.path} failed: {first_line(error)}") from error
        back_off(repeat)
    return False


def holds(table: Table, fence: Mapping[str, int]) -> bool:
    """Whether the loaded snapshot has these versions of the application ids."""
    return all((table.transaction(app_id) or 0) == version for app_id, version in fence.items())


def back_off(attempt: int) -> None:
    """Sleeps a jittered moment that grows with the attempts, on machine time, at most 0.2 s."""
    time.sleep(random.uniform(0, min(0.2, 0.002 * 2 ** min(attempt, 7))))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for people."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _landed(table: Table, token: str, base: int, error: Exception) -> bool:
    try:
        table.refresh()
        return table.landed(token, base)
    except Exception as second:
        raise QueueClientError(
            f"the outcome of a commit to {table.path} is unknown ({first_line(error)}; "
            f"{first_line(second)}); repeating it is safe",
            outcome_unknown=True,
        ) from error
