"""A message queue in Delta tables. ``LakeQueue(root)`` opens a root of queues; see the README.

Importing this package starts nothing. Each public name is imported from its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from lakequeue import errors
from lakequeue.errors import *  # noqa: F403

if TYPE_CHECKING:
    from lakequeue.client import LakeQueue, QueuePage
    from lakequeue.consumer.consumer import Consumer
    from lakequeue.consumer.handler import Context, Outcome
    from lakequeue.consumer.options import RetryBackoff
    from lakequeue.consumer.outages import Health, Outage
    from lakequeue.lease import Lease
    from lakequeue.model.clock import Clock, SystemClock
    from lakequeue.model.damage import Finding, Repair
    from lakequeue.model.failures import DeadLetterReason
    from lakequeue.model.messages import (
        AttributeValue,
        BatchFailure,
        BatchResult,
        BatchSuccess,
        Message,
        SendEntry,
        SendResult,
    )
    from lakequeue.model.redrive_policies import RedriveAllowPolicy, RedrivePolicy
    from lakequeue.model.schedules import Schedule
    from lakequeue.model.states import MessageState
    from lakequeue.operations.compact import CompactionSummary
    from lakequeue.operations.copy import CopiedQueue
    from lakequeue.operations.results import (
        GroupCounts,
        PeekedMessage,
        QueueCounts,
        SentRows,
        ShardCounts,
        UndecidedDelivery,
    )
    from lakequeue.queue import Queue
    from lakequeue.renewal.policies import ComputedRenewal, HeartbeatRenewal, Hold, NoRenewal, Renewal
    from lakequeue.schedules import Schedules
    from lakequeue.sender import Sender
    from lakequeue.shard.commands import LeaseCounts

__version__ = "0.3.0.dev0"

__all__ = [
    "AttributeValue",
    "BatchFailure",
    "BatchResult",
    "BatchSuccess",
    "Clock",
    "CompactionSummary",
    "ComputedRenewal",
    "Consumer",
    "Context",
    "DeadLetterReason",
    "Finding",
    "CopiedQueue",
    "Health",
    "GroupCounts",
    "HeartbeatRenewal",
    "Hold",
    "LakeQueue",
    "Lease",
    "LeaseCounts",
    "Message",
    "MessageState",
    "NoRenewal",
    "Outage",
    "Outcome",
    "PeekedMessage",
    "Queue",
    "QueueCounts",
    "QueuePage",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "Renewal",
    "Repair",
    "RetryBackoff",
    "Schedule",
    "Schedules",
    "SendEntry",
    "SendResult",
    "Sender",
    "SentRows",
    "ShardCounts",
    "SystemClock",
    "__version__",
    *errors.__all__,
    "UndecidedDelivery",
]

if not TYPE_CHECKING:
    _NAMES = {
        "client": "LakeQueue QueuePage",
        "consumer.consumer": "Consumer",
        "consumer.handler": "Context Outcome",
        "consumer.options": "RetryBackoff",
        "consumer.outages": "Health Outage",
        "lease": "Lease",
        "model.clock": "Clock SystemClock",
        "model.damage": "Finding Repair",
        "model.failures": "DeadLetterReason",
        "model.messages": "AttributeValue BatchFailure BatchResult BatchSuccess Message SendEntry SendResult",
        "model.redrive_policies": "RedriveAllowPolicy RedrivePolicy",
        "model.schedules": "Schedule",
        "model.states": "MessageState",
        "operations.compact": "CompactionSummary",
        "operations.copy": "CopiedQueue",
        "operations.results": "GroupCounts PeekedMessage QueueCounts SentRows ShardCounts UndecidedDelivery",
        "queue": "Queue",
        "renewal.policies": "ComputedRenewal HeartbeatRenewal Hold NoRenewal Renewal",
        "schedules": "Schedules",
        "sender": "Sender",
        "shard.commands": "LeaseCounts",
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
