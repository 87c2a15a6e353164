"""Explains failures of object stores in one line without secrets: cause, request, and setting to change."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from obstore.exceptions import BaseError

from lakequeue.errors import SAFE_TO_REPEAT, DamagedTable, QueueClientError, RequestThrottled
from lakequeue.model.secrets import hidden

_TRIED = re.compile(r"Error performing ([A-Z]+) (\S+) in ")
_CODE = re.compile(r"<(?:Code|code)>([\w.]+)</")
_ANSWER = re.compile(r"<(?:\?xml|Error)\b.*?</Error>", re.DOTALL)
_OF_A_PROXY = ("408", "499")
"""Status codes of proxies, after which the store may still carry out the request."""
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})[^:<\n]*")
_ENTRY = re.compile(r"_delta_log/(\d{20})\.json")
_CAUSES = r"Config error: [^\"]*\"|account file from |(?:encryption|credential) type: "
_VALUE = re.compile(rf"({_CAUSES}).*(\".*|: [A-Z].*|\. (?:Valid|Supported) .*)", re.DOTALL)
_DETAILS = re.compile(rf"((?:{_CAUSES}).*?)\n+Debug source.*", re.DOTALL)
_CAUSE = re.compile(r"(Caused by)?: ")
_COLOURS = re.compile(r"\x1b\[\d+m")
_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (Azure: AZURE_STORAGE_ACCOUNT_NAME and _KEY)"


class _Reason(NamedTuple):
    what: str
    advice: str


_NO_CREDENTIALS = _Reason("there are no credentials", _KEYS)
NO_CREDENTIALS = "; ".join(_NO_CREDENTIALS)
_BUCKET = _Reason("the bucket does not exist", "create it, or correct the root")
_RIGHT = _Reason("access is denied", "allow these credentials to list, read, write and delete below the root")
_UNKNOWN_KEY = _Reason("the access key is not known there", _KEYS)
_WRONG_KEY = _Reason("the secret key is wrong", _KEYS)
_EXPIRED = _Reason("the credentials have expired", "set new ones, or let the environment renew them")
_REGION = _Reason("the bucket is in another region", "set AWS_REGION to it, or AWS_ENDPOINT_URL")
_CLOCK = _Reason("the clock of this machine is wrong", "set it")
_BUSY = _Reason("the storage is too busy", "repeat the call later")
_MISSING = _Reason("there is no such file or bucket", "check the root, or repeat the call")
_LOST = _Reason("the connection was lost", "repeat the call")

_CONFLICTS = ("ConditionalRequestConflict", "OperationAborted")
"""Error codes of S3 for simultaneous requests for one object. obstore reports them as "already exists"."""

_BY_CODE = {
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"), _BUCKET),
    **dict.fromkeys(
        ("AccessDenied", "AuthorizationFailure", "AuthorizationPermissionMismatch", "AllAccessDisabled"), _RIGHT
    ),
    **dict.fromkeys(("InvalidAccessKeyId", "InvalidToken", "InvalidClientTokenId"), _UNKNOWN_KEY),
    **dict.fromkeys(("SignatureDoesNotMatch", "AuthenticationFailed"), _WRONG_KEY),
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"), _EXPIRED),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"), _REGION
    ),
    "RequestTimeTooSkewed": _CLOCK,
    **dict.fromkeys(("NoSuchKey", "BlobNotFound", "PathNotFound"), _MISSING),
    **dict.fromkeys(("SlowDown", "ServiceUnavailable", "ServerBusy", "TooManyRequests"), _BUSY),
    **dict.fromkeys(_CONFLICTS, _BUSY),
}
_BY_STATUS = {"401": _UNKNOWN_KEY, "403": _RIGHT, "404": _MISSING, "429": _BUSY, "503": _BUSY}
_BY_TEXT = {
    # Checked first: without keys, the client asks the machine's metadata service.
    **dict.fromkeys(
        ("/latest/api/token", "/latest/meta-data/", "/metadata/identity", "MissingAccessKey"), _NO_CREDENTIALS
    ),
    "computeMetadata": _Reason("there are no credentials", "set GOOGLE_APPLICATION_CREDENTIALS to a file of them"),
    "redirect without LOCATION": _REGION,
    "ConnectionRefused": _Reason("nothing listens at the endpoint", "correct AWS_ENDPOINT_URL"),
    "Connection refused": _Reason("nothing listens at the endpoint", "correct AWS_ENDPOINT_URL"),
    "dns error": _Reason("the endpoint's host is unknown", "correct AWS_ENDPOINT_URL, or AWS_REGION"),
    "BadScheme": _Reason("the endpoint is not HTTPS", "set AWS_ALLOW_HTTP=true if that is meant"),
    "scheme is not allowed": _Reason("the endpoint is not HTTPS", "set AWS_ALLOW_HTTP=true if that is meant"),
    "TimedOut": _Reason("no answer came in time", "repeat the call, or set a longer `timeout`"),
    "timed out": _Reason("no answer came in time", "repeat the call, or set a longer `timeout`"),
}

_LASTING = (
    *(reason.what for reason in (_NO_CREDENTIALS, _BUCKET, _RIGHT, _UNKNOWN_KEY, _WRONG_KEY, _REGION)),
    "Permission denied (os error 13)",
)
_FULL_ADVICE = "; `lakequeue doctor` says what fills the disk, and how to free space"


def first_line(error: BaseException) -> str:
    """Describes an error in one line. For a known error of a store, adds the cause and the setting to change."""
    text = _COLOURS.sub("", str(error)).strip() or type(error).__name__
    line = _explained(text) or _redacted(_of_spark(text) or _redacted(text).splitlines()[0])
    return line + _FULL_ADVICE if is_full(line) and _FULL_ADVICE not in line else line


def left_to_others(call: str, part: str, reason: object) -> QueueClientError:
    """Error of a call with unknown outcome. Other processes may still commit its ``part``, such as messages."""
    text = first_line(reason) if isinstance(reason, BaseException) else reason
    return QueueClientError(
        f"the outcome of a {call} is unknown: other processes may commit its {part} ({text}); {SAFE_TO_REPEAT}",
        outcome_unknown=True,
    )


def failure_left_to_others(error: Exception, unknown: Callable[[object], QueueClientError]) -> Exception:
    """Returns the error to raise for a failed call, if other processes may still commit a part of the call.

    Returns ``error`` itself if its ``outcome_unknown`` is True. Otherwise makes such an error: a DamagedTable for
    a DamagedTable, else ``unknown(reason)``. See ``left_to_others``.
    """
    match error:
        case QueueClientError(outcome_unknown=True):
            return error
        case DamagedTable():
            return error.unknown()
        case RequestThrottled():
            return unknown("too many lost races")
        case _:
            return unknown(error)


def is_full(line: str) -> bool:
    """True if an error's text says that a disk or a quota is full."""
    return "No space left on device" in line or "Disk quota exceeded" in line


