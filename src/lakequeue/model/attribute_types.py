"""The keyword arguments of ``create_queue`` and ``set_attributes``, for type checkers.

Each attribute has a snake_case name and an SQS name; a value under the SQS name may also be its wire string.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from lakequeue.model.clock import Duration
from lakequeue.model.redrive_policies import RedriveAllowPolicy, RedrivePolicy


class ChangeableAttributes(TypedDict, total=False):
    """Keyword arguments of ``Queue.set_attributes``."""

    visibility_timeout: Duration
    message_retention_period: Duration
    delay: Duration
    receive_wait_time: Duration
    maximum_message_size: int
    content_based_deduplication: bool
    deduplication_scope: Literal["queue", "message_group"]
    fifo_throughput_limit: Literal["per_queue", "per_message_group_id"]
    rewind_range: Duration | bool
    max_inflight_messages: int | None
    max_delayed_messages: int | None
    max_stored_messages: int | None
    fair_groups: bool
    group_in_flight_limit: int | None
    dead_letter_queue: str
    max_receive_count: int
    redrive_policy: RedrivePolicy | Mapping[str, Any] | str | None
    redrive_allow_policy: RedriveAllowPolicy | Mapping[str, Any] | str | None
    policy: str | None
    sqs_managed_sse_enabled: bool
    kms_master_key_id: str | None
    kms_data_key_reuse_period_seconds: str | None
    allow_zero_visibility: bool
    profile_strict: bool
    shards: int
    VisibilityTimeout: Any
    MessageRetentionPeriod: Any
    DelaySeconds: Any
    ReceiveMessageWaitTimeSeconds: Any
    MaximumMessageSize: Any
    ContentBasedDeduplication: Any
    DeduplicationScope: Any
    FifoThroughputLimit: Any
    RewindSeconds: Any
    MaxInflightMessages: Any
    MaxDelayedMessages: Any
    MaxStoredMessages: Any
    FairGroups: Any
    GroupInFlightLimit: Any
    RedrivePolicy: Any
    RedriveAllowPolicy: Any
    Policy: Any
    SqsManagedSseEnabled: Any
    KmsMasterKeyId: Any
    KmsDataKeyReusePeriodSeconds: Any
    AllowZeroVisibility: Any
    ProfileStrict: Any
    Shards: Any
    PollingWaitSeconds: Any
    MaxMsgSize: Any
    msgRetentionSeconds: Any


class NewQueueAttributes(ChangeableAttributes, total=False):
    """Keyword arguments of ``LakeQueue.create_queue``; those added here are fixed at creation."""

    profile: Literal["lake", "sqs", "sqs-2018", "cmq"]
    Profile: Any
    FifoQueue: Any
