"""The service model of SQS, from botocore: actions, shapes of parameters, required members and types."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sized
from functools import cache
from typing import Any

from botocore.loaders import Loader
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape

from lakequeue.errors import MissingParameter
from lakequeue.serve.errors import RequestError, malformed

VERSION = "2012-11-05"
"""Version of the SQS API, which is also part of its XML namespace."""
MAX_ITEMS = 1_000
"""Maximum number of elements in a list or map. The limits of all actions are far lower."""

_MEMBERS = """
AWSAccountIds Actions AttributeNames Attributes BinaryListValues BinaryValue DataType DelaySeconds DestinationArn
Entries Id Label MaxNumberOfMessages MaxNumberOfMessagesPerSecond MaxResults MessageAttributeNames
MessageAttributes MessageBody MessageDeduplicationId MessageGroupId MessageSystemAttributeNames
MessageSystemAttributes NextToken QueueName QueueNamePrefix QueueOwnerAWSAccountId QueueUrl ReceiptHandle
ReceiveRequestAttemptId SourceArn StringListValues StringValue TagKeys Tags TaskHandle VisibilityTimeout
WaitTimeSeconds tags
"""
MEMBERS = frozenset(_MEMBERS.split())
"""Names of the members that this server knows. Members of a newer botocore are refused, not ignored."""


@cache
def operations() -> Mapping[str, OperationModel]:
    """Returns every action of SQS, by the name of the action."""
    # not from ~/.aws/models, which may hold any file
    loader = Loader([Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
    service = ServiceModel(loader.load_service_model("sqs", "service-2", VERSION), "sqs")
    return {name: service.operation_model(name) for name in service.operation_names}


def operation(name: str) -> OperationModel:
    """Returns the action with this name. Raises RequestError if SQS has no such action."""
    found = operations().get(name)
    if found is None:
        raise invalid_action(name)
    return found


def invalid_action(name: str) -> RequestError:
    """Returns the error for an unknown action, or for an action that this path does not accept."""
    return RequestError("InvalidAction", f"The action {name} is not valid for this endpoint.")


def validated(shape: Shape, value: Any, where: str) -> Any:
    """Converts a value to its shape's types. Raises RequestError or MissingParameter, which name ``where``."""
    match shape:
        case StructureShape():
            return _structure(shape, value, where)
        case ListShape():
            if not isinstance(value, list):
                raise malformed(f"{where} must be a list.")
            _check_count(value, where)
            items = [validated(shape.member, item, f"{where}[{n}]") for n, item in enumerate(value)]
            if None in items:
                raise malformed(f"{where} must not hold null.")
            return items
        case MapShape():
            _check_count(_object(value, where), where)
            return {
                validated(shape.key, key, where): validated(shape.value, item, f"{where}.{key}")
                for key, item in value.items()
                if item is not None
            }
    return _scalar(shape.type_name, value, where)


def _structure(shape: StructureShape, value: Any, where: str) -> dict[str, Any]:
    members = _object(value, where)
    prefix = f"{where}." if where else ""
    for name in members:
        if name not in shape.members or name not in MEMBERS:
            raise malformed(f"{prefix}{name} is not a member of {shape.name}.")
    found = {
        name: validated(shape.members[name], item, prefix + name)
        for name, item in members.items()
        if item is not None
    }
    for name in shape.required_members:
        if name not in found:
            raise MissingParameter(f"The request must contain the parameter {prefix}{name}.")
    return found


def _check_count(items: Sized, where: str) -> None:
    if len(items) > MAX_ITEMS:
        raise malformed(f"{where} may have at most {MAX_ITEMS} elements.")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise malformed(f"{where or 'The request'} must be an object.")
    return value


def _scalar(kind: str, value: Any, where: str) -> Any:
    match kind, value:
        case "string", str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise malformed(f"{where} is not Unicode text.") from None
            return value
        case "boolean", bool():
            return value
        case "integer" | "long", int() if not isinstance(value, bool) and abs(value) < 2**63:
            return value
        case "blob", str():
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                raise malformed(f"{where} is not in base64.") from None
    raise malformed(f"{where} must be of type {kind}.")
