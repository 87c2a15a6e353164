"""The rate limit of a queue with several shards: one bucket, in the ledger of shard 0 (JOB-11).

A receive reads the bucket first. A claim in another shard takes no more than the bucket has, and then charges the
bucket in a commit to shard 0. It hands back what other processes charged meanwhile, so nobody gets a message that
was not charged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf

import attrs

from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard, look_at
from lakequeue.shard.commands import Charge, Claim, ClaimedSpan, ClaimResult, LeaseRelease, Result
from lakequeue.storage.store_failures import first_line

_Span = tuple[int, int]
_UNLIMITED = 2**31

_log = logging.getLogger("lakequeue")


@attrs.define
class Tokens:
    """What one receive may take of the bucket, which it reads once."""

    _queue: OpenQueue
    _left: int = 0
    _read: bool = False
    look: float = attrs.field(default=inf, init=False)
    """Number of the look at the shards that the receive made, see ``look_at``."""

    def may_be_left(self) -> bool:
        """Returns False if the queue is known to have a limit, and its bucket in another shard is empty.

        On an object store it looks at all shards at once, unless the bucket was empty when it was last read.
        """
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
        """True if the bucket was read, and is empty now: no further shard gives messages."""
        return self._read and self._left == 0

    def claim(self, shard: OpenShard, command: Claim, claim: Callable[[Claim], Result]) -> Result:
        """Claims messages of a shard by ``claim``, and pays for them."""
        if not shard.number:  # the claim charges the bucket in its own commit
            return self._counted(claim(command))
        result = claim(attrs.evolve(command, tokens=self._left))
        if result.error is None and result.value.unpaid and not self._read and self.read():
            result = claim(attrs.evolve(command, tokens=self._left))
        if result.error is None and result.value.owed:
            result = attrs.evolve(result, value=self._paid(shard, result.value))
        return self._counted(result)

    def _counted(self, result: Result) -> Result:
        if result.error is None:
            self._left = max(0, self._left - result.value.message_count)
        return result

    def read(self) -> bool:
        """Reads the bucket; returns True if the bucket has tokens."""
        self._read, now = True, self._queue.now()
        left = self._queue.shards[0].ledger.query(lambda machine: machine.tokens(now), self.look)
        self._left = _UNLIMITED if left is None else left
        return self._left > 0

    def _paid(self, shard: OpenShard, claimed: ClaimResult) -> ClaimResult:
        """Charges what was claimed in a shard; returns the part of it that is paid, and hands back the rest."""
        order = list(claimed.order) or [(span.first, span.last) for span in claimed.spans]
        try:
            paid = self._queue.command(self._queue.shards[0], Charge(claimed.owed))
        except BaseException:
            self._hand_back(shard, claimed.lease_id, order)
            raise
        if paid == claimed.owed:
            return claimed
        self._left = 0
        kept, rest = _split(order, paid)
        self._hand_back(shard, claimed.lease_id, rest)
        spans = tuple(piece for span in claimed.spans for piece in _pieces(span, sorted(kept)))
        return attrs.evolve(claimed, spans=spans, order=tuple(kept) if claimed.order else ())

    def _hand_back(self, shard: OpenShard, lease_id: str, spans: Iterable[_Span]) -> None:
        try:
            self._queue.command(shard, LeaseRelease(lease_id, sorted(spans), unseen=True))
        except Exception as error:
            text = "messages of %s stay in flight until their visibility timeout: %s"
            _log.warning(text, self._queue.name, first_line(error))


def _split(spans: Iterable[_Span], count: int) -> tuple[list[_Span], list[_Span]]:
    """The first ``count`` messages of some ranges, and the others, in their order."""
    kept, rest = list[_Span](), list[_Span]()
    for first, last in spans:
        taken = min(count, last - first + 1)
        count -= taken
        kept += [(first, first + taken - 1)] if taken else []
        rest += [(first + taken, last)] if first + taken <= last else []
    return kept, rest


def _pieces(span: ClaimedSpan, ranges: Iterable[_Span]) -> Iterable[ClaimedSpan]:
    """The parts of a span that lie in some ranges."""
    for first, last in ranges:
        low, high = max(first, span.first), min(last, span.last)
        if low <= high:
            yield attrs.evolve(span, first=low, last=high)
