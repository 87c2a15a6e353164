"""Commands to a shard's ledger that share a commit."""

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
    """Number of the oldest usable read by ``look_at``. Infinity: no read is recent enough."""


@attrs.frozen
class CommandCommit:
    """Commands that go into one commit."""

    commands: Sequence[Command]
    now: Now
    wanted: int
    """Number of messages that the claims ask for."""
    whole: bool
    """True if a command applies to all messages, as a purge does."""
    rewrite: bool
    looked: bool
    """True if the last ``look_at`` is recent enough for all commands."""
    asked: Sequence[tuple[str, int]] = ()
    """For each request that contributes commands: its id, and the number of its commands."""

    @classmethod
    def of(cls, groups: Sequence[PendingCommands], looked: float) -> CommandCommit:
        """Collects the commands of several calls. ``looked``: number of the last read by ``look_at``."""
        commands = [command for group in groups for command in group.commands]
        wanted = sum(command.max_messages for command in commands if isinstance(command, Claim))
        whole = any(isinstance(command, (Purge, SetAttributes, Expire)) for command in commands)
        rewrite = any(isinstance(command, Rewrite) for command in commands)
        new = looked >= max(group.look for group in groups)
        return cls(commands, lambda: max(group.now() for group in groups), wanted, whole, rewrite, new)

    def with_others(self, posted: PostedRequest, commit: CommonCommit) -> CommandCommit:
        """Returns the commands of ``posted``, then those of other processes. Call it after reading the shard."""
        groups = [(posted.id, self.commands), *commit.others]
        commands = [command for _, group in groups for command in group]
        asked = [(id, len(group)) for id, group in groups]
        return attrs.evolve(self, commands=commands, looked=True, asked=asked)
