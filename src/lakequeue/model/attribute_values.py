"""Values of attributes: parsed from what callers and the wire give, and written back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from lakequeue.model.clock import duration_micros, seconds

Seconds = int | float

MAX_TEXT_BYTES = 8_192
"""Bytes of an attribute that is a text, such as a policy; as in SQS."""
MAX_STATEMENTS = 20
"""Statements of a policy; as in SQS."""

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def parse_micros(value: Any) -> int:
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"not a number: {value!r}")
        value = Decimal(value)
    return duration_micros(value)


def parse_whole(value: Any) -> int:
    number = None if isinstance(value, timedelta) else seconds(parse_micros(value))
    if isinstance(number, int):
        return number
    raise ValueError(f"not a whole number: {value!r}")


def parse_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError(f"neither true nor false: {value!r}")


def parse_policy(value: Any) -> str | None:
    if value is None or value == "":
        return None
    try:
        policy = json.loads(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(policy, dict):
        raise ValueError("not an object")
    statements = policy.get("Statement", [])
    statements = statements if isinstance(statements, list) else [statements]
    if not all(isinstance(one, dict) for one in statements):
        raise ValueError("statements are objects")
    if len(statements) > MAX_STATEMENTS:
        raise ValueError(f"more than {MAX_STATEMENTS} statements")
    str(value).encode()  # UnicodeEncodeError, a ValueError: half a surrogate pair cannot be stored
    return str(value)


def parse_choice(value: Any, choices: Mapping[str, str]) -> str:
    for choice, wire in choices.items():
        if value in (choice, wire):
            return choice
    raise ValueError(f"none of {[*choices]}: {value!r}")


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0")
    return str(value)
