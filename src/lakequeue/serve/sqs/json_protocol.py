"""AWS JSON 1.0, the protocol of today's SDKs."""

from __future__ import annotations

import base64
import json
from typing import Any

from botocore.model import OperationModel

from lakequeue.serve.faults import Fault, malformed
from lakequeue.serve.sqs.model import checked

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "AmazonSQS."
"""What stands before the action in the header ``X-Amz-Target``."""


def parameters(operation: OperationModel, body: bytes) -> dict[str, Any]:
    """What a request asks for, in the types of Python.

    Raises:
        WireError: it is not JSON, or not what the service model says.
        MissingParameter: a required member is absent.
    """
    try:
        value = json.loads(body.decode() or "{}", parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise malformed("The body is not JSON in UTF-8.") from None
    found: dict[str, Any] = checked(operation.input_shape, value, "")
    return found


def response(operation: OperationModel, result: dict[str, Any]) -> bytes:
    """The body of an answer; empty where the action has none."""
    if operation.output_shape is None:
        return b""
    return json.dumps(result, default=_base64, separators=(",", ":")).encode()


def refusal(fault: Fault) -> tuple[dict[str, str], bytes]:
    """Headers and body of a refusal."""
    headers = {"x-amzn-query-error": f"{fault.code};{'Sender' if fault.sender else 'Receiver'}"}
    return headers, json.dumps({"__type": fault.type, "message": fault.message}).encode()


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _refuse(constant: str) -> None:
    raise ValueError(constant)
