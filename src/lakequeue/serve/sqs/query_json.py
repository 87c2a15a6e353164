"""Responses of the Query protocol as JSON, for proxies of SQS. Some names differ from the names in XML."""

from __future__ import annotations

import base64
import json
from typing import Any

from botocore.model import ListShape, MapShape, OperationModel, Shape, StructureShape

from lakequeue.serve.errors import ErrorResponse
from lakequeue.serve.sqs.query_protocol import error_message, error_type, key_name, legacy_code

RESPONSE_TYPE = "application/json"
_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}


def response(operation: OperationModel, result: dict[str, Any], request_id: str) -> bytes:
    content: dict[str, Any] = {"ResponseMetadata": {"RequestId": request_id}}
    if operation.output_shape is not None:
        content = {f"{operation.name}Result": _value(operation.output_shape, result)} | content
    return _document({f"{operation.name}Response": content})


def error(response: ErrorResponse) -> tuple[dict[str, str], bytes]:
    members = {
        "Code": response.code,
        "Detail": None,
        "Message": error_message(response),
        "Type": error_type(response),
    }
    return {}, _document({"Error": members, "RequestId": response.request_id})


def _value(shape: Shape, value: Any) -> Any:
    match shape, value:
        case StructureShape(), dict():
            if shape.name == "BatchResultErrorEntry":
                value = legacy_code(value)
            return {
                _NAMES.get(name, name): _value(member, value.get(name)) for name, member in shape.members.items()
            }
        case ListShape(), list():
            return [_value(shape.member, item) for item in value]
        case MapShape(), dict():
            key = key_name(shape)
            return [{key: name, "Value": _value(shape.value, item)} for name, item in value.items()]
        case _, bytes():
            return base64.b64encode(value).decode()
    return value


def _document(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
