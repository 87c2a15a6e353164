"""The columns of the Spark data source, and lakequeue's errors as Spark shows them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import pyarrow as pa

from lakequeue import errors
from lakequeue.errors import InvalidOptions, LakeQueueError, QueueClientError
from lakequeue.frame_verbs import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HIDE = "SPARK_HIDE_TRACEBACK"
"""Name of the environment variable that makes Spark's workers hide stack traces."""
_LINE = re.compile(r"lakequeue\.errors\.(\w+): ([^\n]*)")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def one_line(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates a function. Spark then shows lakequeue's errors as class and message, without a stack trace."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except LakeQueueError:
            os.environ[_HIDE] = "1"
            raise

    return wrapper


def error_in(text: str) -> LakeQueueError | None:
    """Returns the lakequeue error that a text of Spark contains, or None if there is no such error."""
    match = _LINE.search(text)
    kind = match and getattr(errors, match[1], None)
    if match is None or not isinstance(kind, type) or not issubclass(kind, LakeQueueError):
        return None
    message = match[2].strip()
    if issubclass(kind, errors.QueueServiceError):
        return kind(message)
    return InvalidOptions([message]) if kind is InvalidOptions else QueueClientError(message)


def schema(columns: pa.Schema = COLUMNS) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns)


def check(chosen: StructType) -> None:
    """Checks a user's schema. Raises InvalidOptions, which names unknown columns and columns of a wrong type."""
    known = {field.name: field.dataType.simpleString() for field in schema().fields}
    problems = [
        f"column {name} is {type_}, it must be {known[name]}"
        if name in known
        else f"column {name} is not known; there are {', '.join(known)}"
        for name, type_ in ((field.name, field.dataType.simpleString()) for field in chosen.fields)
        if known.get(name) != type_
    ]
    if problems:
        raise InvalidOptions(problems)
