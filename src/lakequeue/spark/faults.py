"""Tells errors of a program from errors of the messages that it handles."""

from __future__ import annotations

import re

from lakequeue import errors
from lakequeue.model.causes import cause_of, of_spark

NOT_OF_MESSAGES = (errors.LeaseLost, errors.QueueDoesNotExist, errors.QueueClientError)
"""Errors for which smaller batches are no remedy."""
_STOPPED = re.compile(r"InterruptedException|Job \d+ cancelled")
"""In an error of Spark: somebody has stopped the query."""
_OF_PROGRAM = (
    *("AnalysisException", "PySparkAttributeError", "PySparkImportError", "PySparkNotImplementedError"),
    *("PySparkPicklingError", "SessionNotSameException"),
)
"""Classes of PySpark, each with its subclasses and its like in Spark Connect, whatever raises them."""
_RETURN_TYPE = re.compile(
    r"\[(?:\w*RETURN_(?:NOT_ITERABLE|SCHEMA|TYPE)\w*|RESULT_COLUMN\w*_MISMATCH\w*|SCHEMA_MISMATCH_FOR_\w+"
    r"|ARROW_TYPE_MISMATCH|NOT_\w+)\]"
)
"""Conditions of errors about the type of an argument, or of the result of a function."""
_SQLSTATE = re.compile(r"SQLSTATE: (42(?!K03|K0B)|0A)")
"""Classes of SQLSTATE for a wrong query and for an unsupported feature.

42K03 is a missing path, which a message may name, and 42K0B a date that Spark 2 read in another way.
"""


def of_program(error: BaseException) -> bool:
    """Whether an error of analysis, parsing or types would come with any messages."""
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
    """Whether Spark raised an error because somebody stopped its query or cancelled its jobs."""
    return type(error).__module__.startswith("py4j") and _STOPPED.search(str(error)) is not None
