"""Receiving from the shards of one queue: claims across shards, and the steps of a long poll."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import attrs

from lakequeue.errors import LakeQueueError, OverLimit
from lakequeue.model import receipt_handles
from lakequeue.model.clock import from_micros
from lakequeue.model.messages import Message
from lakequeue.model.sequence_numbers import sequence_number
from lakequeue.operations.move import Mover
from lakequeue.operations.results import received_message
from lakequeue.runtime.shard_service import ShardService, settle
from lakequeue.runtime.waiters import Place
from lakequeue.shard import Claim, ClaimResult
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.engines.commit import first_line

POLL_SHORTEST, POLL_LONGEST = 50_000, 500_000
"""Microseconds between two looks of the long polls of a queue for what other processes did (LPL-6)."""
POLL_UNCALLED = 5_000_000
"""Microseconds until a long poll looks that nobody calls: whoever should have may hang."""

MOST_FAILURES = 32
"""Reads of one receive that may fail before what is left of a range is given up."""

Parts = list[tuple[ShardService, ClaimResult]]
Row = dict[str, Any]
"""A message, column -> value."""

_log = logging.getLogger("lakequeue")


@attrs.frozen
class Request:
    """A receive with its arguments judged; durations in microseconds."""

    max_messages: int
    visibility_timeout: int | None
    deadline: Callable[[], int]
    """Answers when the wait ends, in microseconds; asked again after each look."""
    refuse_late: bool
    """Whether a full queue refuses after the wait too, and not only without one (INF-7)."""
    attempt_id: str | None = None


class Receiver:
    """Receives from all shards of a queue, beginning with the one that this process keeps to. Thread-safe."""

    def __init__(
        self, row: QueueRow, shards: Sequence[ShardService], mover: Mover, now: Callable[[], int]
    ) -> None:
        self._row = row
        self._shards = shards
        self._mover = mover
        self._now = now
        self._fifo = row.attributes.get("FifoQueue") == "true"

    def claim(
        self,
        max_messages: int,
        visibility_timeout: int | None,
        lease_id: str,
        attempt_id: str | None = None,
    ) -> tuple[Parts, OverLimit | None]:
        """Claims under one lease; what each shard gave, and the refusal of one that is full.

        With an attempt id all messages come from one shard: that of the live attempt, if there is one.
        """
        parts: Parts = []
        left, refusal = max_messages, None
        for place, shard in enumerate(self._in_turn(attempt_id)):
            try:
                command = Claim(left, visibility_timeout, lease_id, attempt_id=attempt_id)
                result = self._mover.claim(shard, command)
            except LakeQueueError:
                if parts:  # claimed already: to raise would hide them from everybody
                    break
                raise
            if isinstance(result.error, OverLimit):
                refusal = result.error
            elif result.error is not None:
                if parts:
                    break
                raise result.error
            elif result.value.spans:
                if not parts and attempt_id is None:
                    home = shard.shared.home
                    if place or shard.shard == home.current:  # not the one that was looked at before the home
                        home.found(shard.shard)
                parts.append((shard, result.value))
                left -= result.value.message_count
                if left <= 0 or attempt_id is not None:
                    break
        return parts, refusal

    def _in_turn(self, attempt_id: str | None) -> Iterator[ShardService]:
        shards = self._shards
        if attempt_id is None or len(shards) == 1:
            order, other = settle(shards), shards[0].shared.home.elsewhere()
            if other is not None and shards[other].forgotten():
                order = [other, *(shard for shard in order if shard != other)]
            yield from (shards[shard] for shard in order)
            return
        now = self._now()
        for shard in shards:
            if shard.look(lambda machine: machine.attempt_lives(attempt_id, now)):
                yield shard
                return
        start = zlib.crc32(attempt_id.encode())  # so that retries at the same time begin with the same one
        yield from (shards[(start + step) % len(shards)] for step in range(len(shards)))

    def polls(
        self, request: Request, place: Place | None, clear: Callable[[], None], names: Sequence[str]
    ) -> Iterator[list[Message] | datetime]:
        """Looks for messages again and again: yields instants to wait for, at last the messages.

        ``clear`` is called before each look, so that a change made after it wakes the waiter. A receive that does
        not wait needs no place.
        """
        pause, started = POLL_SHORTEST, self._now()
        while True:
            clear()
            if place is not None:
                place.looks()
            lease_id = receipt_handles.new_lease_id()
            parts, refusal = self.claim(
                request.max_messages, request.visibility_timeout, lease_id, request.attempt_id
            )
            messages = [message for shard, claimed in parts for message in self._messages(shard, claimed, names)]
            now, deadline = self._now(), request.deadline()
            if place is not None:
                place.heard(max(shard.attributes_version for shard in self._shards))
                place.found = bool(messages)
            if messages or now >= deadline:
                if refusal and not messages and (request.refuse_late or deadline <= started):
                    raise refusal
                yield messages
                return
            if place is not None and not place.first and request.attempt_id is None:
                yield from_micros(min(deadline, now + POLL_UNCALLED))
                continue
            events = [shard.next_event(now) for shard in self._shards]
            known = [event for event in events if event is not None and event > now]
            yield from_micros(min([deadline, now + pause, *known]))
            pause = min(2 * pause, POLL_LONGEST)

    def waiting(self, wake: Callable[[], None]) -> AbstractContextManager[Place]:
        """A place in the line of the queue, where ``wake`` is called for each look that is due."""
        return self._shards[0].shared.line.place(wake)

    def _messages(self, shard: ShardService, claimed: ClaimResult, names: Sequence[str]) -> list[Message]:
        signer = receipt_handles.HandleSigner(self._row.key, shard.shard, claimed.lease_id, self._row.handle_key)
        rows, unreadable = self._rows(shard, claimed)
        found = {
            offset: received_message(row, claimed, span, signer.sign(offset), names, self._sequence(shard, offset))
            for span in claimed.spans
            for offset in range(span.first, span.last + 1)
            if (row := rows.get(offset)) is not None
        }
        if not claimed.order:
            return list(found.values())
        messages = []
        for offset in (offset for first, last in claimed.order for offset in range(first, last + 1)):
            if offset in unreadable:
                break  # what follows may be of its group (FIF-1); it comes again too
            if offset in found:
                messages.append(found[offset])
        return messages

    def _rows(self, shard: ShardService, claimed: ClaimResult) -> tuple[dict[int, Row], set[int]]:
        """Claimed messages by offset, and the offsets of those that storage cannot read now.

        To raise would hide all of them until their timeout, so it does only if there is nothing else to answer.
        """
        rows: dict[int, Row] = {}
        unreadable: set[int] = set()
        failures = 0
        pending = [(span.first, span.last) for span in reversed(claimed.spans)]
        while pending:
            first, last = pending.pop()
            try:
                found = shard.messages(first, last)
            except Exception as error:
                failures += 1
                if first < last and failures < MOST_FAILURES:  # some of them may be in another file
                    middle = (first + last) // 2
                    pending += [(middle + 1, last), (first, middle)]
                    continue
                if not rows and not pending:
                    raise
                unreadable.update(range(first, last + 1))
                name, reason = self._row.name, first_line(error)
                _log.error("messages %s to %s of %s cannot be read: %s", first, last, name, reason)
            else:
                rows.update((offset, row) for offset, row in enumerate(found, first) if row is not None)
        return rows, unreadable

    def _sequence(self, shard: ShardService, offset: int) -> str | None:
        return sequence_number(shard.shard, offset) if self._fifo else None
