"""Requests to a shard's ledger on an object store. One process commits the requests of all processes.

A process that loses several races writes its request to a file. The process that wrote the oldest file commits all
waiting requests. The log entry of this commit has the answers and names the requests, so that no process applies a
request twice.

The file's name begins with the ledger version that the process knew, because only later entries can apply the
request. A request expires after ``VERSIONS`` ledger versions or ``RECENT`` seconds. Until then, another process
may apply the request, even if its own process no longer waits.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import attrs

from lakequeue.errors import QueueClientError
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import ListedFile
from lakequeue.storage.store_failures import failure_left_to_others, left_to_others

FOLDER = "asked"
"""Directory of the files of requests, below the table."""
VERSIONS = 60
"""Number of newer ledger versions after which a request expires."""
RECENT = 10.0
"""Seconds by the storage's clock after which a request expires."""
MOST = 100
"""Maximum number of requests of other processes in one commit. The rest must wait for the next commit."""
LOOKS = 8
"""After this number of reads of an unchanged log, a process no longer waits for the sender of an older request."""
SURE = 0.7
"""If the log was not checked for this number of seconds, ``look_and_list`` checks that it was not replaced."""
FIRST = 2
"""Number of new commits that ``look_and_list`` reads at the same time."""
LATELY = 2.0
"""If the log was not checked for this number of seconds, ``look_and_list`` reads all new commits."""
_NAME = re.compile(rf"{FOLDER}/(\d{{20}})-([0-9a-f]{{32}})\.json", re.ASCII)


@attrs.frozen
class PostedRequest:
    """A request that this process has posted. Any process may commit the request."""

    id: str
    since: int
    """Version of the ledger that this process knew when it made the request."""
    posted_at: float
    lineage: object
    """Lineage of the ledger for which the request was posted. See ``Table.lineage``."""

    @property
    def name(self) -> str:
        return f"{_begin(self.since)}-{self.id}.json"


@attrs.frozen
class WaitingRequest:
    """A request of another process, parsed from the name of the request's file."""

    name: str
    since: int
    id: str


def post(table: Table, text: Callable[[str | None], str], last: PostedRequest | None = None) -> PostedRequest:
    """Writes a request to a file, and removes the file of the request ``last``.

    Calls ``text`` with the newest entry's token to get the request's content.

    Raises:
        QueueClientError: the write failed, but other processes may find the file; ``outcome_unknown`` is set.
    """
    posted = PostedRequest(uuid.uuid4().hex, table.version, time.time(), table.lineage)

    def write() -> None:
        table.folder.write(posted.name, text(table.state.token).encode())

    def remove() -> None:
        if last is not None:
            with suppress(Exception):  # the compactor removes it
                table.folder.discard(last.name)

    try:
        table.folder.for_each(lambda call: call(), [write, *([remove] if last else [])])
    except Exception as error:
        raise unknown(error) from error
    return posted


def look(table: Table, posted: PostedRequest, most: float = math.inf) -> list[ListedFile]:
    """Loads up to ``most`` new commits of the ledger. Meanwhile lists the posted requests, and returns them."""
    after = _begin(max(0, min(posted.since, table.version - VERSIONS)))
    return look_and_list(table, most, lambda: table.folder.files(FOLDER, after))


def look_and_list(table: Table, most: float, files: Callable[[], Iterable[ListedFile]]) -> list[ListedFile]:
    """Loads up to ``most`` new commits, and calls ``files`` at the same time. Returns the files.

    Reads ``FIRST`` commits concurrently. Reads further commits only if a file was posted at a newer version, or if
    the log was not checked for ``LATELY`` seconds.
    """
    found: list[ListedFile] = []
    before, seconds = table.version, abs(time.time() - table.state.confirmed_at)
    follow, first = table.confirm if seconds >= SURE else table.look, 1 if most == 1 else FIRST
    calls: list[Callable[[], None]] = [partial(follow, first, first), lambda: found.extend(files())]
    table.folder.for_each(lambda call: call(), calls)
    behind = seconds >= LATELY or any(_since(each.name) > table.version for each in found)
    if first < most and table.version >= before + first and behind:
        table.look(most)
    return found


