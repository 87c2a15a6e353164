"""Sending to the shards of one queue: which message goes where, and what its sender is told."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence

from lakequeue.attributes import QueueAttributes
from lakequeue.errors import OverLimit, QueueServiceError
from lakequeue.message import SendResult, ValidEntry, md5_of_attributes, md5_of_body, new_message_id
from lakequeue.sequence import sequence_number
from lakequeue.shard_service import Now, ShardService
from lakequeue.storage.append import NewMessage

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
        self._turn = itertools.count()

    def in_turn(self) -> list[ShardService]:
        """All shards, each call beginning with the next one."""
        start = next(self._turn) % len(self._shards)
        return [*self._shards[start:], *self._shards[:start]]

    def by_shard(self, entries: Entries, fifo: bool) -> Iterable[tuple[ShardService, Entries]]:
        """Entries with the shard that they go to: their group's on FIFO queues, else the next one for all."""
        if not fifo:
            return [(self.in_turn()[0], entries)]
        found: dict[int, dict[int, ValidEntry]] = {}
        for index, entry in entries.items():
            found.setdefault(shard_of_group(entry.group_id or "", len(self._shards)), {})[index] = entry
        return [(self._shards[shard], part) for shard, part in found.items()]

    def send(
        self, shard: ShardService, entries: Entries, attributes: QueueAttributes, version: int
    ) -> dict[int, SendResult | QueueServiceError]:
        """Appends entries that were judged by a version of the attributes; errors as in ``ShardService.send``."""
        id_format = attributes.profile_rules.message_id_format
        messages = [NewMessage(new_message_id(id_format), entry) for entry in entries.values()]
        places = shard.send(messages, self._now, attributes, version)
        done: dict[int, SendResult | QueueServiceError] = {}
        for (index, entry), place in zip(entries.items(), places, strict=True):
            if place is None:
                done[index] = OverLimit(
                    "The queue stores as many messages as it may; delete some or raise MaxStoredMessages."
                )
                continue
            done[index] = SendResult(
                place.message_id,
                md5_of_body(entry.body),
                md5_of_attributes(entry.attributes),
                sequence_number(shard.shard, place.offset) if attributes.fifo else None,
            )
        return done
