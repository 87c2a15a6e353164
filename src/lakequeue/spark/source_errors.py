"""Errors of the data source as one line: Spark shows the text that its Python workers make of an exception."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lakequeue import errors
from lakequeue.errors import InvalidOptions, LakeQueueError, QueueClientError

_HIDE = "SPARK_HIDE_TRACEBACK"
"""Variable that Spark's workers look at when they describe an exception, after which they end."""
_LINE = re.compile(r"lakequeue\.errors\.(\w+): ([^\n]*)")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def one_line(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Lets Spark show an error of lakequeue as its class and message, without the stack of a worker process."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except LakeQueueError:
            os.environ[_HIDE] = "1"
            raise

    return wrapper


def error_in(text: str) -> LakeQueueError | None:
    """The error of lakequeue that a text of Spark's reports, if it does."""
    match = _LINE.search(text)
    if match is None:
        return None
    kind, message = getattr(errors, match[1], None), match[2].strip()
    if not isinstance(kind, type) or not issubclass(kind, LakeQueueError):
        return None
    if issubclass(kind, errors.QueueServiceError):
        return kind(message)
    return InvalidOptions([message]) if kind is InvalidOptions else QueueClientError(message)
