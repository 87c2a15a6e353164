"""Distinguishes errors of a program from errors that its messages cause."""

from __future__ import annotations

import re

from lakequeue import errors
from lakequeue.model.causes import cause_of, of_spark

NOT_OF_MESSAGES = (errors.LeaseLost, errors.QueueDoesNotExist, errors.QueueClientError)
"""Errors that do not depend on the messages, so that smaller batches cannot avoid them."""
_STOPPED = re.compile(r"InterruptedException|Job \d+ cancelled")
_OF_PROGRAM = (
    *("AnalysisException", "PySparkAttributeError", "PySparkImportError", "PySparkNotImplementedError"),
    *("PySparkPicklingError", "SessionNotSameException"),
)
"""Names of error classes, with and without Spark Connect, of a program that fails whatever the messages are."""
_RETURN_TYPE = re.compile(
    r"\[(?:\w*RETURN_(?:NOT_ITERABLE|SCHEMA|TYPE)\w*|RESULT_COLUMN\w*_MISMATCH\w*|SCHEMA_MISMATCH_FOR_\w+"
    r"|ARROW_TYPE_MISMATCH|NOT_\w+)\]"
)
"""Matches names of Spark's error conditions about types of arguments or results."""
_SQLSTATE = re.compile(r"SQLSTATE: (42(?!K03|K0B)|0A)")
"""SQLSTATE classes of a wrong query and an unsupported feature."""


def of_program(error: BaseException) -> bool:
    """Returns True for an error of analysis, parsing or types, which any messages would cause."""
    if isinstance(error, errors.InvalidOptions):
        return True
    if not of_spark(error):
        return False
    kind, text = cause_of(error)
    names = {each.__name__ for each in type(error).__mro__} | {kind.removeprefix("Extended").removeprefix("Delta")}
    if "SQLSTATE: 42K03" in text:
        return False
    return bool(
        names.intersection(_OF_PROGRAM)
        or "ParseException" in names
        or _SQLSTATE.search(text)
        or _RETURN_TYPE.search(text)
    )


def was_stopped(error: BaseException) -> bool:
    """Returns True if an error only shows that the query or its jobs were stopped."""
    return type(error).__module__.startswith("py4j") and _STOPPED.search(str(error)) is not None
