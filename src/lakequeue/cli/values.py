"""Parses and formats durations, sizes and instants, and imports functions. Plain numbers are seconds or bytes."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import attrs
import typer

from lakequeue.cli import session
from lakequeue.cli.session import usage
from lakequeue.model import clock
from lakequeue.model.clock import Clock, parse_duration, shown_duration

_BYTES = {"": 1, "b": 1}
_BYTES |= {f"{prefix}b": 1_000**power for power, prefix in enumerate("kmg", 1)}
_BYTES |= {f"{prefix}{end}": 1_024**power for power, prefix in enumerate("kmg", 1) for end in ("ib", "i")}

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.IGNORECASE)
_AGO = re.compile(r"-(?P<minus>\S+)|(?P<ago>\S+) ago")

LONGEST = 100 * 365 * 86_400
"""Longest duration in seconds that commands accept. Adding it to the present never overflows."""
DURATION_HELP = "Durations are seconds, or such as 90s, 5m, 12h, 2d, 1h30m."
INSTANT_HELP = "such as 2026-01-31T08:00Z, UTC if it has no time zone, or '10m ago'"


def duration(given: str | float) -> float:
    """Parses seconds: a number, or a text such as ``5m`` or ``1h30m``."""
    text = str(given).strip()
    try:
        return float(text)  # even if no queue allows it: the queue then names its range
    except ValueError:
        pass
    try:
        return parse_duration(text)
    except ValueError:
        bare = ", without a minus" if text.startswith("-") else ""
        reason = f"{text!r} is not a duration; write seconds, or 90s, 5m, 12h, 2d, 1h30m{bare}"
        raise typer.BadParameter(reason) from None


def size(given: str | int) -> int:
    """Parses bytes: a number, or a text such as ``64KiB`` or ``1MB``."""
    text = str(given).strip()
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    match = _SIZE.fullmatch(text)
    factor = None if match is None else _BYTES.get(match[2].lower())
    if match is None or factor is None:
        raise typer.BadParameter(f"{text!r} is not a size; write bytes, or 64KiB, 256kB, 1MiB")
    number = float(match[1]) * factor
    if number != int(number):
        raise typer.BadParameter(f"{text!r} is not a whole number of bytes")
    return int(number)


@attrs.frozen
class Moment:
    """Value of an option that accepts an instant, or a duration that is subtracted from now."""

    at: datetime | None = None
    ago: float | None = None
    """Seconds before now."""

    def instant(self, clock: Clock) -> datetime:
        return self.at if self.at is not None else clock.now() - timedelta(seconds=self.ago or 0)


def moment(given: str | Moment) -> Moment:
    """Parses an instant in ISO 8601, or a time relative to now: ``-10m``, ``10m ago`` or ``now``."""
    if isinstance(given, Moment):
        return given
    text = given.strip()
    if text == "now":
        return Moment(ago=0)
    if match := _AGO.fullmatch(text):
        return Moment(ago=from_now(match["minus"] or match["ago"]))
    try:
        instant = clock.parse_instant(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an instant; write it {INSTANT_HELP}") from None
    return Moment(at=instant if instant.tzinfo is not None else instant.replace(tzinfo=timezone.utc))


def at_least(low: float) -> Callable[[str | float], float]:
    """Returns a parser that accepts durations from ``low`` to ``LONGEST``."""

    def parsed(given: str | float) -> float:
        value = duration(given)
        if not value >= low:
            raise typer.BadParameter(f"{given} is too short; the least is {low:g} s")
        if value > LONGEST:
            raise typer.BadParameter(f"{given} is too long; the most is {shown_duration(LONGEST)}")
        return value

    return parsed


from_now = at_least(-LONGEST)
"""Parses a duration in seconds, which may be negative. Callers add it to the present, or subtract it."""


def shown_size(size: int) -> str:
    """Formats a size, such as ``1 MiB`` for ``1048576``. Uses bytes unless the size is a whole number of KiB."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1_024**power == 0:
            return f"{size // 1_024**power} {unit}"
    return f"{size:,} bytes"


def imported(spec: str, given: str) -> Callable[..., Any]:
    """Imports the callable ``module:name``, also from the working directory. Raises typer.BadParameter."""
    session.spares_pandas = False
    module, _, path = spec.partition(":")
    if not module or not path:
        usage(f"{given}: must be MODULE:FUNCTION, such as package.module:handle")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there takes the place of a package
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # importing a module can raise anything
        usage(f"{given}: {_reason(error, module)}")
    if not callable(found):
        usage(f"{given}: not a function")
    function: Callable[..., Any] = found
    return function


def _reason(error: BaseException, module: str) -> str:
    if isinstance(error, AttributeError) and error.obj is sys.modules.get(module):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({os.path.basename(error.filename or module)}, line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, ImportError) and "importlib" in last.filename:
        return f"{error} in this directory or on PYTHONPATH"
    place = f"{os.path.basename(last.filename)}, line {last.lineno}"
    return f"{type(error).__name__}: {error} ({place})"
