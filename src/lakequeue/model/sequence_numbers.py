"""Sequence numbers of FIFO messages, derived from where a message is stored."""

from __future__ import annotations

_BASE = 10**19
_SHARDS = 1_024
_SPREAD = 256
_STEP = 37


def sequence_number(shard: int, offset: int) -> str:
    """20 digits that increase with the offset in a shard and are unique in a queue (SEQ-1, SEQ-3, SEQ-6).

    The gaps between neighbours vary, so that no consumer relies on consecutive numbers.
    """
    place = offset * _SHARDS + shard
    return str(_BASE + place * _SPREAD + offset * _STEP % _SPREAD)
