"""Errors as the SQS protocol reports them: code, status and fault."""

from __future__ import annotations

import logging
import random
import re
import uuid

import attrs

from lakequeue.errors import REPEAT, InvalidAttributeValue, QueueClientError, QueueServiceError, RequestThrottled
from lakequeue.model.attributes import ATTRIBUTE_NAMES
from lakequeue.model.messages import BatchFailure
from lakequeue.model.redrive_policies import MEMBERS
from lakequeue.serve.instrumentation import ApiCall

_MODEL, _FRAMEWORK = "com.amazonaws.sqs#", "com.amazon.coral.service#"
_RENAMED = {
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
}
"""Codes that have another name in the JSON protocol and are missing from the service model (ERR-6)."""
_LEGACY_CODES = {"AccessDeniedException": "AccessDenied"}
"""Codes of the framework that have another name in the Query protocol; clients look for that one."""
_NAMES = {
    **ATTRIBUTE_NAMES,
    **MEMBERS,
    "attempt_id": "ReceiveRequestAttemptId",
    "body": "MessageBody",
    "dedup_id": "MessageDeduplicationId",
    "group_id": "MessageGroupId",
    "max_messages": "MaxNumberOfMessages",
    "receipt_handle": "ReceiptHandle",
    "tags": "Tags",
    "wait_time": "WaitTimeSeconds",
}
"""Names of SQS for those of Python in messages of errors."""
_IN_HINTS = re.compile("|".join(rf"\b{name}\b" for name in ATTRIBUTE_NAMES if "_" in name))
_log = logging.getLogger("lakequeue.serve")
MAX_MESSAGE_LENGTH = 1_000
RETRY_SECONDS = 1
"""Seconds after which a client that was refused for others may try again."""


def _shortened(message: str) -> str:
    """Cuts a message that repeats a very long value."""
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[:MAX_MESSAGE_LENGTH] + "..."


def wire_message(error: QueueServiceError | BatchFailure) -> str:
    """The message of an error with the names of SQS, and what an attribute may be."""
    names = [_NAMES.get(name, name) if isinstance(name, str) else name.wire() for name in error.names]
    message = error.template.format(*names) if names else error.template or error.message
    if not isinstance(error, InvalidAttributeValue) or error.hint is None:
        return message
    hint = _IN_HINTS.sub(lambda name: ATTRIBUTE_NAMES[name[0]], error.hint)
    return f"{message} Reason: {hint[0].upper()}{hint[1:]}."


class RequestError(Exception):
    """A request is refused before it reaches a queue.

    Args:
        retry_after: seconds after which the client may try again; None if that would not help.
    """

    def __init__(
        self, code: str, message: str, status: int = 400, sender: bool = True, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.sender = sender
        self.retry_after = retry_after


def malformed(message: str) -> RequestError:
    """The body cannot be parsed, or a member has not the type of the service model."""
    return RequestError("SerializationException", message)


@attrs.frozen
class ErrorResponse:
    """An error as it is sent to the client (ERR-1).

    Attributes:
        type: name in the JSON protocol, with its namespace.
        code: name in the Query protocol; JSON clients get it in a header.
        sender: whether the client is at fault, not the server.
        retry_after: seconds, for the header Retry-After.
    """

    type: str
    code: str
    message: str = attrs.field(converter=_shortened)
    status: int
    sender: bool
    request_id: str
    retry_after: int | None = None

    @classmethod
    def of(cls, error: Exception) -> ErrorResponse:
        """The response for an exception; reveals nothing about the inside of the server."""
        match error:
            case RequestError():
                code = _LEGACY_CODES.get(error.code, error.code)
                type_, retry = _FRAMEWORK + error.code, error.retry_after
                return cls(type_, code, error.message, error.status, error.sender, new_id(), retry)
            case QueueServiceError():
                renamed = _RENAMED.get(error.code)
                return cls(
                    _FRAMEWORK + renamed if renamed else _MODEL + error.code,
                    error.legacy_code,
                    wire_message(error),
                    error.http_status,
                    error.sender_fault and not isinstance(error, RequestThrottled),
                    error.request_id,
                )
            case QueueClientError():
                unknown = f" It may have taken effect; {REPEAT}." if error.outcome_unknown else ""
                message = f"The storage of the queues failed.{unknown}"
                return cls(_FRAMEWORK + "ServiceUnavailable", "ServiceUnavailable", message, 503, False, new_id())
        return cls(_FRAMEWORK + "InternalFailure", "InternalFailure", "The server failed.", 500, False, new_id())


def reported(error: Exception, call: ApiCall) -> ErrorResponse:
    """The response for an exception; what is the server's fault is logged, and its code is noted with the request.

    Whatever the protocol, the same error has the same code in logs and metrics.
    """
    response = ErrorResponse.of(error)
    code = error.code if isinstance(error, (QueueServiceError, RequestError)) else None
    call.code, call.request_id = code or response.code, response.request_id
    action = "a request" if call.action == "-" else call.action
    if isinstance(error, QueueClientError):
        _log.error("storage failed in %s", action, exc_info=error)
    elif code is None:
        _log.error("%s failed", action, exc_info=error)
    return response


def new_id() -> str:
    """A fresh id; nobody needs to guess it, and the system's randomness would give up the interpreter for each."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))
