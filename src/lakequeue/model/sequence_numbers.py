"""Sequence numbers of FIFO messages, derived from where a message is stored."""

from __future__ import annotations

_BASE = 10**19
_SHARDS = 1_024
_SPREAD = 256
_STEP = 37


def sequence_number(shard: int, offset: int) -> str:
    """20 digits, increasing with the offset within a shard and never used twice in a queue (SEQ-1, SEQ-3, SEQ-6).

    The numbers of neighbours lie apart by varying distances, so that nobody counts on them being consecutive.
    """
    place = offset * _SHARDS + shard
    return str(_BASE + place * _SPREAD + offset * _STEP % _SPREAD)
