"""The state machine of one shard: pure rules over runs of messages, without storage or clock."""

from lakequeue.shard.commands import (
    ChangeVisibility,
    Claim,
    ClaimedSpan,
    ClaimResult,
    Close,
    Command,
    Counts,
    Decision,
    Delete,
    Expire,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    Purge,
    Result,
    SetAttributes,
)
from lakequeue.shard.machine import ShardMachine
from lakequeue.shard.runs import IN_FLIGHT, READY, Head, Log, Run

__all__ = [
    "IN_FLIGHT",
    "READY",
    "ChangeVisibility",
    "Claim",
    "ClaimResult",
    "ClaimedSpan",
    "Close",
    "Command",
    "Counts",
    "Decision",
    "Delete",
    "Expire",
    "Head",
    "LeaseCounts",
    "LeaseDelete",
    "LeaseExtend",
    "LeaseRelease",
    "Log",
    "Purge",
    "Result",
    "Run",
    "SetAttributes",
    "ShardMachine",
]
