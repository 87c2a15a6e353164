"""Sending to the shards of one queue: which message goes where, and what its sender is told."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from lakequeue.errors import OverLimit, QueueServiceError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.messages import SendResult, ValidEntry, md5_of_attributes, md5_of_body, new_message_id
from lakequeue.model.sequence_numbers import sequence_number
from lakequeue.runtime.shard_service import Now, Placed, ShardService, settle
from lakequeue.storage.messages.append import NewMessage

Entries = Mapping[int, ValidEntry]
"""Messages by their place in the caller's batch."""


def shard_of_group(group_id: str, shards: int) -> int:
    """The shard of a message group; Spark's ``crc32`` agrees."""
    return zlib.crc32(group_id.encode()) % shards


class Sender:
    """Sends to a queue, a commit per shard. Thread-safe."""

    def __init__(self, shards: Sequence[ShardService], now: Now) -> None:
        self._shards = shards
        self._now = now

    def in_turn(self) -> list[ShardService]:
        """All shards, beginning with the one that this process keeps to."""
        return [self._shards[shard] for shard in settle(self._shards)]

    def by_shard(self, entries: Entries, fifo: bool) -> Iterable[tuple[list[ShardService], Entries]]:
        """Entries with the shards that may take them: their group's on FIFO queues, else any, in this order."""
        if not fifo:
            return [(self.in_turn(), entries)]
        found: dict[int, dict[int, ValidEntry]] = {}
        for index, entry in entries.items():
            found.setdefault(shard_of_group(entry.group_id or "", len(self._shards)), {})[index] = entry
        return [([self._shards[shard]], part) for shard, part in found.items()]

    def send(
        self, shards: Sequence[ShardService], entries: Entries, attributes: QueueAttributes, version: int
    ) -> dict[int, SendResult | QueueServiceError]:
        """Appends entries that were judged by a version of the attributes to the first shard that has room.

        Errors as in ``ShardService.send``.
        """
        id_format = attributes.profile_rules.message_id_format
        left = {index: NewMessage(new_message_id(id_format), entry) for index, entry in entries.items()}
        done: dict[int, SendResult | QueueServiceError] = {}
        for shard in shards:
            places = shard.send(list(left.values()), self._now, attributes, version)
            for index, place in zip(list(left), places, strict=True):
                if place is not None:
                    del left[index]
                    done[index] = _result(entries[index], place, shard.shard, attributes.fifo)
            if not left:
                return done
        full = OverLimit("The queue stores as many messages as it may; delete some or raise MaxStoredMessages.")
        return done | dict.fromkeys(left, full)


def _result(entry: ValidEntry, place: Placed, shard: int, fifo: bool) -> SendResult:
    return SendResult(
        place.message_id,
        md5_of_body(entry.body),
        md5_of_attributes(entry.attributes),
        sequence_number(shard, place.offset) if fifo else None,
    )
