"""The tree of errors: service refusals, environment failures, contradictory options.

Codes, legacy codes and HTTP statuses match SQS (ERR-6). Queues of the ``cmq`` profile set ``cmq_code`` (ERR-7).
All errors survive pickling.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, ClassVar

__all__ = [
    "BatchEntryIdsNotDistinct",
    "BatchFailed",
    "BatchRequestTooLong",
    "DamagedTable",
    "EmptyBatchRequest",
    "InvalidAttributeName",
    "InvalidAttributeValue",
    "InvalidBatchEntryId",
    "InvalidMessageContents",
    "InvalidOptions",
    "InvalidParameterValue",
    "LakeQueueError",
    "LeaseLost",
    "MessageNotInflight",
    "MissingPackage",
    "MissingParameter",
    "OverLimit",
    "PurgeQueueInProgress",
    "QueueClientError",
    "QueueDeletedRecently",
    "QueueDoesNotExist",
    "QueueNameExists",
    "QueueServiceError",
    "ReceiptHandleIsInvalid",
    "RequestThrottled",
    "ResourceNotFoundException",
    "RootDoesNotExist",
    "RowsRefused",
    "TableUnavailable",
    "TooManyEntriesInBatchRequest",
    "UnsupportedOperation",
    "UnsupportedTable",
]


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: ``1 message``, ``1,000 messages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(text: str, longest: int = 500) -> str:
    """Returns a text as one printable line: escapes control characters, and cuts the text at ``longest``."""
    cut = text if len(text) <= longest else f"{text[:longest]}…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)


def escaped(text: object) -> str:
    """Escapes the braces in a part of an error's template."""
    return str(text).replace("{", "{{").replace("}", "}}")


class LakeQueueError(Exception):
    """Base class of all errors that this package raises."""


class QueueServiceError(LakeQueueError):
    """The service understood the request and refused it. Nothing was changed (ERR-1, ERR-8).

    Attributes:
        code: name of the error, equal to the class's name.
        message: sentence for people, with the names of the Python API.
        template: the message with ``{}`` in place of names. A server inserts the names of its wire protocol.
        http_status: HTTP status of this error, as SQS sends it.
        sender_fault: True if the caller has to change the request. False if the service is to blame.
        request_id: fresh UUID of the refused request.
        legacy_code: code in the older query protocol. Equals ``code`` by default.
        default_message: message of an error that is raised without a message.
        status: default of ``http_status`` for the class.
        cmq_code: the error's number in CMQ, only on ``cmq`` queues.
        hint: valid values, such as a range, if not in ``message``.
        cmq_module_code: the more exact number of CMQ, if known.
    """

    code: ClassVar[str] = "QueueServiceError"
    legacy_code: ClassVar[str] = "QueueServiceError"
    default_message: ClassVar[str] = "The request was refused."
    status: ClassVar[int] = 400

    def __init_subclass__(cls, *, prefixed: bool = False) -> None:
        """Sets the legacy code. With ``prefixed``, this code begins with the older protocol's prefix."""
        cls.code = cls.__name__
        own = f"AWS.SimpleQueueService.{cls.code}" if prefixed else cls.code
        cls.legacy_code = cls.__dict__.get("legacy_code", own)

    def __init__(
        self,
        message: str | None = None,
        *,
        names: Sequence[Any] = (),
        hint: str | None = None,
        http_status: int | None = None,
        sender_fault: bool = True,
        request_id: str | None = None,
        cmq_code: int | None = None,
    ) -> None:
        self.template, self.names = message or self.default_message, tuple(names)
        self.message = self.template.format(*self.names) if names else self.template
        super().__init__(self.message)
        self.hint = hint
        self.http_status = http_status or self.status
        self.sender_fault = sender_fault
        self.request_id = request_id or str(uuid.uuid4())
        self.cmq_code = cmq_code

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message.rstrip('.')}: {self.hint}"

    @property
    def cmq_module_code(self) -> int | None:
        return None if self.cmq_code is None else CMQ_MODULE_CODES.get(self.cmq_code)


class QueueDoesNotExist(QueueServiceError):
    """The region has no queue of this name. Create the queue, or correct name or region."""

    legacy_code = "AWS.SimpleQueueService.NonExistentQueue"
    default_message = "The specified queue does not exist."


