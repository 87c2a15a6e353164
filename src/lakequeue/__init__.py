"""A message queue that lives in Delta tables.

``LakeQueue(root)`` opens a root of queues; see the README. Importing this package starts nothing.
"""

from lakequeue import errors
from lakequeue.client import LakeQueue
from lakequeue.consumer.consumer import Consumer
from lakequeue.consumer.handler import Context, Outcome
from lakequeue.consumer.outages import Health, Outage
from lakequeue.consumer.retries import RetryBackoff
from lakequeue.errors import *  # noqa: F403
from lakequeue.lease import Lease
from lakequeue.model.clock import Clock, SystemClock
from lakequeue.model.damage import Finding, Repair
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
from lakequeue.model.states import MessageState
from lakequeue.operations.compact import CompactionSummary
from lakequeue.operations.copy import CopiedQueue
from lakequeue.operations.results import PeekedMessage, QueueCounts, ShardCounts
from lakequeue.queue import Queue
from lakequeue.renewal.policies import ComputedRenewal, HeartbeatRenewal, Hold, NoRenewal, Renewal
from lakequeue.shard.commands import LeaseCounts

__version__ = "0.2.0"

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
    "Finding",
    "CopiedQueue",
    "Health",
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
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "Renewal",
    "Repair",
    "RetryBackoff",
    "SendEntry",
    "SendResult",
    "ShardCounts",
    "SystemClock",
    "__version__",
    *errors.__all__,
]
