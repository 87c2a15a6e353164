"""The rate limit of a queue with several shards (JOB-11). The limit has one bucket, in the ledger of shard 0.

A receive takes tokens by a commit to shard 0. With these tokens, the receive claims messages of another shard.
Unused tokens go back to the bucket. Each received message costs one token.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf

import attrs

from lakequeue.errors import RequestThrottled
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard, look_at
from lakequeue.shard.commands import Charge, Claim, Result

_UNLIMITED = 2**31


@attrs.define
class Tokens:
    """The rate limit's tokens that a receive takes. Reads the bucket only once."""

    _queue: OpenQueue
    _left: int = 0
    _read: bool = False
    look: float = attrs.field(default=inf, init=False)
    """Number that ``look_at`` returned for this receive's read of the shards; infinity before the read."""

    def may_be_left(self) -> bool:
        """False if the bucket is empty. True without a rate limit, or if only the claim reads the bucket."""
        shards = self._queue.shards
        if self._queue.attributes.pace is None or len(shards) == 1:
            return True
        known = shards[0].ledger.known_tokens(self._queue.now())
        self.look = inf if known == 0 else look_at(shards)
        left = self.read()
        if left and known == 0:
            self.look = look_at(shards)
        return left

    @property
    def spent(self) -> bool:
        """True if the bucket was read and is empty."""
        return self._read and self._left == 0

    def claim(self, shard: OpenShard, command: Claim, claim: Callable[[Claim], Result]) -> Result:
        """Takes tokens for messages of a shard, then calls the function ``claim`` for that number of messages."""
        if not shard.number:  # the claim charges the bucket in its own commit
            return self._counted(claim(command))
        paid = 0
        if self._left:
            now = self._queue.now()
            paid = self._charged(shard.ledger.query(lambda machine: machine.quote(command, now), self.look))
        try:
            result = claim(attrs.evolve(command, tokens=paid))
            if not paid and result.error is None and result.value.unpaid and self._may_pay():
                paid = self._charged(result.value.unpaid)
                result = claim(attrs.evolve(command, tokens=paid))
        except RequestThrottled:  # nothing was claimed
            self._give_back(paid)
            raise
        self._give_back(paid and paid - (0 if result.error else result.value.message_count))
        return self._counted(result)

    def _may_pay(self) -> bool:
        return self._left > 0 if self._read else self.read()

    def _give_back(self, unused: int) -> None:
        if unused:
            with suppress(Exception):  # an error would hide claimed messages; lost tokens only delay others
                self._charge(-unused)

    def _counted(self, result: Result) -> Result:
        if result.error is None:
            self._left = max(0, self._left - result.value.message_count)
        return result

    def read(self) -> bool:
        """Reads the bucket from the ledger of shard 0. Returns True if the bucket has tokens."""
        self._read, now = True, self._queue.now()
        left = self._queue.shards[0].ledger.query(lambda machine: machine.tokens(now), self.look)
        self._left = _UNLIMITED if left is None else left
        return self._left > 0

    def _charged(self, count: int) -> int:
        wanted = min(count, self._left)
        paid = self._charge(wanted) if wanted else 0
        if paid < wanted:
            self._left = paid
        return paid

    def _charge(self, count: int) -> int:
        paid: int = self._queue.command(self._queue.shards[0], Charge(count))
        return paid