class QueueNameExists(QueueServiceError):
    """A queue of this name exists. Except on profile ``cmq``, its attributes differ (QUE-15, QUE-16)."""

    legacy_code = "QueueAlreadyExists"
    default_message = "A queue with this name already exists."


class QueueDeletedRecently(QueueServiceError, prefixed=True):
    """A queue of this name was deleted recently (QUE-14). Wait for the cool-down, then create the queue."""

    default_message = (
        "You must wait 60 seconds after deleting a queue before you can create another with the same name."
    )


class ReceiptHandleIsInvalid(QueueServiceError):
    """The text is no receipt handle of this queue (RCP-9). Use the handle of a receive."""

    default_message = "The input receipt handle is invalid."
    status = 404


class MessageNotInflight(QueueServiceError, prefixed=True):
    """The message is not in flight, so its visibility cannot change (RCP-12). Receive the message again."""

    default_message = "The specified message isn't in flight."


class OverLimit(QueueServiceError):
    """The queue has reached a cap (INF-3, QUE-21). Settle messages, or use more queues."""

    default_message = "The queue has reached one of its limits."
    status = 403


class TooManyEntriesInBatchRequest(QueueServiceError, prefixed=True):
    """The batch has more entries than the profile allows (BAT-1). Split it."""

    default_message = "The batch has too many entries."


class EmptyBatchRequest(QueueServiceError, prefixed=True):
    """The batch has no entry (BAT-5)."""

    default_message = "There should be at least one entry in the batch request."


class BatchEntryIdsNotDistinct(QueueServiceError, prefixed=True):
    """Two entries of a batch have the same id (BAT-5)."""

    default_message = "Two or more batch entries have the same id."


class InvalidBatchEntryId(QueueServiceError, prefixed=True):
    """A batch entry's id is too long or malformed (BAT-5)."""

    default_message = (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long."
    )


class BatchRequestTooLong(QueueServiceError, prefixed=True):
    """The entries of a batch are too long together (BAT-5). Split it."""

    default_message = "The entries of the batch are too long together."


class InvalidMessageContents(QueueServiceError):
    """The text has characters that a message cannot carry (SND-12). Encode it first."""

    default_message = (
        "Invalid characters found. Valid unicode characters are "
        "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
    )


class InvalidAttributeName(QueueServiceError):
    """The attribute is unknown, or not settable (QUE-2, QUE-23, QUE-26)."""

    default_message = "Unknown attribute."


class InvalidAttributeValue(QueueServiceError):
    """A queue attribute is outside the profile's range (PRF-2)."""

    default_message = "Invalid value for a queue attribute."


class InvalidParameterValue(QueueServiceError):
    """An argument is out of range, or does not fit the queue."""

    default_message = "Invalid value for a parameter."

    @classmethod
    def of(cls, value: object, parameter: str, reason: str, *names: object, **more: Any) -> InvalidParameterValue:
        """Builds the error for a wrong value, in SQS's words. Each ``{}`` in the reason is one of ``names``."""
        shown = str(value)
        if len(shown) > 256 or "\n" in shown:  # One line, however large the value.
            shown = f"{shown[:128]!r}{'…' * (len(shown) > 128)}"
            value = None
        wire_values = (value,) if hasattr(value, "wire") else ()  # A policy has another spelling on the wire.
        text = "{}" if wire_values else escaped(shown)
        template = f"Value {text} for parameter {{}} is invalid. Reason: {reason if names else escaped(reason)}"
        return cls(template, names=(*wire_values, parameter, *names), **more)


class MissingParameter(QueueServiceError):
    """An argument that the call needs is absent or empty."""

    default_message = "A required parameter is missing."


class PurgeQueueInProgress(QueueServiceError, prefixed=True):
    """The queue was purged less than 60 seconds ago (PUR-2). Wait."""

    default_message = "Only one PurgeQueue operation is allowed every 60 seconds."
    status = 403


class UnsupportedOperation(QueueServiceError, prefixed=True):
    """This queue, or this version of lakequeue, lacks the operation."""

    default_message = "This operation is not supported."


