"""AWS JSON 1.0, the protocol of current SDKs."""

from __future__ import annotations

import base64
import json
from typing import Any

from botocore.model import OperationModel

from lakequeue.serve.errors import ErrorResponse, malformed
from lakequeue.serve.sqs.model import validated

RESPONSE_TYPE = "application/x-amz-json-1.0"
LARGE = 64 * 1024
"""Number of characters. Answers with larger message bodies are encoded in parts, so that other threads can run."""
TARGET = "AmazonSQS."
"""Prefix of the action's name in the ``X-Amz-Target`` header."""


def parameters(operation: OperationModel, body: bytes) -> dict[str, Any]:
    """Parses the parameters of an action. Raises RequestError, or MissingParameter if one is missing."""
    try:
        value = _decoder.decode(body.decode() or "{}")
    except (ValueError, RecursionError):
        raise malformed("The body is not JSON in UTF-8.") from None
    found: dict[str, Any] = validated(operation.input_shape, value, "")
    return found


def response(operation: OperationModel, result: dict[str, Any], request_id: str) -> bytes:
    """Returns the body of a response. The body is empty if the action has no result."""
    if operation.output_shape is None:
        return b""
    # half a surrogate pair becomes a JSON escape
    if not any(len(message["Body"]) >= LARGE for message in result.get("Messages", ())):
        return _encoder.encode(result).encode(errors="backslashreplace")
    # text by text, so that other threads run in between
    return b"".join(part.encode(errors="backslashreplace") for part in _encoder.iterencode(result))


def error(response: ErrorResponse) -> tuple[dict[str, str], bytes]:
    headers = {"x-amzn-query-error": f"{response.code};{'Sender' if response.sender else 'Receiver'}"}
    return headers, json.dumps({"__type": response.type, "message": response.message}).encode()


def _refuse_constant(constant: str) -> None:
    raise ValueError(constant)


# built once; json.loads() and json.dumps() would build them for each request
_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
# without escapes, whose six bytes a letter would double or triple the memory of an answer
_encoder = json.JSONEncoder(
    ensure_ascii=False, default=lambda value: base64.b64encode(value).decode(), separators=(",", ":")
)