def _since(name: str) -> int:
    """Returns the log version in the name of a posted file. Returns -1 if the name has no version."""
    match = re.search(r"/(\d{20})-", name, re.ASCII)
    return -1 if match is None else int(match[1])


@attrs.define
class TurnWait:
    """The wait of a process until its file is committed, or until this process must commit.

    After each entry, the process with the oldest file lists all files and commits them in the next entry. So once
    a process has read an entry after posting, the next entry probably has its file: until then, it lists no files.
    """

    lists: bool = True
    """True if the next read of the log must also list files."""
    looks: int = 0
    """Number of reads since the last new entry, including the read that found the entry."""
    _seen: bool = False

    def is_over(self, new: bool, oldest: bool, began: float) -> bool:
        """True if this process must commit. Otherwise pauses, unless the files must be listed at once.

        Args:
            new: True if the last read found a new entry.
            oldest: True if the last list had no request file older than the file of this process.
            began: see ``pause``.
        """
        self.looks, self._seen = 1 if new else self.looks + 1, self._seen or new
        if (oldest and self.lists) or self.looks > LOOKS:
            return True
        self.lists = new if not self.lists else not self._seen
        if not (self.lists and self._seen):
            pause(began)
        return False


def pause(began: float) -> None:
    """Pauses before the next read of the log. ``began`` is the start of the last read, in monotonic seconds."""
    time.sleep(min(0.05, (time.monotonic() - began) / 4))


def answers(table: Table, posted: PostedRequest) -> Mapping[str, Any]:
    """Returns the answers of all commits since ``posted`` was posted, by request id.

    Raises QueueClientError if the log was replaced or lacks commits; ``outcome_unknown`` is set.
    """
    if table.lineage is not posted.lineage:
        raise unknown("the log is another one")
    try:
        return table.state.answers_since(posted.since)
    except FileNotFoundError as error:
        raise unknown("too much happened since") from error


def fitting(table: Table, posted: PostedRequest, listed: list[ListedFile]) -> list[WaitingRequest]:
    """Returns the requests of other processes that a commit may apply, oldest first. Returns no requests if
    ``listed`` lacks ``posted``, or if ``posted`` has expired.
    """
    known = table.version - len(table.state.latest)
    after = max(known, table.version - VERSIONS)
    mine = next((each.modified for each in listed if each.name == posted.name), None)
    if mine is None or abs(time.time() - posted.posted_at) > RECENT:
        return []
    named = {id for entry in table.state.latest.values() for id in entry.answers}
    found = []
    for each in listed:
        match = _NAME.fullmatch(each.name)
        if match is None or each.name == posted.name or match[2] in named or mine - each.modified > RECENT:
            continue
        if after <= int(match[1]) <= table.version:
            found.append(WaitingRequest(each.name, int(match[1]), match[2]))
    return sorted(found, key=lambda each: each.name)[:MOST]


def is_of(table: Table, waiting: WaitingRequest, token: str | None) -> bool:
    """True if a request was written for this log, which must have an entry with the request's ``token``."""
    entry = table.state.latest.get(waiting.since)
    known = table.state.token if entry is None and waiting.since == table.version else entry and entry.token
    return token is not None and known == token


def _begin(version: int) -> str:
    """Returns the first part of the file names of requests that were posted at this ledger version."""
    return f"{FOLDER}/{version:020}"


def unknown(reason: object) -> QueueClientError:
    """Returns the error for a process that stops waiting for its request, which others may still commit."""
    return left_to_others("call", "request", reason)


def failure(error: Exception) -> Exception:
    """Returns the error for a failed call, whose request other processes may still commit."""
    return failure_left_to_others(error, unknown)
