"""Distinguishes errors of a program from errors that messages cause."""

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
"""Error classes of a faulty program, also of Spark Connect. The program would fail with any messages."""
_RETURN_TYPE = re.compile(
    r"\[(?:\w*RETURN_(?:NOT_ITERABLE|SCHEMA|TYPE)\w*|RESULT_COLUMN\w*_MISMATCH\w*|SCHEMA_MISMATCH_FOR_\w+"
    r"|ARROW_TYPE_MISMATCH|NOT_\w+)\]"
)
"""Matches the names of Spark's error conditions about wrong types of arguments or results."""
_SQLSTATE = re.compile(r"SQLSTATE: (42(?!K03|K0B)|0A)")
"""Matches the SQLSTATE classes of a wrong query and of an unsupported feature."""


def of_program(error: BaseException) -> bool:
    """Returns True for an error of analysis, parsing or types, with which the program fails on any messages."""
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
    """Returns True if an error only shows that a query or a job was stopped."""
    return type(error).__module__.startswith("py4j") and _STOPPED.search(str(error)) is not None
