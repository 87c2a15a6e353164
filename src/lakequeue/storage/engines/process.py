"""Detects forks, because threads and connections of libraries do not survive a fork."""

from __future__ import annotations

import os

from lakequeue.errors import QueueClientError

_user: int | None = None


def note_use() -> None:
    global _user
    check()
    _user = os.getpid()


def check() -> None:
    """Raises QueueClientError if this process was forked from a process that had used storage before."""
    if _user not in (None, os.getpid()):
        raise QueueClientError(
            "lakequeue cannot be used after fork(), which this process came from: open LakeQueue in each worker "
            '(gunicorn: no --preload), or start workers with multiprocessing\'s "spawn" or "forkserver"'
        )
