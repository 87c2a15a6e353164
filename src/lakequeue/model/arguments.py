"""Checks the arguments of calls. The limits of most arguments depend on the queue's attributes."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from lakequeue.errors import InvalidParameterValue, MissingParameter, coded_for
from lakequeue.model.attribute_values import as_text, parse_whole
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, Duration, Interrupt, duration_micros, parse_duration, seconds, to_micros
from lakequeue.model.profiles import Limits

SHORTEST_POLL, LONGEST_POLL = 50_000, 3_600_000_000
"""Minimum and maximum interval between two polls, in microseconds."""
LONGEST_LINGER = 60_000_000
"""Maximum linger of a sender, in microseconds."""
_IDENTIFIER = re.compile(r"[!-~]{1,128}")
_NOT_FOR_THIS_KIND = "The request include parameter that is not valid for this queue type."


def check_type(parameter: str, value: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Raises InvalidParameterValue unless a value has a type. A bool is not a number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidParameterValue.of(reprlib.repr(value), parameter, f"Must be {expected}.")


def check_string(parameter: str, value: object, *, optional: bool = False) -> None:
    """Checks that a value is text. Allows None if ``optional``. Raises InvalidParameterValue."""
    if not (optional and value is None):
        check_type(parameter, value, str, "a text")


def check_callable(parameter: str, value: object, *methods: str, expected: str = "callable") -> None:
    """Raises InvalidParameterValue unless a value is callable or, with ``methods``, has these methods."""
    found = [getattr(value, method, None) for method in methods] if methods else [value]
    if not all(callable(one) for one in found):
        raise InvalidParameterValue.of(reprlib.repr(value), parameter, f"Must be {expected}.")


def check_mapping(parameter: str, value: object) -> None:
    """Raises InvalidParameterValue unless a value is a mapping or None."""
    if value is not None:
        check_type(parameter, value, Mapping, "a mapping")


class Condition(NamedTuple):
    """A condition in SQL, and the values for its ``?`` placeholders."""

    text: str
    values: Sequence[Any] = ()

    @classmethod
    def of(cls, where: str | None, parameters: Sequence[Any]) -> Condition | None:
        """Returns the condition, or None if ``where`` is None. Raises InvalidParameterValue for a wrong value."""
        if isinstance(parameters, str) or not isinstance(parameters, Sequence) or (where is None and parameters):
            reason = "Must be a list of values, one for each ? in where."
            raise InvalidParameterValue.of(reprlib.repr(parameters), "parameters", reason)
        for index, value in enumerate(parameters):
            name = f"parameters[{index}]"
            if isinstance(value, str):
                check_text(name, value)
            elif isinstance(value, datetime):
                check_instant(name, value)
            elif value is not None and not isinstance(value, (int, float)):
                reason = "Must be a text, a number, a bool, an instant or None."
                raise InvalidParameterValue.of(reprlib.repr(value), name, reason)
        return None if where is None else cls(where, parameters)


def check_secrets(parameter: str, value: object) -> None:
    """Raises InvalidParameterValue, without showing values, unless a value is None or maps names to texts."""
    wrong = [] if value is None or isinstance(value, Mapping) else [(parameter, value, "a mapping")]
    if isinstance(value, Mapping):
        found = ((f"{parameter}[{name!r}]", each, "a text") for name, each in value.items())
        wrong = [each for each in found if not isinstance(each[1], str)]
    for name, each, expected in wrong:
        raise InvalidParameterValue.of(f"of type {type(each).__name__}", name, f"Must be {expected}.")


def check_interrupt(interrupt: object) -> None:
    if interrupt is not None:
        check_type("interrupt", interrupt, Interrupt, "an Interrupt")


def list_of(parameter: str, values: object, kind: type | tuple[type, ...], expected: str) -> list[Any]:
    """Returns the items of an iterable. Raises InvalidParameterValue for a text, or an item of another kind."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InvalidParameterValue.of(
            reprlib.repr(values), parameter, f"Must be a list; each item is {expected}."
        )
    listed = list(values)
    for index, value in enumerate(listed):
        check_type(f"{parameter}[{index}]", value, kind, expected)
    return listed


