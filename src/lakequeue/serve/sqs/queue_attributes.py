"""Attributes of queues as SQS clients set and see them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from lakequeue.errors import InvalidAttributeName, UnsupportedOperation
from lakequeue.serve.sqs.model import operations
from lakequeue.serve.sqs.queue_urls import queue_arn

_KEY = "KmsMasterKeyId"
_UNENCRYPTED: Mapping[str, tuple[str, ...]] = {
    _KEY: ("",),
    "KmsDataKeyReusePeriodSeconds": ("", "300"),
}
"""Attributes for encryption with a key of the client's, and their values that mean no such encryption."""
_SSE = "SqsManagedSseEnabled"
_FLAGS = ("FifoQueue", "ContentBasedDeduplication", _SSE)
"""Attributes whose values SQS takes in any case, as in ``True``."""
_NAMES = frozenset(operations()["GetQueueAttributes"].input_shape.members["AttributeNames"].member.enum)


@attrs.frozen
class Encryption:
    """What the operator says of encryption, which is up to the storage.

    Attributes:
        ignore_kms: keys of clients are kept and shown, and encrypt nothing; else they are refused.
        sse_managed: the storage encrypts all, and queues without such a key say so.
    """

    ignore_kms: bool = False
    sse_managed: bool = False


def to_set(attributes: Mapping[str, str], encryption: Encryption) -> dict[str, Any]:
    """The attributes to set.

    Raises:
        InvalidAttributeName: SQS has no such attribute, nor have queues here.
        UnsupportedOperation: an attribute asks for encryption with a key.
    """
    for name, value in attributes.items():
        if not name[:1].isupper():  # arguments of the Python API, unknown to SQS
            raise InvalidAttributeName(f"Unknown Attribute {name}.")
        if value not in _UNENCRYPTED.get(name, (value,)) and not encryption.ignore_kms:
            raise UnsupportedOperation(f"The server cannot encrypt messages with a key; leave out {name}.")
    return {
        name: value.lower() if name in _FLAGS else value
        for name, value in attributes.items()
        if name not in _UNENCRYPTED or encryption.ignore_kms
    }


def to_read(names: Sequence[str]) -> list[str]:
    """The attributes to read for a client that named some."""
    return [*names, _KEY] if _SSE in names else [*names]


def shown(found: Mapping[str, str], names: Sequence[str], account: str, encryption: Encryption) -> dict[str, str]:
    """What a client sees of the attributes that were read: with All those of SQS, and others that it named."""
    if "All" in names:
        found = {name: value for name, value in found.items() if name in _NAMES or name in names}
    result = {name: _with_arns(name, value, account) for name, value in found.items()}
    if {"All", _SSE} & {*names}:
        result.setdefault(_SSE, "true" if encryption.sse_managed and _KEY not in found else "false")
    if not {"All", _KEY} & {*names}:
        result.pop(_KEY, None)
    return result


def _with_arns(name: str, value: str, account: str) -> str:
    """An attribute with the ARNs that SQS clients see."""
    match name:
        case "QueueArn":
            return queue_arn(value, account)
        case "RedrivePolicy":
            policy = json.loads(value)
            return json.dumps(policy | {"deadLetterTargetArn": queue_arn(policy["deadLetterTargetArn"], account)})
        case "RedriveAllowPolicy" if "sourceQueueArns" in (policy := json.loads(value)):
            return json.dumps(
                policy | {"sourceQueueArns": [queue_arn(arn, account) for arn in policy["sourceQueueArns"]]}
            )
    return value
