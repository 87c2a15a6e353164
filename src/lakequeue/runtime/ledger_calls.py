"""Collects commands to a shard's ledger into one commit."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import attrs

from lakequeue.runtime.ledger_requests import CommonCommit
from lakequeue.runtime.shard_table import Now
from lakequeue.shard.commands import Claim, Command, Expire, Purge, Rewrite, SetAttributes
from lakequeue.storage.requests import PostedRequest


@attrs.frozen
class PendingCommands:
    commands: Sequence[Command]
    now: Now
    look: float = inf
    """Number of the oldest ``look_at`` read that the commands may rely on; infinity if they need a new read."""


@attrs.frozen
class CommandCommit:
    """Commands of several calls that go into one commit."""

    commands: Sequence[Command]
    now: Now
    wanted: int
    """Number of messages that the claims among the commands ask for."""
    whole: bool
    """True if a command applies to all messages, as a purge does."""
    rewrite: bool
    looked: bool
    """True if the last read by ``look_at`` is recent enough for all commands."""
    asked: Sequence[tuple[str, int]] = ()
    """Requests that contribute commands: the id of each request, and the number of its commands."""

    @classmethod
    def of(cls, groups: Sequence[PendingCommands], looked: float) -> CommandCommit:
        """Collects the commands of several calls. ``looked`` is the number of the last ``look_at`` read."""
        commands = [command for group in groups for command in group.commands]
        wanted = sum(command.max_messages for command in commands if isinstance(command, Claim))
        whole = any(isinstance(command, (Purge, SetAttributes, Expire)) for command in commands)
        rewrite = any(isinstance(command, Rewrite) for command in commands)
        new = looked >= max(group.look for group in groups)
        return cls(commands, lambda: max(group.now() for group in groups), wanted, whole, rewrite, new)

    def with_others(self, posted: PostedRequest, commit: CommonCommit) -> CommandCommit:
        """Adds other processes' commands to a copy of this commit. The caller must have read the shard before."""
        groups = [(posted.id, self.commands), *commit.others]
        commands = [command for _, group in groups for command in group]
        asked = [(id, len(group)) for id, group in groups]
        return attrs.evolve(self, commands=commands, looked=True, asked=asked)