class RequestThrottled(QueueServiceError):
    """The commit lost too many races (ERR-9). Nothing was changed. Repeat the call later.

    Attributes:
        lost_races: number of races that the commit lost.
    """

    default_message = "The request was throttled; try again."
    status = 403

    def __init__(self, message: str | None = None, *, lost_races: int = 0, **more: Any) -> None:
        super().__init__(message, **more)
        self.lost_races = lost_races


class ResourceNotFoundException(QueueServiceError):
    """A move task or its queue does not exist."""

    default_message = "The resource does not exist."
    status = 404


SAFE_TO_REPEAT = "repeating it is safe, except a send without an id (dedup_id, send_id), which may be stored twice"
"""Advice on repeating a call with an unknown outcome."""


class QueueClientError(LakeQueueError):
    """Storage or environment failed. The request was valid (ERR-2).

    Attributes:
        message: the failure.
        outcome_unknown: True if the call may have taken effect. Repeat it with the same ids or handles
            (``SAFE_TO_REPEAT``).
    """

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.outcome_unknown = outcome_unknown


class MissingPackage(QueueClientError, ModuleNotFoundError):
    """A package of an optional extra is not installed; the message names it. Nothing was changed (ERR-2)."""

    @classmethod
    def of(cls, what: str, extra: str, error: ImportError) -> MissingPackage:
        """Builds the error after a failed import. ``what`` is the feature that needs the package."""
        from importlib import metadata  # Takes 30 ms.

        try:
            requirements = metadata.requires("lakequeue") or ()
        except metadata.PackageNotFoundError:
            requirements = ()
        needs = [text.replace('"', "'").partition(";") for text in requirements]
        wanted = [f"'{name.strip()}'" for name, _, when in needs if f"extra == '{extra}'" in when]
        advice = " ".join(wanted) or f"'lakequeue[{extra}]'"
        package = (error.name or str(error)).partition(".")[0]
        return cls(f"{what} needs {package}, which is not installed: pip install {advice}")

    @classmethod
    def check(cls, what: str, extra: str, package: str) -> None:
        """Raises the error if ``package``, which the feature ``what`` needs, is not installed. Imports nothing."""
        missing = ModuleNotFoundError(name=package)
        try:
            found = find_spec(package)
        except ModuleNotFoundError as error:
            found, missing = None, error
        if found is None:
            raise cls.of(what, extra, missing)


class RootDoesNotExist(QueueClientError):
    """The root is missing, or an empty directory. Creating a queue creates the root (ERR-2)."""


class DamagedTable(QueueClientError):
    """A file of a queue is missing or changed. Nothing was changed by the call (DUR-2, DUR-5, DUR-8).

    A receive that finds only damaged messages has claimed them: ``outcome_unknown`` is set, ``reason`` names them.
    ``lakequeue check`` lists all damage, ``lakequeue repair`` repairs it.

    Attributes:
        table: path of the table.
        file: path of the file below the table; None for the table as a whole.
        reason: the damage.
    """

    def __init__(self, table: str, file: str | None, reason: str, *, outcome_unknown: bool = False) -> None:
        reason = one_line(reason)
        what = f"{table} is damaged: {f'{one_line(file)} ' if file else ''}{reason}"
        super().__init__(f"{what}; run `lakequeue check`", outcome_unknown=outcome_unknown)
        self.table, self.file, self.reason = table, file, reason

    @property
    def damage(self) -> str:
        """The damaged file, or the table, and the damage."""
        return f"{one_line(self.file) if self.file else self.table} {self.reason}"

    def unknown(self) -> DamagedTable:
        """Returns a copy with ``outcome_unknown``: the call may have taken effect."""
        return type(self)(self.table, self.file, self.reason, outcome_unknown=True)

    def __reduce__(self) -> tuple[type[DamagedTable], tuple[str, str | None, str], dict[str, Any]]:
        return type(self), (self.table, self.file, self.reason), self.__dict__