def check_instant(parameter: str, value: object) -> int:
    """Converts an aware instant to microseconds since the epoch. Raises InvalidParameterValue for other values."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        with suppress(OverflowError):  # beyond the calendar
            return to_micros(value.astimezone(timezone.utc))
    reason = "Must be an instant with a time zone, in the years 1 to 9999 of UTC."
    hint = "such as datetime.now(timezone.utc)"
    raise InvalidParameterValue.of(value, parameter, reason, hint=hint)


def check_text(parameter: str, value: object) -> None:
    """Checks that a value is text in valid Unicode. Raises InvalidParameterValue."""
    try:
        stored = isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        stored = False
    if not stored:
        raise InvalidParameterValue.of(repr(value), parameter, "Must be a text of Unicode characters.")


def check_whole(parameter: str, value: object, most: int | None = None) -> None:
    """Checks for a whole number from 1 to ``most``. Raises InvalidParameterValue."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not whole or (most is not None and isinstance(value, int) and value > most):
        limit = "of at least 1" if most is None else f"from 1 to {most:,}"
        raise InvalidParameterValue.of(value, parameter, f"Must be a whole number {limit}.")


def check_poll_interval(value: Any) -> int:
    """Returns the interval between polls in microseconds."""
    return _interval("poll_interval", value, SHORTEST_POLL, LONGEST_POLL)


def check_linger(value: Any) -> timedelta:
    """Returns the linger: the longest time that a send waits for other sends."""
    with suppress(ValueError):
        value = parse_duration(value) if isinstance(value, str) else value
    return timedelta(microseconds=_interval("linger", value, 0, LONGEST_LINGER))


def _interval(parameter: str, value: Any, low: int, high: int) -> int:
    try:
        micros = duration_micros(value)
    except (TypeError, ValueError, OverflowError):
        micros = -1
    if not low <= micros <= high:
        reason = f"Must be >= {seconds(low)} and <= {seconds(high)} seconds."
        raise InvalidParameterValue.of(value, parameter, reason)
    return micros


def check_visibility_timeout(attributes: QueueAttributes, value: Any) -> int:
    """Returns a checked visibility timeout in microseconds (RCV-13, VIS-10, PRF-2)."""
    with coded_for(attributes.profile):
        if value is None:
            raise MissingParameter("The request must contain the parameter {}.", names=["visibility_timeout"])
        limits = attributes.limits("visibility_timeout")
        low = "0" if attributes.allow_zero_visibility else f"{limits.low}" if limits.low else "a fraction"
        reason = f"Must be >= {low} and <= {limits.high}, if provided."
        micros = _argument(attributes, "visibility_timeout", value, reason, zero=True)
        if micros == 0 and not attributes.allow_zero_visibility:
            raise _refused(value, "visibility_timeout", reason)
    return micros


def check_wait(attributes: QueueAttributes, value: Any) -> int:
    """Returns the wait time of a receive in microseconds. Default: the queue's wait time (LPL-2, LPL-3)."""
    if value is None:
        return attributes.wait_micros
    limits = attributes.limits("receive_wait_time")
    reason = f"Must be >= {limits.low} and <= {limits.high}, if provided."
    with coded_for(attributes.profile):
        return _argument(attributes, "receive_wait_time", value, reason, "wait_time")


def check_delay(attributes: QueueAttributes, value: Any) -> int | None:
    """Returns the delay of a message in microseconds. Returns None on FIFO queues, where the queue's delay applies
    (DLY-3, DLY-4, DLY-9, SND-6, DLY-10).
    """
    if value is None:
        return None if attributes.fifo else attributes.delay_micros
    limits = attributes.limits("delay")
    reason = f"{{}} must be >= {limits.low} and <= {limits.high}."
    with coded_for(attributes.profile):
        micros = _argument(attributes, "delay", value, reason)
        if attributes.fifo and micros:
            raise _refused(value, "delay", _NOT_FOR_THIS_KIND)
    return None if attributes.fifo else micros