def is_permanent(error: BaseException) -> bool:
    """True if repeating the call cannot help. False for expired credentials, which may be renewed."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return any(isinstance(each, PermissionError) or any(sign in str(each) for sign in _LASTING) for each in chain)


def is_conflict(error: BaseException) -> bool:
    """True if a store refused to create a file because of a simultaneous request. The caller may try again."""
    code = _CODE.search(str(error))
    return code is not None and code[1] in _CONFLICTS


def hide_secrets(error: BaseException) -> None:
    """Removes possible secrets from an error and its causes. Errors of S3 may contain the session token."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    for each in chain:
        text = str(each)
        hidden = _redacted(_ANSWER.sub("(answer)", text) if _TRIED.search(text) else text)
        if isinstance(each, BaseError) and hidden != text:
            each.args = (hidden,)


def was_repeated(error: BaseException) -> bool:
    """True if the client repeated the request. The store may still carry out the earlier attempts."""
    return " retries, " in str(error)


def unanswered_version(error: BaseException, next_version: int) -> int | None:
    """Returns the version that a store may still create after a failed commit, or None if it cannot."""
    text = _COLOURS.sub("", str(error))
    tried = _TRIED.search(text)
    if tried is None or tried[1] not in ("PUT", "POST"):
        return None
    entry = _ENTRY.search(tried[2])
    if entry is None and tried[2] != "REDACTED":
        return None  # The commit was not tried, because its data could not be written.
    status = _STATUS.search(_flat(text))
    if (
        status is not None
        and status[1].startswith("4")
        and status[1] not in _OF_A_PROXY
        and not was_repeated(error)
    ):
        return None  # Refused at the first try.
    return int(entry[1]) if entry else next_version


def _explained(text: str) -> str | None:
    tried = _TRIED.search(text)
    if "Account must be specified" in text:
        return NO_CREDENTIALS
    if tried is None and "MissingAccessKey" not in text and "response body error" not in text:
        return None
    flat = _flat(text)
    code, status = _CODE.search(text), _STATUS.search(flat)
    named = code[1] if code else f"status {status[1]}" if status else None
    reason = next((known for sign, known in _BY_TEXT.items() if sign in text), None)
    if reason is None and code is not None:
        reason = _BY_CODE.get(code[1])
    if reason is None and status is not None:
        reason = _BY_STATUS.get(status[1], _Reason(f"the storage answered {status[1]}", "repeat the call later"))
    what, advice = reason or _LOST
    target = None if tried is None else f"{tried[1]} {_redacted(tried[2])}"
    facts = ", ".join(each for each in (named, target) if each is not None)
    return f"{what} ({facts}); {advice}" if facts else f"{what}; {advice}"


def _of_spark(text: str) -> str | None:
    """Returns the Java or Python exception that caused a Spark error. Returns None if the text names no cause."""
    if "from the Python worker" in text:
        lines = [line for line in text.splitlines() if line[:1].strip() and not line.startswith("SQLSTATE")]
        return lines[-1].removeprefix("lakequeue.errors.QueueClientError: ")
    if not text.startswith("An error occurred while calling"):
        return None
    causes = [line.removeprefix("Caused by").lstrip(": ") for line in text.splitlines() if _CAUSE.match(line)]
    denied = next((cause for cause in causes if "AccessDenied" in cause), None)
    if denied is not None:
        return f"Spark is denied access, and its rights may differ from Python's (see conf/): {denied}"
    return causes[-1] if causes else None


def _redacted(text: str) -> str:
    return _VALUE.sub(r"\1…\2", _DETAILS.sub(r"\1", hidden(text)))


def _flat(text: str) -> str:
    return re.sub(r"\s*\n\s*↳\s*", ": ", text)
