"""A message queue that lives in Delta tables.

``LakeQueue(root)`` opens a root of queues; see the README. Importing this package starts nothing.
"""

from lakequeue import errors
from lakequeue.clock import Clock, SystemClock
from lakequeue.compaction import CompactionSummary
from lakequeue.consumer import Consumer
from lakequeue.errors import *  # noqa: F403
from lakequeue.handling import Context, Outcome
from lakequeue.lease import Lease
from lakequeue.message import (
    AttributeValue,
    BatchFailure,
    BatchResult,
    BatchSuccess,
    Message,
    SendEntry,
    SendResult,
)
from lakequeue.queue import Queue
from lakequeue.received import PeekedMessage, QueueCounts
from lakequeue.redrive import RedriveAllowPolicy, RedrivePolicy
from lakequeue.renewal import ComputedRenewal, HeartbeatRenewal, NoRenewal
from lakequeue.service import LakeQueue
from lakequeue.shard import LeaseCounts

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
    "HeartbeatRenewal",
    "LakeQueue",
    "Lease",
    "LeaseCounts",
    "Message",
    "NoRenewal",
    "Outcome",
    "PeekedMessage",
    "Queue",
    "QueueCounts",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "SendEntry",
    "SendResult",
    "SystemClock",
    "__version__",
    *errors.__all__,
]
