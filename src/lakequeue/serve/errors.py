"""Errors as the SQS protocol sends them: code, HTTP status and fault."""

from __future__ import annotations

import logging
import random
import re
import uuid

import attrs

from lakequeue.entry_verbs import is_full
from lakequeue.errors import (
    SAFE_TO_REPEAT,
    DamagedTable,
    InvalidAttributeValue,
    QueueClientError,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.model.attributes import ATTRIBUTE_NAMES
from lakequeue.model.messages import BatchFailure
from lakequeue.model.redrive_policies import MEMBERS
from lakequeue.serve.instrumentation import ApiCall

_MODEL, _FRAMEWORK = "com.amazonaws.sqs#", "com.amazon.coral.service#"
_RENAMED = {
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
}
"""Names of two error codes in the JSON protocol. The service model does not contain these codes (ERR-6)."""
_LEGACY_CODES = {"AccessDeniedException": "AccessDenied"}
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
_IN_HINTS = re.compile("|".join(rf"\b{name}\b" for name in ATTRIBUTE_NAMES if "_" in name))
_log = logging.getLogger("lakequeue.serve")
MAX_MESSAGE_LENGTH = 1_000
_TABLES_OF_QUEUES = ("/messages", "/receipts")
RETRY_SECONDS = 1
"""Seconds after which a client should try again, if other clients have used up a limit."""


def _shortened(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[:MAX_MESSAGE_LENGTH] + "..."


def wire_message(error: QueueServiceError | BatchFailure) -> str:
    """Returns an error's message with SQS's names. For a wrong attribute, the message adds the allowed values."""
    names = [_NAMES.get(name, name) if isinstance(name, str) else name.wire() for name in error.names]
    message = error.template.format(*names) if names else error.template or error.message
    if not isinstance(error, InvalidAttributeValue) or error.hint is None:
        return message
    hint = _IN_HINTS.sub(lambda name: ATTRIBUTE_NAMES[name[0]], error.hint)
    return f"{message} Reason: {hint[0].upper()}{hint[1:]}."


class RequestError(Exception):
    """Raised if a request is refused before it reaches a queue. ``retry_after`` is in seconds, or None."""

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
    return RequestError("SerializationException", message)


@attrs.frozen
class ErrorResponse:
    """An error in the form that is sent to the client (ERR-1).

    Attributes:
        type: name in the JSON protocol, with its namespace.
        code: name in the Query protocol. JSON clients get this code in a header.
        sender: True if the client is at fault, False if the server is at fault.
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
    def of(cls, error: Exception, queue: str | None = None) -> ErrorResponse:
        """Returns the response for an exception, without internal details. ``queue`` is the requested name."""
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
                unknown = f" It may have taken effect; {SAFE_TO_REPEAT}." if error.outcome_unknown else ""
                message = f"{_storage_failure(error, queue)}{unknown}"
                return cls(_FRAMEWORK + "ServiceUnavailable", "ServiceUnavailable", message, 503, False, new_id())
        return cls(_FRAMEWORK + "InternalFailure", "InternalFailure", "The server failed.", 500, False, new_id())


def _storage_failure(error: QueueClientError, queue: str | None) -> str:
    """Describes a storage failure without paths. Names commands that help with damage or a full disk."""
    if isinstance(error, DamagedTable):
        if queue is None or not error.table.endswith(_TABLES_OF_QUEUES):
            return "The root is damaged: `lakequeue check` shows how, `lakequeue repair --all` mends it."
        cure = f"`lakequeue check {queue}` shows how, `lakequeue repair {queue}` mends it"
        return f"The queue {queue} is damaged: {cure}."
    if is_full(str(error)):
        return "The disk of the root is full: `lakequeue doctor` says what fills it, and how to free space."
    return "The storage of the queues failed."


def reported(error: Exception, call: ApiCall) -> ErrorResponse:
    """Returns the response for an exception. Stores the code in ``call``, and logs faults of the server."""
    response = ErrorResponse.of(error, None if call.queue == "-" else call.queue)
    call.damaged = error.table if isinstance(error, DamagedTable) else None
    code = error.code if isinstance(error, (QueueServiceError, RequestError)) else None
    call.code, call.request_id = code or response.code, response.request_id
    action = "a request" if call.action == "-" else call.action
    if isinstance(error, QueueClientError):
        _log.error("storage failed in %s", action, exc_info=error)
    elif code is None:
        _log.error("%s failed", action, exc_info=error)
    return response


def new_id() -> str:
    """Returns a random UUID from a fast generator. Do not use it as a secret: the next UUID is predictable."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))
