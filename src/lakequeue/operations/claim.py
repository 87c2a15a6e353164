"""Claims messages from the shards of a queue under one lease."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import NamedTuple

import attrs

from lakequeue.errors import LakeQueueError, OverLimit
from lakequeue.operations.move import DeadLetterMoves
from lakequeue.operations.settle import Settling
from lakequeue.operations.tokens import Tokens
from lakequeue.operations.undecided import decide_found
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard, in_home_order, look_at
from lakequeue.shard.commands import Claim, ClaimResult, Result
from lakequeue.storage.engines.commit_failures import is_storage_failure


class ClaimedPart(NamedTuple):
    shard: OpenShard
    claimed: ClaimResult

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(span.first, span.last) for span in self.claimed.spans]


@attrs.define
class FreeHands:
    """Number of free handlers. ``passed`` counts messages that a claim skipped for lack of a free handler."""

    free: Callable[[], int]
    passed: int = 0


@attrs.define
class ClaimPlan:
    """Claims messages under one lease, one shard after the other. Usually begins at the home shard."""

    queue: OpenQueue
    wanted: Claim
    """The claim for all shards together. Each shard is asked only for the messages that are still missing."""
    enough: int = 0
    """If this many messages were claimed, no further shard is asked. 0 stands for ``wanted.max_messages``."""
    hands: FreeHands | None = None
    settling: Settling | None = None
    """Receipts to settle in the same commits as the claims."""
    decides: bool = True
    """True if this claim may decide undecided deliveries. A decision may write to the delivery table."""
    steps: Steps = attrs.field(factory=lambda: Steps("the receive"))
    """Counts commits that move dead letters. If the receive fails after such a commit, its outcome is unknown."""
    left_nothing: bool = attrs.field(default=False, init=False)
    """True if the claim found no message in any shard. Another process would then find no message, either."""
    _parts: list[ClaimedPart] = attrs.field(factory=list, init=False)
    _taken: int = attrs.field(default=0, init=False)
    _free: int | None = attrs.field(default=None, init=False)

    def run(self) -> tuple[list[ClaimedPart], OverLimit | None]:
        """Claims messages. Returns the claims by shard, and the OverLimit error if a shard raised it, or None."""
        refusal, tokens = None, Tokens(self.queue)
        if self.wanted.attempt_id is None and not tokens.may_be_left():
            return [], refusal
        if self.hands is not None:
            self._free, self.hands.passed = self.hands.free(), 0
        dead_letters = DeadLetterMoves(self.queue, self.settling, self.steps)
        dead_letters.resolve()
        left_nothing = self.queue.attributes.pace is None
        for place, shard in enumerate(self._shards()):
            if place == 0:
                first = shard
            elif place == 1 and tokens.look == inf:
                tokens.look = look_at([each for each in self.queue.shards if each is not first])
            try:
                claim = partial(dead_letters.claim, shard, tokens.look)
                with self.steps.rest():
                    command = self._command()
                    result = tokens.claim(shard, command, claim)
                    if self._decided(shard, result):
                        result = tokens.claim(shard, self._command(), claim)
                if isinstance(result.error, OverLimit):
                    refusal, left_nothing = result.error, False
                    continue
                if result.error is not None:
                    raise result.error
            except Exception as error:
                if self._parts and (isinstance(error, LakeQueueError) or is_storage_failure(error)):
                    break
                raise
            left_nothing &= result.value.left_nothing(command) and not result.value.undecided
            if self._is_last(place, shard, result.value) or (result.value.spans and tokens.spent):
                break
        self.left_nothing = left_nothing and not self._parts
        return self._parts, refusal

    def _decided(self, shard: OpenShard, result: Result) -> bool:
        """Decides deliveries of a shard (TAB-26). Returns True if another claim may find more messages."""
        if result.error is not None or not result.value.undecided or not self.decides:
            return False
        return decide_found(self.queue, shard, result.value.undecided) > 0 and not result.value.spans

    def _command(self) -> Claim:
        left = self.wanted.max_messages - self._taken
        leased = None if self.wanted.leased is None else self._taken
        return attrs.evolve(self.wanted, max_messages=left, hands=self._free, leased=leased)

    def _is_last(self, place: int, shard: OpenShard, claimed: ClaimResult) -> bool:
        """Adds the messages that were claimed from a shard. Returns True if no further shard must be asked."""
        if self.hands is not None:
            self._free = (self._free or 0) - claimed.last
            self.hands.passed += claimed.passed
        if not claimed.spans:
            return claimed.halved
        home = shard.shared.home
        alone = self.wanted.attempt_id is not None or self.wanted.delivery is not None
        # not the shard that was tried before the home
        if not self._parts and self.wanted.attempt_id is None and (place or shard.number == home.current):
            home.found(shard.number)
        self._parts.append(ClaimedPart(shard, claimed))
        self._taken += claimed.message_count
        most = min(self.enough or self.wanted.max_messages, self.wanted.max_messages)
        return alone or claimed.halved or self._taken >= most

    def _shards(self) -> Iterator[OpenShard]:
        shards, attempt_id = self.queue.shards, self.wanted.attempt_id
        if attempt_id is None or len(shards) == 1:
            order = self._home_order()
            yield from (shards[shard] for shard in order)
            # those that another process added: the others have just learnt of them
            yield from shards[len(order) :]
            return
        now = self.queue.now()
        for shard in shards:
            if shard.ledger.query(lambda machine: machine.attempt_lives(attempt_id, now)):
                yield shard
                return
        start = zlib.crc32(attempt_id.encode())  # so that concurrent retries begin at the same shard
        yield from (shards[(start + step) % len(shards)] for step in range(len(shards)))

    def _home_order(self) -> list[int]:
        shards, attributes = self.queue.shards, self.queue.attributes
        home = shards[0].shared.home
        order, other = list(in_home_order(shards, home)), home.elsewhere()
        if attributes.pace is not None:  # else the home would get all tokens
            order = list(home.anywhere())
        if (classes := attributes.classes) > 1:
            # now and then the lowest first, so that none of them starves (JOB-5)
            highest = other is None or bool(attributes.priorities_strict)
            order.sort(key=lambda shard: shard % classes, reverse=highest)
        elif other is not None and shards[other].ledger.is_unattended():
            order = [other, *(shard for shard in order if shard != other)]
        return order
