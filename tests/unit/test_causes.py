"""The innermost cause of an error of Spark, by texts that Spark 4.0 to 4.2 and Spark Connect have printed."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PySparkTypeError

from lakequeue import InvalidOptions, InvalidParameterValue
from lakequeue.cli.errors import reason_of
from lakequeue.model.causes import cause_of
from lakequeue.model.failures import DeadLetterReason
from lakequeue.spark.faults import of_program, was_stopped

STACK = (
    "\tat org.apache.spark.sql.delta.DeltaFileFormatWriter$.execute(DeltaFileFormatWriter.scala)\n\t... 6 more\n"
)
CAST = """[CAST_INVALID_INPUT] The value 'seven' of the type "STRING" cannot be cast to "INT". SQLSTATE: 22018"""
QUERY = "\n== SQL (line 1, position 1) ==\nint(body) x\n^^^^^^^^^\n\n"
WRITE = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/tmp/1. SQLSTATE: 58030\n"
NUMBER = f"org.apache.spark.SparkNumberFormatException: {CAST}{QUERY}{STACK}"
TRACE = 'Traceback (most recent call last):\n  File "/tmp/probe.py", line 20, in f\n    raise ValueError("boom")\n'
CHAINED = (
    'Traceback (most recent call last):\n  File "/tmp/probe.py", line 3, in f\n    {}["k"]\n    ~~^^^^^\n'
    "KeyError: 'k'\n\nThe above exception was the direct cause of the following exception:\n\n" + TRACE
)
CALL = "An error occurred while calling o89.save.\n: org.apache.spark."
PYTHON = "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown "
MISSING = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: nonsense. SQLSTATE: 42K02"

TEXTS = [
    (f"{CALL}SparkException: {WRITE}{STACK}Caused by: {NUMBER}", "SparkNumberFormatException", CAST),
    (f"{CAST}{QUERY}\nJVM stacktrace:\n{NUMBER}", "PySparkException", CAST),
    (f"{WRITE}\n\nJVM stacktrace:\n{STACK}Caused by: {NUMBER}", "SparkNumberFormatException", CAST),
    (f"{CALL}SparkException: {WRITE}{STACK}Caused by: java.io.IOException: No space\n{STACK}",
     "IOException", "No space"),
    (f"{CALL}SparkException: Job aborted.\n{STACK}Caused by: {PYTHON}{TRACE}ValueError: boom\n\nline two\n"
     f" SQLSTATE: 38000\n{STACK}", "ValueError", "boom\n\nline two"),
    (f"An exception was thrown from the Python worker:\n{TRACE}ValueError: boom\n", "ValueError", "boom"),
    (f"  An exception was thrown from the Python worker. See below.\n{CHAINED}my.package.Poison\n", "Poison", ""),
    ("An exception was thrown from the Python worker:\njson.decoder.JSONDecodeError: Expecting value: line 1",
     "JSONDecodeError", "Expecting value: line 1"),
    (f"{WRITE}{STACK}Caused by: {PYTHON}from the Python worker: builtins.Poison\n SQLSTATE: 38000\n{STACK}",
     "Poison", ""),
    (f"{PYTHON}{TRACE}pyspark.errors.exceptions.base.PySparkTypeError: [UDF_RETURN_TYPE] Not a DataFrame.\n",
     "PySparkTypeError", "[UDF_RETURN_TYPE] Not a DataFrame."),
    (f"[STREAM_FAILED] Query terminated: An exception was raised by the Python Proxy. Return Message: {TRACE}"
     f"py4j.protocol.Py4JJavaError: {CALL}SparkException: {WRITE}{STACK}Caused by: {NUMBER}",
     "SparkNumberFormatException", CAST),
    (f"{CALL}SparkClassNotFoundException: {MISSING}\n{STACK}Caused by: java.lang.ClassNotFoundException: no\n",
     "SparkClassNotFoundException", MISSING),
    (f"(org.apache.spark.SparkClassNotFoundException) {MISSING}\n\nJVM stacktrace:\norg.apache.spark.X\n{STACK}"
     "Caused by: java.lang.ClassNotFoundException: nonsense\n", "SparkClassNotFoundException", MISSING),
    (f"{CALL}SparkException: x\n{STACK}Caused by: java.lang.NullPointerException\n{STACK}",
     "NullPointerException", ""),
    ("", "PySparkException", ""),
]  # fmt: skip


@pytest.mark.spec("JOB-10")
@pytest.mark.parametrize(("text", "kind", "said"), TEXTS)
def test_a_reason_is_the_innermost_cause(text: str, kind: str, said: str) -> None:
    error = PySparkException(text)
    assert cause_of(error) == (kind, said)
    reason = DeadLetterReason.of(error, datetime(2026, 1, 1, tzinfo=timezone.utc), "job")
    assert (reason.error, reason.text) == (kind, said)
    assert "\n" not in reason_of(error) and (said.partition("\n")[0] or kind) in reason_of(error)


def test_errors_of_handlers_are_shown_as_they_are() -> None:
    assert cause_of(ValueError("a\nb: c")) == ("ValueError", "a\nb: c")
    text = f"{CALL}SparkException: x\n{STACK}Caused by: {NUMBER}"
    assert cause_of(RuntimeError(text)) == ("RuntimeError", text)
    assert cause_of(Py4JError(text)) == ("SparkNumberFormatException", CAST)


PROGRAM = [
    AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] The table or view `nowhere` cannot be found.\nSearch path: []"),
    PySparkTypeError("[NOT_EXPECTED_TYPE] Argument `col` should be Column, got int."),
    PySparkException(f"{PYTHON}{TRACE}pyspark.errors.exceptions.base.PySparkTypeError: [UDF_RETURN_TYPE] No.\n"),
    PySparkException(f"{PYTHON}{TRACE}pyspark.errors.PySparkRuntimeError: [RESULT_COLUMN_NAMES_MISMATCH] No.\n"),
    Py4JError(f"{CALL}SparkClassNotFoundException: {MISSING}\n{STACK}"),
    PySparkException('[UNSUPPORTED_CALL.WITHOUT_SUGGESTION] Cannot call the method "getInt".  SQLSTATE: 0A000'),
    InvalidOptions(["the handler returned 5"]),
]
MESSAGES = [
    *(PySparkException(text) for text, _, said in TEXTS if said != MISSING and "RETURN_TYPE" not in said),
    AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/tmp/order-7.json. SQLSTATE: 42K03"),
    PySparkException("[INCONSISTENT_BEHAVIOR_CROSS_VERSION] Fail to parse '2001-1'. SQLSTATE: 42K0B"),
    PySparkTypeError("[FIELD_DATA_TYPE_UNACCEPTABLE] field a: IntegerType() can not accept object 'x'."),
    ValueError("[TABLE_OR_VIEW_NOT_FOUND] SQLSTATE: 42P01"),
    InvalidParameterValue("a body"),
]


@pytest.mark.spec("DLQ-12")
@pytest.mark.parametrize(("error", "program"), [*((e, True) for e in PROGRAM), *((e, False) for e in MESSAGES)])
def test_errors_of_a_program_are_distinguished_from_errors_of_messages(error: Exception, program: bool) -> None:
    assert of_program(error) == program
    assert not was_stopped(error)
