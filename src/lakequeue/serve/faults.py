"""What is wrong with a request, in the words of the SQS protocol: codes, statuses and whose fault it is."""

from __future__ import annotations

import uuid

import attrs

from lakequeue.errors import QueueClientError, QueueServiceError, RequestThrottled

_MODEL, _FRAMEWORK = "com.amazonaws.sqs#", "com.amazon.coral.service#"
_RENAMED = {
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
}
"""Codes that today's protocol names otherwise, and that the service model does not list (ERR-6)."""
LONGEST_MESSAGE = 1_000


def _short(message: str) -> str:
    """A message that does not repeat all of a value that is too long."""
    return message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + "..."


@attrs.frozen
class Fault:
    """A refusal as it goes over the wire (ERR-1).

    Attributes:
        type: name of the error in the JSON protocol, with its namespace.
        code: name in the Query protocol, which today's SDKs are told too.
    """

    type: str
    code: str
    message: str = attrs.field(converter=_short)
    status: int
    sender: bool
    request_id: str

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """The refusal that an exception amounts to; says nothing about what is inside the server."""
        match error:
            case WireError():
                return cls(
                    _FRAMEWORK + error.code, error.code, error.message, error.status, error.sender, _new_id()
                )
            case QueueServiceError():
                renamed = _RENAMED.get(error.code)
                return cls(
                    _FRAMEWORK + renamed if renamed else _MODEL + error.code,
                    error.legacy_code,
                    error.message,
                    error.http_status,
                    error.sender_fault and not isinstance(error, RequestThrottled),
                    error.request_id,
                )
            case QueueClientError():
                unknown = " It may have taken effect; repeat it." if error.outcome_unknown else ""
                message = f"The storage of the queues failed.{unknown}"
                return cls(_FRAMEWORK + "ServiceUnavailable", "ServiceUnavailable", message, 503, False, _new_id())
        return cls(_FRAMEWORK + "InternalFailure", "InternalFailure", "The server failed.", 500, False, _new_id())


class WireError(Exception):
    """A request that is refused before it reaches a queue."""

    def __init__(self, code: str, message: str, status: int = 400, sender: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.sender = sender


def malformed(message: str) -> WireError:
    """The body cannot be read, or a member has another type than the service model says."""
    return WireError("SerializationException", message)


def _new_id() -> str:
    return str(uuid.uuid4())
