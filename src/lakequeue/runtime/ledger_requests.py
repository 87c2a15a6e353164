"""Requests of this process to a shard's ledger. Any process may commit a request. See ``storage.requests``."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs

from lakequeue.shard.commands import Claim, Command, Result
from lakequeue.shard.texts import FORMAT, decoded, encoded, from_text, has_text, result_of, to_text
from lakequeue.storage import layout, requests
from lakequeue.storage.engines import turns
from lakequeue.storage.engines.point import Table
from lakequeue.storage.requests import PostedRequest, WaitingRequest
from lakequeue.storage.roots import local_path
from lakequeue.storage.store_failures import first_line

ROUNDS = 16
"""Number of calls that this process posts as requests after it saw other processes commit."""
LOSS, MOST_STRAIN = 8, 16
"""A lost race adds ``LOSS`` to a sum, a commit subtracts 1. At ``MOST_STRAIN``, calls begin to post requests."""
_ATTRIBUTES = "attributes"
"""The JSON of ``answers`` stores the version of the queue's attributes under this key."""

_log = logging.getLogger("lakequeue")
_T = TypeVar("_T")


@attrs.frozen
class CommonCommit:
    """Requests of other processes (id and commands, oldest first) that this process must commit with its own."""

    others: Sequence[tuple[str, Sequence[Command]]]


class OthersMet(Exception):
    """Raised when a call has lost a race, and must post its commands as a request."""


class LedgerRequests:
    """Posts the commands of this process as requests, and waits until a request is committed. Not thread-safe."""

    def __init__(self, path: str, commits_alone: bool) -> None:
        self.possible = local_path(path) is None and not commits_alone
        self._rounds = self._strain = 0
        self._last: PostedRequest | None = None
        self._asked: int | None = None
        self.turns = turns.Turns()
        """Turns to commit. ``moved`` is True if other processes commit here, too: another shard may be better."""
        self.dry = False
        """True if the last claim got fewer messages than it asked for."""
        self.attributes_version = 0
        """Version of the queue's attributes when another process last committed a request of this process."""

    def meet(self) -> None:
        """Records that other processes commit to this ledger. The next calls are posted as requests."""
        self._rounds, self._strain, self.turns.moved = ROUNDS, 0, True

    def won(self) -> None:
        """Records a commit that contained no requests and lost no race."""
        self._strain = max(0, self._strain - 1)

    def lost(self, table: Table, commands: Sequence[Command]) -> None:
        """Records a lost race. After many lost races, raises OthersMet, so that the commands become a request."""
        self._strain += LOSS
        if self._strain >= MOST_STRAIN and self.may_take(commands):
            self.meet()
            if not self.dry:
                self.ask(table)
            raise OthersMet

    def ask(self, table: Table) -> None:
        """Asks the winner of a race to post requests from now on. Asks nothing if its commit answered requests."""
        # a process without requests commits faster: it won all races for 7 s, at 100 ms per storage call
        newest = table.state.latest.get(table.version)
        if newest is not None and not newest.answers and layout.TURN_ID not in newest.transactions:
            self._asked = turns.ask(table)

    def heed(self, table: Table) -> None:
        """Calls ``meet`` if another process has called ``ask`` since the last call of ``heed``."""
        known, self._asked = self._asked, table.transaction(layout.TURN_ID)
        if known not in (None, self._asked):
            self.meet()

    @property
    def wanted(self) -> bool:
        """True if this process posts its commands as requests, because it recently met other processes."""
        return self._rounds > 0

    def takes(self, commands: Sequence[Command]) -> bool:
        """True if the commands should be posted. False for claims if the last claim got too few messages."""
        futile = self.dry and all(isinstance(command, Claim) for command in commands)
        return self.wanted and not futile and self.may_take(commands)

    def may_take(self, commands: Sequence[Command]) -> bool:
        """True if the ledger is on an object store, and a request can contain these commands as text."""
        return self.possible and all(map(has_text, commands))

    def note(self, commands: Sequence[Command], results: Sequence[Result]) -> None:
        """Sets ``dry``: True if a claim got fewer messages than it asked for, otherwise False."""
        self.dry = any(
            isinstance(command, Claim)
            and (result.error is not None or result.value.message_count < command.max_messages)
            for command, result in zip(commands, results, strict=True)
        )

    def post(self, table: Table, commands: Sequence[Command]) -> PostedRequest:
        """Writes a request, and removes this process's previous request; see ``requests.post``."""
        last, self._last = self._last, None
        self._last = requests.post(table, lambda token: to_text([FORMAT, token, commands]), last)
        return self._last

    def turn(self, table: Table, posted: PostedRequest, read: Callable[[], object]) -> CommonCommit | list[Result]:
        """Waits until another process has committed the request ``posted``, or this process must commit it.
        Returns the results of the committed request, or a ``CommonCommit`` to commit.

        Args:
            table: the ledger, with its newest version loaded.
            read: reads the data that the commit needs, while other processes' requests are read.
        """
        wait, met = requests.TurnWait(), False
        while True:
            version, began, first = table.version, time.monotonic(), not wait.looks
            if wait.lists:
                listed = requests.look(table, posted, math.inf if first else 1)
            else:
                table.look(1)
            told = requests.answers(table, posted)
            if posted.id in told:
                self.meet()
                self.attributes_version = told[_ATTRIBUTES]
                return [*map(result_of, decoded(told[posted.id]))]
            others, new = requests.fitting(table, posted, listed), table.version > version
            met = met or (new and not first)
            if wait.is_over(new, not others or posted.name < others[0].name, began):
                break
        if others or met:
            self.meet()
        else:
            self._rounds -= 1
            self.turns.moved = False
        reads: list[Callable[[], Any]] = [read, *(partial(_commands, table, each) for each in others)]
        _, *found = table.folder.for_each(_called, reads)
        return CommonCommit(
            [(each.id, commands) for each, commands in zip(others, found, strict=True) if commands]
        )


def answers(asked: Sequence[tuple[str, int]], results: Sequence[Result], attributes_version: int) -> str:
    """Returns the answers to requests as JSON for a log entry. ``asked`` is as in ``CommandCommit``."""
    told, place = {_ATTRIBUTES: encoded(attributes_version)}, 0
    for id, count in asked:
        told[id] = encoded(results[place : place + count])
        place += count
    return json.dumps(told, separators=(",", ":"))


def _commands(table: Table, waiting: WaitingRequest) -> Sequence[Command]:
    """Returns the commands of a request. Empty if the request is unreadable, or if the ledger was restored."""
    try:
        written, token, commands = from_text(table.folder.read(waiting.name))
        if written == FORMAT and requests.is_of(table, waiting, token) and all(map(has_text, commands)):
            return list(commands)
    except Exception as error:
        _log.warning("a request to %s cannot be read: %s", table.path, first_line(error))
    return []


def _called(read: Callable[[], _T]) -> _T:
    return read()