def check_at(attributes: QueueAttributes, at: Any, delay: Any, now: datetime) -> Duration:
    """Converts ``at``, the instant when a message becomes visible, to a delay in seconds (JOB-8)."""
    left = max(0, check_instant("at", at) - to_micros(now))
    if not attributes.fractions_allowed("delay"):
        left = -(-left // MICROS) * MICROS
    high = attributes.limits("delay").high
    if delay is not None:
        raise _refused(at, "at", "Give either at or delay.")
    if attributes.fifo and left:
        raise _refused(at, "at", _NOT_FOR_THIS_KIND)
    if high is not None and seconds(left) > high:
        reason = f"Must be at most {high} s from now; a schedule can send later messages."
        raise _refused(at, "at", reason)
    return seconds(left)


def check_priority(attributes: QueueAttributes, value: Any = None) -> int:
    """Returns the priority of a message. Default: 0, the lowest priority (JOB-5)."""
    if value is None or (type(value) is int and 0 <= value < attributes.classes):
        return value or 0
    if attributes.priorities is None:
        raise InvalidParameterValue.of(value, "priority", "The queue was created without priorities.")
    raise InvalidParameterValue.of(value, "priority", f"Must be a whole number of 0 to {attributes.classes - 1}.")


def check_max_messages(attributes: QueueAttributes, value: Any = None) -> int:
    """Returns the maximum number of messages of a receive. Default: 1 (RCV-1)."""
    if value is None:
        return 1
    high = attributes.profile_rules.max_batch
    upper = "" if high is None else f" and {high}"
    reason = f"Must be between 1{upper}, if provided." if upper else "Must be at least 1, if provided."
    with coded_for(attributes.profile):
        try:
            number = 0 if isinstance(value, str) else parse_whole(value)
        except (TypeError, ValueError):
            number = 0
        if not Limits(1, 1, high).contain(number):
            hint = f"give a whole number, not a {type(value).__name__}" if isinstance(value, str) else None
            raise _refused(value, "max_messages", reason, hint)
    return number


def check_attempt_id(attributes: QueueAttributes, value: Any) -> str | None:
    """Returns the attempt id of a receive, or None. Only FIFO queues accept an id (ATT-7)."""
    with coded_for(attributes.profile):
        if value is not None and not attributes.fifo:
            raise _refused(value, "attempt_id", _NOT_FOR_THIS_KIND)
        return check_identifier("attempt_id", value)


LONGEST_CONSUMER = 100
"""Maximum number of characters of a consumer's name."""


def check_consumer(value: Any) -> str | None:
    """Checks the name of a consumer. Returns the name, or None if no name is given."""
    if value is None or (isinstance(value, str) and 1 <= len(value) <= LONGEST_CONSUMER):
        return value
    raise _refused(value, "consumer", f"Must be a text of 1 to {LONGEST_CONSUMER} characters.")


def check_identifier(parameter: str, value: Any) -> str | None:
    """Returns an id after a check, or None (SND-13, ATT-7). An id has 1 to 128 letters, digits and punctuation."""
    if value is None or (isinstance(value, str) and _IDENTIFIER.fullmatch(value)):
        return value
    reason = "{} can only include alphanumeric and punctuation characters. 1 to 128 in length."
    raise _refused(value, parameter, reason)


MAX_TAGS = 50
"""Maximum number of tags of a queue."""


def check_tag_count(name: str, tags: Mapping[str, str]) -> None:
    """Checks the number of a queue's tags (QUE-28). Raises InvalidParameterValue."""
    if len(tags) > MAX_TAGS:
        raise InvalidParameterValue(f"Too many tags added for queue {name}.")


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Returns checked tags (QUE-28). Keys have 1 to 128 characters, values at most 256."""
    check_type("tags", tags, Mapping, "a mapping")
    for key, value in tags.items():
        if not isinstance(key, str) or not 1 <= len(key) <= 128:
            raise InvalidParameterValue("Tag keys must be between 1 and 128 characters in length.")
        if not isinstance(value, str) or len(value) > 256:
            raise InvalidParameterValue("Tag values must be between 0 and 256 characters in length.")
        for text in (key, value):
            check_text("tags", text)
    return dict(tags)


def _argument(
    attributes: QueueAttributes, field: str, value: Any, reason: str, parameter: str = "", zero: bool = False
) -> int:
    parameter = parameter or field
    try:
        micros = duration_micros(value)
    except (TypeError, ValueError):
        hint = f"give a number of seconds or a timedelta, not a {type(value).__name__}"
        raise _refused(value, parameter, reason, hint) from None
    if micros % MICROS and not attributes.fractions_allowed(field):
        raise _refused(value, parameter, "Must be a whole number of seconds.")
    if not attributes.limits(field).contain(seconds(micros)) and not (zero and micros == 0):
        raise _refused(value, parameter, reason, "the unit is seconds")
    return micros


def _refused(value: Any, parameter: str, reason: str, hint: str | None = None) -> InvalidParameterValue:
    shown = as_text(seconds(duration_micros(value))) if isinstance(value, timedelta) else value
    return InvalidParameterValue.of(shown, parameter, reason, *[parameter] * reason.count("{}"), hint=hint)