class TableUnavailable(QueueClientError):
    """A delivery table cannot be reached, or was replaced (TAB-22). Messages stay in the queue."""

    def __init__(self, table: str, reason: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(f"the delivery table {table} {one_line(reason)}", outcome_unknown=outcome_unknown)
        self.table, self.reason = table, reason

    def unknown(self) -> TableUnavailable:
        """Returns a copy with ``outcome_unknown``: the table may have the rows."""
        return type(self)(self.table, self.reason, outcome_unknown=True)

    def __reduce__(self) -> tuple[type[TableUnavailable], tuple[str, str], dict[str, Any]]:
        return type(self), (self.table, self.reason), self.__dict__


class UnsupportedTable(TableUnavailable):
    """Queues cannot deliver into this table (TAB-21), for example because a catalog decides its commits."""


class RowsRefused(LakeQueueError):
    """A delivery table does not accept these rows. Nothing was appended (TAB-23).

    Attributes:
        reason: names the column, and the limit or constraint.
        column: name of the column; None if the table does not say.
    """

    def __init__(self, reason: str, column: str | None = None) -> None:
        super().__init__(reason, column)
        self.reason, self.column = reason, column

    def __str__(self) -> str:
        return one_line(self.reason)


class InvalidOptions(LakeQueueError):
    """Options contradict each other or are out of range. ``.problems`` lists every problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(list(problems))
        self.problems = list(problems)

    def __str__(self) -> str:
        return "; ".join(self.problems)


class LeaseLost(LakeQueueError):
    """The lease no longer holds any message: all were received again, expired or were settled.

    Attributes:
        done: messages that the call settled.
        lost: messages that the call could not settle.
    """

    def __init__(self, done: int = 0, lost: int = 0) -> None:
        super().__init__(done, lost)
        self.done = done
        self.lost = lost

    def __str__(self) -> str:
        return f"the lease is lost ({self.done} messages done, {self.lost} lost)"


class BatchFailed(LakeQueueError):
    """Entries of a batch failed. Raised by ``BatchResult.raise_for_failures``. The other entries took effect.

    Attributes:
        failed: a ``BatchFailure`` for each failed entry. Repeat an entry if its ``sender_fault`` is False.
        tried: number of entries of the batch.
    """

    def __init__(self, failed: Sequence[Any], tried: int) -> None:
        super().__init__(list(failed), tried)
        self.failed = list(failed)
        self.tried = tried

    def __str__(self) -> str:
        shown = "; ".join(f"{one.id}: {one.code}: {one.message}" for one in self.failed[:3])
        more = f"; and {len(self.failed) - 3} more" if len(self.failed) > 3 else ""
        return f"{len(self.failed)} of {self.tried} entries failed: {shown}{more}"


SERVICE_ERRORS: dict[str, type[QueueServiceError]] = {
    error.code: error for error in QueueServiceError.__subclasses__()
}
"""Every service error by its code."""

CMQ_CODES: dict[str, int] = {
    "InvalidAttributeName": 4000,
    "InvalidAttributeValue": 4000,
    "InvalidParameterValue": 4000,
    "MissingParameter": 4000,
    "QueueDoesNotExist": 4440,
    "QueueNameExists": 4460,
}
"""Maps error codes to CMQ's numbers (ERR-7). A number in the arguments of an error's constructor has priority."""

CMQ_MODULE_CODES: dict[int, int] = {6050: 10670, 10680: 10680, 10700: 10700}
"""Maps CMQ's numeric error codes to CMQ's module codes. Only the error codes of rewinds have a module code."""

CMQ_SOME_FAILED, CMQ_ALL_FAILED = 6010, 6020
"""Numeric error codes of CMQ for a batch of deletes: some deletes failed, or all did (ERR-7)."""


def cannot_listen(host: str, port: int, error: OSError) -> OSError:
    reason = error.strerror.partition(" (while")[0] if error.strerror else str(error)
    return OSError(f"cannot listen at {host}, port {port}: {reason}")


def cmq_code_of(error: QueueServiceError, profile_name: str) -> int | None:
    """Returns CMQ's number for an error (ERR-7); None if the queue has another profile than ``cmq``."""
    if profile_name != "cmq":
        return None
    return CMQ_CODES.get(error.code) if error.cmq_code is None else error.cmq_code


@contextmanager
def coded_for(profile_name: str) -> Iterator[None]:
    """Sets CMQ's numbers on service errors that the block raises (ERR-7). Has no effect on other profiles."""
    try:
        yield
    except QueueServiceError as error:
        error.cmq_code = cmq_code_of(error, profile_name)
        raise
